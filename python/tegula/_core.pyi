"""The native module. Its functions check what memory safety needs; the Python modules say more."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Array: TypeAlias = Any  # a NumPy array or a torch tensor; the arrays of one call are of one kind

compiler: str

# Instruction sets and threads.
def isa_name() -> str: ...
def set_isa(name: str) -> None: ...
def compiled_isas() -> list[str]: ...
def available_isas() -> list[str]: ...
def num_threads(requested: int = 0) -> int: ...  # -n: torch's setting is n
def set_num_threads(threads: int) -> None: ...

class NotPlainError(TypeError): ...  # a tensor that is not plain memory of the processor

# Memory of results.
pooled_bytes: int  # what counts as large

def new_bytes(bytes: int) -> NDArray[np.uint8]: ...
def new_result(like: _Array, shape: Sequence[int]) -> _Array: ...  # of like's kind and dtype, contiguous
def cache_state() -> tuple[int, int, int]: ...  # bytes: limit, kept, in use
def set_cache_limit(bytes: int) -> None: ...
def empty_cache() -> None: ...

# Operations.
def positional_encoding(
    positions: _Array,
    dim: int,
    base: float,
    split: bool,
    inclusive: bool,
    dtype: Any | None,
    out: _Array | None,
    threads: int = 0,
) -> NDArray[Any]: ...
def embedding(
    ids: _Array,
    weight: _Array,
    padding_idx: int,
    zero_pads: bool,
    ignore_id: int | None,
    scale: float,
    positions: _Array | None,
    position_table: _Array | None,
    sinusoidal: bool,
    segments: _Array | None,
    segment_table: _Array | None,
    dropout_p: float,
    seed: int,
    out: _Array | None,
    threads: int,
) -> _Array: ...
def embedding_backward(
    grad: _Array,
    ids: _Array,
    num_rows: int,
    padding_idx: int,
    ignore_id: int | None,
    scale: float,
    dropout_p: float,
    seed: int,
    out: _Array | None,
    threads: int,
) -> _Array: ...
def embedding_backward_sparse(
    grad: _Array,
    ids: _Array,
    num_rows: int,
    padding_idx: int,
    ignore_id: int | None,
    scale: float,
    dropout_p: float,
    seed: int,
    new_rows: Callable[[int, int], _Array] | None,
    threads: int,
) -> tuple[NDArray[Any], _Array]: ...
def dropout_mask(seed: int, p: float, shape: Sequence[int], threads: int = 0) -> NDArray[Any]: ...
def mask_fill(
    out: _Array,
    lo: _Array,
    hi: _Array,
    dense: _Array | None = None,
    threads: int = 0,
) -> None: ...
def mask_scan(dense: _Array, threads: int = 0) -> tuple[_Array, _Array, int]: ...
def attention_plan(
    lo: _Array | None,
    hi: _Array | None,
    dense: _Array | None,
    sizes: Sequence[int],  # B, H, G, Lq, Lk, D, Dv
    dtype: str,
    backward: bool,
    threads: int,
) -> dict[str, Any]: ...
def attention_sizes(q: _Array, k: _Array, v: _Array, layout: str) -> tuple[int, int, int, int, tuple[int, ...]]: ...
def attention(
    q: _Array,
    k: _Array,
    v: _Array,
    out: _Array | None,
    lo: _Array | None,
    hi: _Array | None,
    dense: _Array | None,
    bias: _Array | None,
    alibi: _Array | None,
    sinks: _Array | None,
    scale: float | None,
    softcap: float,
    dropout_p: float,
    seed: int,
    layout: str,
    lse: bool | _Array,
    weights: bool | _Array,
    threads: int,
) -> Any: ...
def attention_backward(
    grad_out: _Array,
    q: _Array,
    k: _Array,
    v: _Array,
    out: _Array,
    lse: _Array,
    lo: _Array | None,
    hi: _Array | None,
    dense: _Array | None,
    bias: _Array | None,
    alibi: _Array | None,
    sinks: _Array | None,
    scale: float | None,
    softcap: float,
    dropout_p: float,
    seed: int,
    layout: str,
    dq: _Array | None,
    dk: _Array | None,
    dv: _Array | None,
    dbias: _Array | None,
    grad_lse: Any,
    threads: int,
) -> tuple[_Array, _Array, _Array, _Array | None]: ...
