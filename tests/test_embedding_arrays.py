"""Embedding of any array: strides, byte order, memory maps, and an output of any strides."""

from __future__ import annotations

import numpy as np
import pytest
import tegula as tg
from support import DTYPES, draw, numpy_dtype, poisoned, same_bits

VIEWS = {
    "rows_reversed": lambda a: a[::-1],
    "rows_skipped": lambda a: a[::3],
    "columns_reversed": lambda a: a[:, ::-1],
    "columns_skipped": lambda a: a[:, 1::2],
    "transposed": lambda a: a.T,
    "part": lambda a: a[2:9, 5:22],
    "one_column": lambda a: a[:, 3:4],
    "one_row_repeated": lambda a: np.broadcast_to(a[4], (9, a.shape[1])),
    "one_number_repeated": lambda a: np.broadcast_to(a[:, :1], (a.shape[0], 40)),
    "fortran": np.asfortranarray,
    "misaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), np.int8)[1:].view(a.dtype).reshape(a.shape),
    "read_only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", VIEWS)
def test_C57_C80_weight_and_tables_of_any_strides(dtype, view):
    rng = np.random.default_rng(0)
    weight = VIEWS[view](draw(rng, (21, 70), dtype))
    plain = np.array(weight)
    rows = weight.shape[0]
    ids, positions = rng.integers(0, rows, (4, 5)), rng.integers(0, rows, (4, 5))
    assert same_bits(tg.embedding(ids, weight), plain[ids])
    for other in DTYPES:
        table = VIEWS[view](draw(rng, (21, 70), other))
        options = {"positions": positions, "segments": ids, "scale": 1.5}
        got = tg.embedding(ids, weight, position_table=table, segment_table=table[:rows], **options)
        expected = tg.embedding(
            ids, plain, position_table=np.array(table), segment_table=np.array(table[:rows]), **options
        )
        assert same_bits(got, expected)
    assert same_bits(np.array(weight), plain)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_C80_big_endian(dtype):
    weight = draw(np.random.default_rng(1), (9, 20), dtype)
    swapped = weight.astype(weight.dtype.newbyteorder(">"))
    got = tg.embedding([[8, 0, 3]], swapped, position_table=swapped, segments=[1], segment_table=swapped)
    expected = tg.embedding([[8, 0, 3]], weight, position_table=weight, segments=[1], segment_table=weight)
    assert got.dtype == weight.dtype and got.dtype.isnative
    assert same_bits(got, expected)


@pytest.mark.parametrize("dtype", ["int16", "int64"])
def test_C80_memory_maps(dtype, tmp_path):
    ids = np.memmap(tmp_path / "ids", dtype, "w+", shape=(3, 4))
    ids[:] = np.arange(12).reshape(3, 4)
    weight = np.memmap(tmp_path / "weight", np.float32, "w+", shape=(12, 6))
    weight[:] = np.arange(72).reshape(12, 6)
    got = tg.embedding(ids, weight)
    assert same_bits(np.asarray(got), np.asarray(weight)[np.asarray(ids)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [5, 16, 33])
def test_out_of_any_strides(dtype, dim):
    rng = np.random.default_rng(2)
    ids, weight = rng.integers(0, 9, (3, 4)), draw(rng, (9, dim), dtype)
    options = {"scale": 2.0, "position_table": "sinusoidal", "padding_idx": 1, "pad_output": "zero"}
    expected = tg.embedding(ids, weight, **options)
    for make in (
        lambda a: a[:3, :4, :dim],
        lambda a: a[2::-1, 3::-1, dim - 1 :: -1],
        lambda a: a[:3, 1:8:2, 1::2][..., :dim],
        lambda a: a.swapaxes(0, 1)[:3, :4, :dim],
    ):
        base = poisoned((8, 8, 2 * dim + 1), numpy_dtype(dtype))
        out = make(base)
        assert tg.embedding(ids, weight, out=out, **options) is out
        assert same_bits(np.ascontiguousarray(out), expected)
        assert np.isnan(base.astype(np.float32)).sum() == base.size - out.size  # nothing beside it


def test_inputs_that_broadcast():
    rng = np.random.default_rng(3)
    ids, weight, table = rng.integers(0, 9, (2, 3, 4)), draw(rng, (9, 6)), draw(rng, (9, 6))
    for shape in ((), (1,), (4,), (3, 4), (3, 1), (1, 3, 4), (2, 1, 1), (2, 3, 4)):
        small = rng.integers(0, 9, shape)
        full = np.ascontiguousarray(np.broadcast_to(small, ids.shape))
        got = tg.embedding(ids, weight, positions=small, position_table=table, segments=small, segment_table=table)
        assert same_bits(
            got, tg.embedding(ids, weight, positions=full, position_table=table, segments=full, segment_table=table)
        )


def test_inputs_are_left_as_they_were():
    rng = np.random.default_rng(4)
    arrays = [rng.integers(0, 9, (2, 5)), draw(rng, (9, 8)), draw(rng, (9, 8), "float16")]
    before = [a.copy() for a in arrays]
    ids, weight, table = arrays
    tg.embedding(ids, weight, positions=ids, position_table=table, segments=ids, segment_table=table, scale=3.0)
    assert all(same_bits(a, b) for a, b in zip(arrays, before, strict=True))


def test_out_that_shares_memory_with_an_input():
    weight, ids = draw(np.random.default_rng(5), (9, 9)), np.arange(9)
    before = weight.copy()
    with pytest.raises(ValueError, match="out shares memory with weight"):
        tg.embedding(ids, weight, out=weight)
    with pytest.raises(ValueError, match="out shares memory with position_table"):
        tg.embedding(ids, before, position_table=weight, out=weight[::-1])
    assert same_bits(weight, before)
    halves = poisoned((9, 18), np.float32)  # side by side is not sharing
    halves[:, :9] = weight
    assert same_bits(np.ascontiguousarray(tg.embedding(ids[::-1], halves[:, :9], out=halves[:, 9:])), weight[::-1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_stay_in_their_row(dtype):
    weight = draw(np.random.default_rng(6), (4, 30), dtype)
    weight[1, 7], weight[2, 3], weight[3, 0] = np.nan, np.inf, -0.0
    assert same_bits(tg.embedding([3, 1, 0, 2], weight), weight[[3, 1, 0, 2]])
    got = tg.embedding([0, 1, 0, 2], weight, position_table="sinusoidal").astype(np.float32)
    assert np.isfinite(got[[0, 2]]).all()
    assert np.isnan(got[1]).sum() == 1 and np.isinf(got[3]).sum() == 1
