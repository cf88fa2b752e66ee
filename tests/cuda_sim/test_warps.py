"""Shuffles, votes, reductions and atomics."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest

from .device_array import DeviceArray

pytestmark = pytest.mark.isa_once

LANE = np.arange(32)


@pytest.fixture(scope="module")
def simulator(simulate):
    return simulate("warps", ["warps.cu"])


@pytest.fixture
def words():
    return np.random.default_rng(5).integers(0, 2**32, 192, np.uint64).astype(np.uint32)


def run(simulator, kernel, rows, *arrays):
    """A kernel of one warp that writes rows of one word a lane."""
    given = [DeviceArray.from_numpy(simulator, array) for array in arrays]
    out = DeviceArray.empty(simulator, (rows, 32), np.uint32)
    simulator.launch(kernel, 1, 32, *given, out)
    return out.numpy()


def test_shuffles(simulator, words):
    """A lane outside its segment gets its own value."""
    x, asked = words[:32], np.random.default_rng(6).integers(0, 32, 32).astype(np.int32)
    found = run(simulator, "shuffles", 9, x, asked)

    def taken(source, inside):
        return x[np.where(inside, source, LANE)]

    first = LANE // 16 * 16
    expected = [
        x[asked],
        x[LANE // 8 * 8 + asked % 8],
        taken(LANE - 3, LANE >= 3),
        taken(LANE - 5, first <= LANE - 5),
        taken(LANE + 3, LANE + 3 < 32),
        taken(LANE + 5, LANE + 5 < LANE // 8 * 8 + 8),
        x[LANE ^ 9],
        taken(LANE ^ 6, (LANE ^ 6) // 4 <= LANE // 4),
        x[LANE ^ 15],
    ]
    np.testing.assert_array_equal(found, expected)


def bits(lanes):
    """A mask of the lanes that are true."""
    return np.uint32(sum(1 << lane for lane in np.flatnonzero(lanes)))


def test_votes(simulator, words):
    x, some = words[:32], 0x0FF0F00F
    found = run(simulator, "votes", 12, x)
    inside = np.array([some >> lane & 1 for lane in range(32)], bool)
    expected = [
        bits(x & 1),
        (x > 4000000000).any(),
        (x < 4000000000).all(),
        np.array([bits(x & 3 == value) for value in x & 3]),
        0xFFFFFFFF,
        1,
        x.sum(dtype=np.uint32),
        x.min(),
        x.view(np.int32).max().view(np.uint32),
        np.bitwise_xor.reduce(x),
        np.where(inside, bits((x & 2 != 0) & inside), 0),
        np.where(inside, np.bitwise_and.reduce(x[inside]), 0),
    ]
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(row, np.broadcast_to(wanted, 32))


def test_votes_of_blocks(simulator, words):
    given, out = DeviceArray.from_numpy(simulator, words), DeviceArray.empty(simulator, (2, 96, 3), np.uint32)
    simulator.launch("block_votes", 2, 96, given, out)
    for block, found in zip(words.reshape(2, 96), out.numpy(), strict=True):
        wanted = [(block & 1).sum(), (block > 4000000000).any(), (block < 4000000000).all()]
        np.testing.assert_array_equal(np.stack([found[:, 0], found[:, 1] != 0, found[:, 2] != 0], -1), [wanted] * 96)


@pytest.mark.parametrize("seed", [1, 2])
def test_atomics(simulator, words, seed):
    simulator.set(seed=seed)
    start = np.zeros(32, np.uint32)
    start[[1, 3]] = 0xFFFFFFFF
    counters, sums = (
        DeviceArray.from_numpy(simulator, start),
        DeviceArray.from_numpy(simulator, np.zeros(1, np.float32)),
    )
    simulator.launch("atomics", 3, 64, DeviceArray.from_numpy(simulator, words), counters, sums)

    def expected(x):
        reduced = [function.reduce(x) for function in (np.minimum, np.maximum, np.bitwise_and, np.bitwise_or)]
        down = functools.reduce(lambda value, _: value - 1 if 0 < value <= 5 else 5, x, 0)
        return np.array(
            [x.sum(dtype=np.uint32), *reduced, np.bitwise_xor.reduce(x), len(x) % 6, down, 77, 88], np.uint32
        )

    found = counters.numpy()
    np.testing.assert_array_equal(found[:10], expected(words))
    np.testing.assert_array_equal(found[16:26], sum(map(expected, words.reshape(3, 64)), np.uint32(0)))
    assert sums.numpy() == 96


def test_atomics_of_halves(simulate):
    """Sums of numbers that every type holds; sm_90 has instructions for all of them."""
    simulator = simulate("warps_sm90", ["warps.cu"], ["90a"])
    kinds = ((2, np.float16), (2, ml_dtypes.bfloat16), (1, np.float64))
    with simulator.pretending(capability=90):
        arrays = [DeviceArray.from_numpy(simulator, np.zeros(size, kind)) for size, kind in kinds]
        simulator.launch("atomics_of_halves", 2, 64, *arrays)
    found = [array.numpy().astype(float).tolist() for array in arrays]
    assert found == [[128, 64], [128, 64], [32]]
