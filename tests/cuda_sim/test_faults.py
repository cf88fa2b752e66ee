"""Planted faults are reported with their kind and their line; kernels without a fault run."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from .cases import Case, cases_of
from .device_array import DeviceArray
from .driver import DriverError

pytestmark = pytest.mark.isa_once


class Table(ctypes.Structure):
    """The parameters of beyond_parameters."""

    _fields_ = (("out", ctypes.c_void_p), ("index", ctypes.c_int), ("values", ctypes.c_float * 30))


def named(cases):
    return [pytest.param(case, id=case.kernel) for case in cases]


@pytest.fixture(scope="module")
def simulator(simulate):
    return simulate("faults", ["bugs.cu", "copies.cu"])


def arguments(simulator, case: Case):
    """An output that nobody has written, but for the counters of last_block kernels."""
    out = DeviceArray.empty(simulator, case.floats, np.float32)
    if case.kernel in ("atomics_of_blocks", "last_block_adds_up", "last_block_without_fence"):
        out = DeviceArray.from_numpy(simulator, np.zeros(case.floats, np.float32))
    if case.kernel == "beyond_parameters":
        return (Table(out.pointer, 31),), out
    if case.file == "copies.cu":
        return (DeviceArray.from_numpy(simulator, np.arange(64, dtype=np.float32)), out), out
    return (out,), out


def error_of(simulator, case: Case, *given) -> str:
    """What a launch reports; empty where it ran."""
    try:
        simulator.launch(case.kernel, case.blocks, case.threads, *given)
    except DriverError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("case", named([*cases_of("bugs.cu"), *cases_of("copies.cu")]))
def test_fault(simulator, case, seed):
    """Whatever the order in which threads run."""
    simulator.set(seed=seed)
    given, out = arguments(simulator, case)
    message = error_of(simulator, case, *given)
    if case.errors:
        assert case.allows(message), message
    else:
        assert message == ""
        out.numpy()


def test_fault_names_its_thread(simulator):
    out = DeviceArray.empty(simulator, 64, np.float32)
    with pytest.raises(DriverError, match=r"bugs\.cu:\d+, block \(0,0,0\) thread \(9,0,0\)"):
        simulator.launch("uninitialised_shared", 1, 64, out)
    with pytest.raises(DriverError, match=r"block \(0,0,0\) thread \(\d+,0,0\)"):
        simulator.launch("race_of_warps", 1, 64, out)
