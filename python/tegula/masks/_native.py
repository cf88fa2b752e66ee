"""The native kernels behind masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ._inputs import Bools, frozen


def scan(array: Bools) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], bool]:
    """(B, H, Lq, Lk) -> the first and one past the last True of each row, and whether any row has gaps.

    A row without True has lo = Lk and hi = 0.
    """
    k_len = array.shape[-1]
    any_true = array.any(axis=-1)
    lo = np.where(any_true, array.argmax(axis=-1), k_len) if k_len else np.zeros(any_true.shape)
    hi = np.where(any_true, k_len - array[..., ::-1].argmax(axis=-1), 0) if k_len else lo
    irregular = bool((any_true & (array.sum(axis=-1) != hi - lo)).any())
    return frozen(lo.astype(np.int32)), frozen(hi.astype(np.int32)), irregular


def fill(
    out: npt.NDArray[Any],
    lo: npt.NDArray[np.int32],
    hi: npt.NDArray[np.int32],
    dense: Bools | None,
) -> None:
    """Write a lowered mask into `out`, (Lq, Lk) or (B, H, Lq, Lk): bool, or floats 0 and -inf."""
    j = np.arange(out.shape[-1])
    visible = (j >= lo[..., None]) & (j < hi[..., None])
    if dense is not None:
        visible = visible & dense
    if out.ndim == 2:
        visible = visible[0, 0]
    out[...] = visible if out.dtype == np.bool_ else np.where(visible, 0, -np.inf)


def float_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """The dtype of an additive mask, or TypeError."""
    found = np.dtype(dtype)
    if found.name not in ("float64", "float32", "float16", "bfloat16"):
        raise TypeError(f"dtype must be float64, float32, float16 or bfloat16, got {found}")
    return found
