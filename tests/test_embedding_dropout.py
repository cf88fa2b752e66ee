"""Dropout of the embedding, and the decisions themselves: `dropout_mask`."""

from __future__ import annotations

import numpy as np
import pytest
import tegula as tg
from support import DTYPES, draw, same_bits


def philox_words(seed, counter):
    """Philox 4x32-10 in Python integers (Salmon et al., SC 2011)."""
    c, k = list(counter), [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@pytest.mark.isa_once
def test_known_answers_of_philox():
    # The vectors that its authors publish (Random123, kat_vectors).
    assert philox_words(0, [0] * 4) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox_words(2**64 - 1, [0xFFFFFFFF] * 4) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    for i, word in enumerate(philox_words(0, [0] * 4)):
        assert tg.dropout_mask(0, word / 2**32, (4,))[i]
        assert not tg.dropout_mask(0, (word + 1) / 2**32, (4,))[i]


@pytest.mark.isa_once
@pytest.mark.parametrize("shape", [(11,), (3, 10), (2, 3, 7), (2, 2, 3, 5)])
@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1, np.uint64(12345)])
def test_mask_by_its_definition(shape, seed):
    p = 0.37
    got = tg.dropout_mask(seed, p, shape)
    flat = got.reshape(-1, *((1,) * (2 - len(shape)) + shape)[-2:])
    for lead, row, column in np.ndindex(flat.shape):
        word = philox_words(int(seed), [column // 4, row, lead, 0])[column % 4]
        assert flat[lead, row, column] == (word >= int(p * 2**32))


@pytest.mark.isa_once
def test_mask_at_the_ends():
    assert tg.dropout_mask(3, 0, (5, 9)).all()
    assert not tg.dropout_mask(3, 1, (5, 9)).any()
    assert tg.dropout_mask(3, 0.5, ()).shape == ()
    assert tg.dropout_mask(3, 0.5, 7).shape == (7,)
    assert tg.dropout_mask(3, 0.5, (0, 4)).shape == (0, 4) and tg.dropout_mask(3, 0.5, (4, 0)).shape == (4, 0)
    assert tg.dropout_mask(3, 0.5, [2, 3]).dtype == bool


@pytest.mark.isa_once
@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (TypeError, "seed.*NoneType", (None, 0.5, (2,))),
        (TypeError, "seed.*float", (1.0, 0.5, (2,))),
        (ValueError, "seed.*-1", (-1, 0.5, (2,))),
        (ValueError, "seed.*18446744073709551616", (2**64, 0.5, (2,))),
        (ValueError, r"p must lie in \[0, 1\], got 1.5", (0, 1.5, (2,))),
        (ValueError, "p .*nan", (0, float("nan"), (2,))),
        (ValueError, "shape.*-2", (0, 0.5, (3, -2))),
        (TypeError, "shape.*float", (0, 0.5, (3, 2.0))),
    ],
)
def test_bad_input(error, text, arguments):
    with pytest.raises(error, match=text):
        tg.dropout_mask(*arguments)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 3, 4, 5, 15, 16, 31, 32, 33, 63, 64, 65, 128, 130, 768])
def test_the_mask_is_the_embedding_s(dtype, dim):
    ids, weight = np.zeros((3, 5), int), np.ones((1, dim), dtype) if dtype != "bfloat16" else draw(
        np.random.default_rng(0), (1, dim), dtype
    ) * 0 + 1  # fmt: skip
    for p in (0.1, 0.5, 0.999):
        got = tg.embedding(ids, weight, dropout_p=p, seed=2**63 + 11)
        assert same_bits(got != 0, tg.dropout_mask(2**63 + 11, p, (3, 5, dim)))
        sums = np.float64 if dtype == "float64" else np.float32
        kept = np.asarray(sums(1) * sums(1 / (1 - p))).astype(weight.dtype)
        assert (got[got != 0] == kept).all()


def test_shapes_share_one_definition():
    weight = np.ones((1, 40), np.float32)
    for shape in ((), (6,), (2, 6), (3, 2, 6)):
        got = tg.embedding(np.zeros(shape, int), weight, dropout_p=0.5, seed=8)
        assert same_bits(got != 0, tg.dropout_mask(8, 0.5, shape + (40,)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_ends(dtype):
    weight = draw(np.random.default_rng(1), (5, 33), dtype)
    weight[2, 5] = np.nan
    ids = np.arange(5)
    zeros = tg.embedding(ids, weight, dropout_p=1, seed=0, scale=3.0, position_table="sinusoidal")
    assert same_bits(zeros, np.zeros((5, 33), weight.dtype))
    assert same_bits(tg.embedding(ids, weight, dropout_p=0.0), weight)
    assert same_bits(tg.embedding(ids, weight, dropout_p=0, seed=5), weight)
    with pytest.raises(IndexError, match="id 5"):
        tg.embedding(ids + 1, weight, dropout_p=1, seed=0)


def test_a_dropped_nan_is_zero():
    weight = np.full((1, 400), np.nan, np.float32)
    got = tg.embedding([0], weight, dropout_p=0.5, seed=0)
    assert same_bits(np.isnan(got), tg.dropout_mask(0, 0.5, (1, 400)))
    assert not got[~np.isnan(got)].any()


@pytest.mark.isa_once
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_share_of_dropped_elements(p):
    dropped = 1 - tg.dropout_mask(77, p, (64, 64, 256)).astype(np.float64)
    bound = 5 * np.sqrt(p * (1 - p))
    assert abs(dropped.mean() - p) < bound / np.sqrt(dropped.size)
    for axis in ((0, 1), (0, 2), (1, 2)):
        means = dropped.mean(axis=axis)
        assert np.abs(means - p).max() < bound / np.sqrt(dropped.size / means.size)
    other = 1 - tg.dropout_mask(78, p, (64, 64, 256)).astype(np.float64)
    assert abs(np.mean((dropped - p) * (other - p))) < bound / np.sqrt(dropped.size)
