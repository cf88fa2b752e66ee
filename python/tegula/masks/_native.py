"""The native kernels behind masks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core, cuda
from ._inputs import is_tensor


def scan(array: Any) -> tuple[Any, Any, bool]:
    """Find the runs of True in each row of (B, H, Lq, Lk), and whether any row has more than two.

    lo and hi as in `_runs`; with more than two, where the True begin and end. A row without True has
    lo = Lk and hi = 0. Axes of stride 0 have size 1 there.
    """
    if is_tensor(array):
        from . import _torch

        return _torch.scan(array)
    lo, hi, runs = _core.mask_scan(array)
    return lo, hi, runs > 2


def fill(out: Any, lo: Any, hi: Any, dense: Any) -> None:
    """Write a lowered mask into (Lq, Lk) or (B, H, Lq, Lk), arrays or tensors: bool, or floats 0 and -inf."""
    module = cuda.native_for(out.device.type) if is_tensor(out) else _core
    module.mask_fill(out[None, None] if out.ndim == 2 else out, lo, hi, dense)


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """`numpy.empty`, from 64 KiB on at a multiple of 64 bytes: whole cache lines are written faster."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < 2**16:
        return np.empty(shape, dtype)
    memory = np.empty(size + 63, np.uint8) if size < _core.pooled_bytes else _core.new_bytes(size)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + size].view(dtype).reshape(shape)
