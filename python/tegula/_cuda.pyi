"""The operations on GPUs, as `_core` has them; and what only a GPU has. Arrays lie on one device."""

from collections.abc import Callable
from typing import Any

toolkit: str  # the version of CUDA it was built with

attention: Callable[..., Any]
attention_backward: Callable[..., Any]
attention_sizes: Callable[..., Any]
embedding: Callable[..., Any]
positional_encoding: Callable[..., Any]
mask_fill: Callable[..., None]

# `out` is the caller's, and added to.
embedding_backward: Callable[..., None]
embedding_backward_sparse: Callable[..., tuple[Any, Any]]

def mask_scan(dense: Any, lo: Any, hi: Any) -> None: ...
def dropout_mask(out: Any, seed: Any, p: float) -> None: ...
def devices() -> list[tuple[str, tuple[int, int], int]]: ...
def warm_up(device: int) -> None: ...
def raise_id_fault(device: int) -> None: ...
def set_id_checks(first: bool) -> None: ...
