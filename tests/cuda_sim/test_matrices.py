"""Matrix instructions on fragments as the PTX ISA lays them out."""

from __future__ import annotations

import ctypes
import struct

import ml_dtypes
import numpy as np
import pytest

from . import fragments
from .device_array import DeviceArray

pytestmark = pytest.mark.isa_once

KINDS = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


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


def run(simulator, kernel, *arrays):
    """A kernel of one warp; its last parameter is an output of four floats a lane."""
    given = [DeviceArray.from_numpy(simulator, np.ascontiguousarray(array)) for array in arrays]
    out = DeviceArray.empty(simulator, (32, 4), np.float32)
    simulator.launch(kernel, 1, 32, *given, out)
    return out.numpy()


@pytest.mark.parametrize(("depth", "name"), [(16, "bf16"), (16, "f16"), (8, "bf16")])
def test_mma(simulator, depth, name):
    a, b, c = operands(depth, KINDS[name])
    words = [
        np.ascontiguousarray(fragments.gather(matrix, places)).view(np.uint32)
        for matrix, places in ((a, fragments.mma_a(depth)), (b, fragments.mma_b(depth)))
    ]
    places = fragments.mma_c()
    d = run(simulator, f"mma_m16n8k{depth}_{name}", *words, fragments.gather(c, places))
    expected = a.astype(np.float32) @ b.astype(np.float32).T + c
    np.testing.assert_array_equal(fragments.scatter(d, places, (16, 8)), expected)


def test_mma_of_tf32(simulator):
    """Of which the 13 lowest bits do not count."""
    a, b, c = operands(8, np.float32)
    a = (a.view(np.uint32) | np.uint32(0x1FFF) * (a != 0)).view(np.float32)
    places = fragments.mma_c()
    words = fragments.gather(a, fragments.mma_a(8, 1)), fragments.gather(b, fragments.mma_b(8, 1))
    d = run(simulator, "mma_m16n8k8_tf32", *words, fragments.gather(c, places))
    cut = (a.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    np.testing.assert_array_equal(fragments.scatter(d, places, (16, 8)), cut @ b.T + c)


GIVEN_ROW = (7 * np.arange(32) + 3) % 32
LOADS = [(1, False), (2, False), (4, False), (1, True), (2, True), (4, True)]


def test_counters(simulator):
    """Rows next to each other have banks of their own, and so have these."""
    before = simulator.counters()
    test_ldmatrix(simulator)
    test_mma(simulator, 16, "bf16")
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


def product_of_tiles(simulator, image_a, image_b, descriptors, transposed):
    """D of 64 x 64 from two tiles as they lie in shared memory."""
    a, b = (DeviceArray.from_numpy(simulator, image) for image in (image_a, image_b))
    d = DeviceArray.empty(simulator, (128, 32), np.float32)
    params = struct.pack("3P8Q", a.pointer, b.pointer, d.pointer, *descriptors, *descriptors)
    kernel = "wgmma_mn_major" if transposed else "wgmma_k_major"
    simulator.launch(kernel, 1, 128, (ctypes.c_ubyte * len(params))(*params))
    return fragments.scatter(d.numpy(), fragments.wgmma_c(64), (64, 64))


def descriptor(start, leading, stride, mode):
    """A matrix descriptor; bytes, and 1, 2, 3 for a swizzle of 128, 64, 32 bytes."""
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | mode << 62


def test_wgmma_of_swizzled_rows(sm90):
    """The layout that TMA leaves: rows of 128 bytes, of which 16-byte pieces are exchanged."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-8, 9, (64, 64)).astype(ml_dtypes.bfloat16) for _ in range(2))
    pieces = np.arange(8)[None] ^ np.arange(64)[:, None] % 8
    images = [x.reshape(64, 8, 8)[np.arange(64)[:, None], pieces] for x in (a, b)]
    descriptors = [descriptor(32 * step, 16, 1024, 1) for step in range(4)]
    d = product_of_tiles(sm90, *images, descriptors, transposed=False)
    np.testing.assert_array_equal(d, a.astype(np.float32) @ b.astype(np.float32).T)
