"""Positional encodings, dense masks and dropout's decisions on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import tegula as tg
from gpu_arrays import from_gpu, on_gpu
from support import DTYPES, numpy_dtype

POSITIONS = {
    "int64": np.array([0, 1, -7, 130, 2**24, -(2**24)]),
    "int8": np.arange(-3, 4, dtype=np.int8),
    "uint32": np.array([0, 7, 2**24], np.uint32),
    "float64": np.array([[0.5, -1e5], [np.nan, np.inf]]),
    "bfloat16": np.array([1.5, 2.0, 300.0]).astype(numpy_dtype("bfloat16")),
    "every other": np.arange(20)[::2],
    "none": np.zeros((2, 0), np.int32),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
@pytest.mark.parametrize(("dim", "options"), [
    (16, {}), (7, {"layout": "split"}), (7, {"spacing": "inclusive", "base": 50.0}), (1, {}), (0, {}),
])  # fmt: skip
def test_positional_encoding(dtype, positions, dim, options):
    got = from_gpu(tg.positional_encoding(on_gpu(positions), dim, dtype=dtype, **options))
    with np.errstate(invalid="ignore"):
        exact = reference.positional_encoding(positions.astype(np.float64), dim, **options)
    assert got.dtype == dtype
    assert got.shape == exact.shape
    nan = np.isnan(exact)
    assert np.array_equal(np.isnan(got), nan)
    # The frequencies of a position near 2**24 are not exact to more than this, in float64 either.
    unit = {"float64": 1e-8, "float32": 6.1e-8, "float16": 4.9e-4}[dtype]
    assert np.all(np.abs(got[~nan].astype(np.float64) - exact[~nan]) <= unit)


@pytest.mark.parametrize("dtype", ["bool", *DTYPES])
def test_a_lowered_mask_is_written_out(dtype):
    mask = tg.masks.causal(offset=[3, -2]) & tg.masks.padding([5, 9])
    lo, hi, dense = mask._lower(2, 1, 7, 9)
    out = on_gpu(np.zeros((2, 1, 7, 9), bool if dtype == "bool" else numpy_dtype(dtype)))
    tg.cuda.native().mask_fill(out, on_gpu(lo), on_gpu(hi), on_gpu(dense))
    shown = mask.dense(7, 9)
    expected = shown if dtype == "bool" else np.where(shown, 0, -np.inf)
    assert np.array_equal(from_gpu(out).astype(np.float64), expected.astype(np.float64))


def test_rows_of_two_runs_and_an_irregular_mask_are_written_out():
    rng = np.random.default_rng(0)
    for mask in (
        tg.masks.sliding(3, align="top_left", sinks=2),
        tg.masks.dense(rng.random((40, 70)) < 0.5) & tg.masks.padding([60]),
    ):
        lo, hi, dense = mask._lower(1, 1, 40, 70)
        out = on_gpu(np.zeros((1, 1, 40, 70), bool))
        tg.cuda.native().mask_fill(out, on_gpu(lo), on_gpu(hi), on_gpu(dense))
        assert np.array_equal(from_gpu(out)[0, 0], mask.dense(40, 70).reshape(40, 70))


def test_where_the_keys_of_a_row_begin_and_end():
    array = np.random.default_rng(0).random((2, 3, 9, 77)) < 0.1
    array[1, 2, 4] = False
    lo, hi = on_gpu(np.full((2, 3, 9), -5, np.int32)), on_gpu(np.full((2, 3, 9), -5, np.int32))
    tg.cuda.native().mask_scan(on_gpu(array), lo, hi)
    key = np.arange(77)
    assert np.array_equal(from_gpu(lo), np.where(array, key, 77).min(-1))
    assert np.array_equal(from_gpu(hi), np.where(array, key + 1, 0).max(-1))


@pytest.mark.parametrize("p", [0.25, 0.9, 1.0])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (6, 33), (4, 0)])
def test_dropout(p, shape):
    out = on_gpu(np.zeros(shape, bool))
    tg.cuda.native().dropout_mask(out, 2**63 + 9, p)
    assert np.array_equal(from_gpu(out), tg.dropout_mask(2**63 + 9, p, shape=shape))


def test_dropout_reads_its_seed_when_it_runs():
    out, seed = on_gpu(np.zeros((6, 33), bool)), on_gpu(np.array([-3]))
    tg.cuda.native().dropout_mask(out, seed, 0.5)
    assert np.array_equal(from_gpu(out), tg.dropout_mask(2**64 - 3, 0.5, shape=(6, 33)))
