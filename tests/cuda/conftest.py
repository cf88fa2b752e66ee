"""The package on a simulated GPU: its own host code, and its kernels as nvcc compiles them, run on the CPU.

The driver is a stand-in (`tests/cuda_sim`), built once for all files here and kept in ``build/cuda_sim``. Each
file runs in a process of its own, see ``tests/test_cuda.py``: torch believes there is a GPU in it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "cuda")]

from gpu_arrays import REAL  # noqa: E402

if not REAL:
    import simulated_gpu

    os.environ["TEGULA_LIBCUDA"] = str(simulated_gpu.library())
    if importlib.util.find_spec("torch") is not None:
        import torch_device  # noqa: F401


@pytest.fixture(autouse=True)
def gpu():
    """The simulated GPU, as it is after a start; None where the machine's own is under test."""
    if REAL:
        yield None
        return
    simulator = simulated_gpu.simulator()
    simulator.reset()
    yield simulator
    simulator.reset()
