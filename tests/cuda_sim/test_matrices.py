"""Matrix instructions on fragments as the PTX ISA lays them out."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from . import fragments
from .device_array import DeviceArray
from .matrices import MMA, mma, wgmma_of_swizzled_rows
from .simulator import Simulator

pytestmark = pytest.mark.isa_once


@pytest.fixture(scope="module")
def simulator(simulate):
    return simulate("matrices", ["matrices.cu"])


@pytest.fixture
def sm90(simulate):
    simulator = simulate("matrices_sm90", ["matrices_sm90.cu"], ["90a"])
    simulator.set(capability=90)
    yield simulator
    simulator.reset()


def operands(depth, kind):
    """Small numbers, of which products and sums are exact, and three matrices of them."""
    rng = np.random.default_rng(depth)
    a, b = (rng.integers(-8, 9, (rows, depth)).astype(kind) for rows in (16, 8))
    return a, b, rng.integers(-8, 9, (16, 8)).astype(np.float32)


@pytest.mark.parametrize("kernel", [name for name in MMA if "tf32" not in name])
def test_mma(simulator, kernel):
    a, b, c = operands(*MMA[kernel][:2])
    np.testing.assert_array_equal(mma(simulator, kernel, a, b, c), a.astype(np.float32) @ b.astype(np.float32).T + c)


def test_mma_of_tf32(simulator):
    """Of which the 13 lowest bits do not count."""
    a, b, c = operands(8, np.float32)
    a = (a.view(np.uint32) | np.uint32(0x1FFF) * (a != 0)).view(np.float32)
    cut = (a.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    np.testing.assert_array_equal(mma(simulator, "mma_m16n8k8_tf32", a, b, c), cut @ b.T + c)


GIVEN_ROW = (7 * np.arange(32) + 3) % 32
LOADS = [(1, False), (2, False), (4, False), (1, True), (2, True), (4, True)]


def test_counters(simulator):
    """Rows next to each other have banks of their own, and so have these."""
    if not isinstance(simulator, Simulator):
        pytest.skip("only the simulator counts")
    before = simulator.counters()
    test_ldmatrix(simulator)
    test_mma(simulator, "mma_m16n8k16_bf16")
    after = simulator.counters()
    counted = {name: getattr(after, name) - getattr(before, name) for name, _ in after._fields_}
    assert counted == dict(launches=2, blocks=2, mma=1, wgmma=0, ldmatrix=14, ldmatrix_conflicts=0)


def test_ldmatrix(simulator):
    rows = np.arange(256, dtype=np.uint16).reshape(32, 8)
    given, out = DeviceArray.from_numpy(simulator, rows), DeviceArray.empty(simulator, (32, 28), np.uint16)
    simulator.launch("load_matrices", 1, 32, given, out)
    found, start = out.numpy(), 0
    for matrices, transposed in LOADS:
        expected = fragments.gather(rows[GIVEN_ROW], fragments.ldmatrix(matrices, transposed))
        np.testing.assert_array_equal(found[:, start : start + 2 * matrices], expected)
        start += 2 * matrices


def test_movmatrix(simulator):
    matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
    places = fragments.ldmatrix(1, False)
    given = DeviceArray.from_numpy(simulator, fragments.gather(matrix, places))
    out = DeviceArray.empty(simulator, (32, 2), np.uint16)
    simulator.launch("transpose_matrix", 1, 32, given, out)
    np.testing.assert_array_equal(out.numpy(), fragments.gather(matrix.T, places))


def test_stmatrix(sm90):
    """Stores what ldmatrix would load."""
    values = np.arange(256, dtype=np.uint16).reshape(32, 8)
    given, out = DeviceArray.from_numpy(sm90, values), DeviceArray.empty(sm90, (2, 32, 8), np.uint16)
    sm90.launch("store_matrices", 1, 128, given, out)
    for rows, transposed in zip(out.numpy(), (False, True), strict=True):
        places = fragments.ldmatrix(4, transposed)
        np.testing.assert_array_equal(fragments.gather(rows[GIVEN_ROW], places), values)


def test_wgmma_of_swizzled_rows(sm90):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-8, 9, (64, 64)).astype(ml_dtypes.bfloat16) for _ in range(2))
    np.testing.assert_array_equal(wgmma_of_swizzled_rows(sm90, a, b), a.astype(np.float32) @ b.astype(np.float32).T)
