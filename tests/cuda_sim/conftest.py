"""The simulator's own tests build small libraries, kept from one run to the next.

With TEGULA_TEST_GPU=real those of instructions (test_instructions.py, test_matrices.py) run on the machine's GPU.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from .build import CACHE, MissingTool, build
from .driver import Driver
from .hardware import Hardware
from .simulator import Simulator

KERNELS = Path(__file__).parent / "kernels"


@functools.cache
def driver_of(name: str, sources: tuple[Path, ...], arches: tuple[str, ...]) -> Driver:
    if os.environ.get("TEGULA_TEST_GPU") == "real":
        gpu = Hardware()
        if "90a" in arches and gpu.capability() != 90:
            pytest.skip("this GPU has none of Hopper's instructions")
        gpu.load(*sources)
        return gpu
    return Simulator(build(sources, CACHE.parent / "own" / f"{name}.so", arches=arches))


@pytest.fixture(scope="session")
def simulate():
    """A function that gives the simulator, or the GPU, with some kernels; skips where a compiler is missing."""

    def simulate(name: str, sources: Sequence[str | Path], arches: Sequence[str] = ("80",)) -> Driver:
        paths = tuple(KERNELS / source for source in sources)
        try:
            simulator = driver_of(name, paths, tuple(arches))
        except MissingTool as missing:
            pytest.skip(str(missing))
        simulator.reset()
        return simulator

    return simulate


def pytest_collection_modifyitems(items):
    """Nothing here is about an instruction set of the CPU."""
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.isa_once)
