"""Planted faults of kernels with TMA, mbarriers and wgmma."""

from __future__ import annotations

import ctypes
import struct

import ml_dtypes
import numpy as np
import pytest

from .cases import cases_of
from .device_array import DeviceArray
from .driver import DriverError

pytestmark = pytest.mark.isa_once

STEPS = 5
SHARED_BYTES = 4 * 8192 + 1024


@pytest.fixture(scope="module")
def sm90(simulate):
    return simulate("faults_sm90", ["hopper.cu"], ["90a"])


@pytest.fixture
def simulator(sm90):
    sm90.reset()
    sm90.set(capability=90)
    yield sm90
    sm90.reset()


class Tiles:
    """The operands of one launch."""

    def __init__(self, simulator):
        rng = np.random.default_rng(0)
        a, b = (rng.standard_normal((64, 64 * STEPS)).astype(ml_dtypes.bfloat16) for _ in range(2))
        self.expected = a.astype(np.float32) @ b.astype(np.float32).T
        self.arrays = [DeviceArray.from_numpy(simulator, x, read_only=True) for x in (a, b)]
        self.sent = DeviceArray.empty(simulator, (64, 64), np.uint16)
        self.product = DeviceArray.empty(simulator, (64, 64), np.float32)
        maps = [simulator.tensor_map(x, (64, 64)) for x in (*self.arrays, self.sent)]
        params = b"".join(maps) + struct.pack("Pi", self.product.pointer, STEPS)
        self.params = (ctypes.c_ubyte * 448)(*params)


def test_pipeline(simulator):
    tiles = Tiles(simulator)
    simulator.launch("pipeline_right", 1, 160, tiles.params, shared_bytes=SHARED_BYTES)
    np.testing.assert_allclose(tiles.product.numpy(), tiles.expected, rtol=1e-4, atol=1e-4)


def test_product_of_stored_tiles(simulator):
    tiles = Tiles(simulator)
    simulator.launch("stored_right", 1, 160, tiles.params, shared_bytes=SHARED_BYTES)
    assert (tiles.product.numpy() == 64).all()


def test_tile_is_sent_swizzled_back(simulator):
    """The kernel stores row numbers into rows of shared memory, which swizzling does not leave."""
    tiles = Tiles(simulator)
    simulator.launch("sends_right", 1, 160, tiles.params, shared_bytes=SHARED_BYTES)
    assert (tiles.sent.numpy() == np.arange(64)[:, None]).all()


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("case", [pytest.param(case, id=case.kernel) for case in cases_of("hopper.cu") if case.errors])
def test_fault(simulator, case, seed):
    simulator.set(seed=seed)
    tiles = Tiles(simulator)
    with pytest.raises(DriverError) as caught:
        simulator.launch(case.kernel, 1, 160, tiles.params, shared_bytes=SHARED_BYTES)
    assert case.names(str(caught.value)), str(caught.value)
