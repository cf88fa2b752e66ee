"""NumPy arrays on the GPU under test, and back.

That is the simulated one, whose arrays belong to a library of its own, as CuPy's; or with TEGULA_TEST_GPU=real
the machine's, by way of torch.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

REAL = os.environ.get("TEGULA_TEST_GPU") == "real"

if REAL:
    import ml_dtypes
    import torch

    def on_gpu(array: Any, device: int = 0) -> Any:
        """A copy with the strides that it has; None stays None."""
        if array is None:
            return None
        array = np.asarray(array)
        base, offset = whole(array)
        flat = torch.from_numpy(base.copy()).to(f"cuda:{device}").view(torch_dtype(array.dtype))
        strides = [step // array.itemsize for step in array.strides]
        # torch knows no negative strides: such arrays are made contiguous.
        if any(step < 0 for step in strides):
            return on_gpu(np.ascontiguousarray(array), device)
        return flat.as_strided(array.shape, strides, offset // array.itemsize)

    def torch_dtype(dtype: np.dtype) -> torch.dtype:
        return getattr(torch, np.dtype(dtype).name)

    def from_gpu(result: Any) -> Any:
        """NumPy copies of device arrays, tuples of them included."""
        if isinstance(result, tuple):
            return tuple(map(from_gpu, result))
        result = result.detach().cpu()
        if result.dtype == torch.bfloat16:
            return result.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return result.numpy()

else:
    import simulated_gpu
    from cuda_sim.device_array import DeviceArray

    def on_gpu(array: Any, device: int = 0) -> Any:
        """A copy with the strides that it has; None stays None."""
        if array is None:
            return None
        array = np.asarray(array)
        base, offset = whole(array)
        copy = DeviceArray.from_numpy(simulated_gpu.simulator(), base, device)
        return copy.view_of(np.ndarray(array.shape, array.dtype, copy.memory_view, offset, array.strides))

    def from_gpu(result: Any) -> Any:
        """NumPy copies of device arrays, tuples of them included; every byte must have been written."""
        if isinstance(result, tuple):
            return tuple(map(from_gpu, result))
        return result.numpy()


def whole(array: np.ndarray) -> tuple[np.ndarray, int]:
    """All bytes that an array's elements lie among, and where its first element lies there."""
    item = array.itemsize
    reach = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)] if array.size else []
    low = sum(step for step in reach if step < 0)
    size = sum(abs(step) for step in reach) + item if array.size else 0
    first = array.__array_interface__["data"][0] + low
    if size == 0:
        return np.zeros(0, np.uint8), 0
    # NumPy takes the bytes where they lie; `array` keeps them alive.
    holder = type("Bytes", (), {"__array_interface__": {
        "shape": (size,), "typestr": "|u1", "data": (first, True), "version": 3,
    }})()  # fmt: skip
    return np.asarray(holder).copy(), -low
