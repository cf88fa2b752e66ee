"""The stand-in library with the package's kernels."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from cuda_sim.build import build
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
