"""The native module. Its functions check what memory safety needs; the Python modules say more."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

compiler: str

# Instruction sets and threads.
def isa_name() -> str: ...
def set_isa(name: str) -> None: ...
def compiled_isas() -> list[str]: ...
def available_isas() -> list[str]: ...
def num_threads(requested: int = 0) -> int: ...
def set_num_threads(threads: int) -> None: ...

# Operations.
def positional_encoding(
    positions: NDArray[Any],
    dim: int,
    base: float,
    split: bool,
    inclusive: bool,
    dtype: Any,
    out: NDArray[Any] | None,
) -> NDArray[Any]: ...
def embedding(
    ids: NDArray[Any],
    weight: NDArray[Any],
    padding_idx: int,
    zero_pads: bool,
    ignore_id: int | None,
    scale: float,
    positions: NDArray[Any] | None,
    position_table: Any,
    sinusoidal: bool,
    segments: NDArray[Any] | None,
    segment_table: NDArray[Any] | None,
    dropout_p: float,
    seed: int,
    out: NDArray[Any] | None,
) -> NDArray[Any]: ...
def dropout_mask(seed: int, p: float, shape: Sequence[int]) -> NDArray[Any]: ...
def mask_fill(
    out: NDArray[Any],
    lo: NDArray[Any],
    hi: NDArray[Any],
    dense: NDArray[Any] | None = None,
    threads: int = 0,
) -> None: ...
def mask_scan(dense: NDArray[Any], lo: NDArray[Any], hi: NDArray[Any], threads: int = 0) -> bool: ...
def attention_sizes(
    q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], layout: str
) -> tuple[int, int, int, int, tuple[int, ...]]: ...
def attention(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    out: NDArray[Any] | None,
    lo: NDArray[Any] | None,
    hi: NDArray[Any] | None,
    dense: NDArray[Any] | None,
    bias: NDArray[Any] | None,
    alibi: NDArray[Any] | None,
    sinks: NDArray[Any] | None,
    scale: float | None,
    softcap: float,
    dropout_p: float,
    seed: int,
    layout: str,
    lse: bool | NDArray[Any],
    weights: bool | NDArray[Any],
    threads: int,
) -> Any: ...
def attention_backward(
    grad_out: NDArray[Any],
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    out: NDArray[Any],
    lse: NDArray[Any],
    lo: NDArray[Any] | None,
    hi: NDArray[Any] | None,
    dense: NDArray[Any] | None,
    bias: NDArray[Any] | None,
    alibi: NDArray[Any] | None,
    sinks: NDArray[Any] | None,
    scale: float | None,
    softcap: float,
    dropout_p: float,
    seed: int,
    layout: str,
    dq: NDArray[Any] | None,
    dk: NDArray[Any] | None,
    dv: NDArray[Any] | None,
    dbias: NDArray[Any] | None,
    threads: int,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any] | None]: ...
