"""The stand-in library with the package's kernels, and arrays in its memory."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import numpy as np
from cuda_sim.build import build
from cuda_sim.device_array import DeviceArray
from cuda_sim.simulator import Simulator

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "cuda_sim"


def kernels() -> list[Path]:
    """The package's CUDA sources."""
    return sorted((ROOT / "csrc").glob("**/*.cu"))


def arches_of(source: Path) -> tuple[str, ...]:
    """The architectures whose PTX is run: all kernels for sm_80, those written for sm_90a as well for it."""
    return ("90a",) if "wgmma" in source.name else ("80",)


@functools.cache
def library() -> Path:
    """Built where sources have changed since the last time."""
    jobs = len(os.sched_getaffinity(0))
    return build([(source, arches_of(source)) for source in kernels()], BUILD / "libcuda.so", jobs=jobs)


@functools.cache
def simulator() -> Simulator:
    return Simulator(library())


def on_gpu(array: object, device: int = 0) -> DeviceArray | None:
    """A copy of a NumPy array in the simulated device's memory; None stays None."""
    return None if array is None else DeviceArray.from_numpy(simulator(), np.asarray(array), device)


def strided_on_gpu(array: np.ndarray, device: int = 0) -> DeviceArray:
    """The same with the strides it has: what lies between its elements is the device's, too."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    copy = on_gpu(base, device)
    offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    view = np.ndarray(array.shape, array.dtype, copy.memory_view, offset, array.strides)
    return copy.view_of(view)


def from_gpu(result: object) -> object:
    """NumPy copies of device arrays, tuples of them included; every byte must have been written."""
    if isinstance(result, tuple):
        return tuple(map(from_gpu, result))
    return result.numpy()
