"""Embedding against its twin in float64: what the tutorials show, and the failures of other libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
import tegula as tg
from support import DTYPES, draw, numpy_dtype, run_python, same_bits
from tolerances import arithmetic_of, assert_close


def plain_embedding(ids, weight, *, scale=1.0, added=(), keep=None, dropout_p=0.0, sums=None):
    """The sums in the type that the contract names, each step rounded, then the result rounded to storage."""
    sums = sums or arithmetic_of(weight.dtype)
    result = weight[ids].astype(sums) * sums(scale)
    for rows in added:
        result = result + rows.astype(sums)
    if keep is not None:
        result = np.where(keep, result * sums(1 / (1 - dropout_p)), sums(0))
    return result if sums is np.longdouble else result.astype(weight.dtype)


# ---- what the tutorials show


@pytest.mark.parametrize("dtype", DTYPES)
def test_T1_1_rows_of_the_table(dtype):
    weight = draw(np.random.default_rng(0), (1000, 16), dtype)
    weight[0] = 0
    got = tg.embedding([[1, 25, 102], [0, 0, 1]], weight, padding_idx=0)
    assert same_bits(got, weight[[[1, 25, 102], [0, 0, 1]]])
    assert not got[1, :2].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_T1_4_token_scale_position_dropout(dtype):
    rng = np.random.default_rng(1)
    ids, weight = rng.integers(0, 50, (2, 10)), draw(rng, (50, 32), dtype)
    options = {"scale": math.sqrt(32), "position_table": "sinusoidal", "dropout_p": 0.1}
    keep = tg.dropout_mask(42, 0.1, (2, 10, 32))
    got = tg.embedding(ids, weight, seed=42, **options)
    exact = reference.embedding(ids, weight, keep=keep, **options)
    table = reference.positional_encoding(10, 32)
    plain = plain_embedding(ids, weight, scale=math.sqrt(32), added=[table], keep=keep, dropout_p=0.1)
    assert_close(got, exact, plain)


def test_T2_1_T2_2_ragged_batch_without_padding_idx():
    sentences = [[6, 4], [6, 4, 1, 7]]
    ids = [sentence + [0] * (4 - len(sentence)) for sentence in sentences]
    assert ids == [[6, 4, 0, 0], [6, 4, 1, 7]]
    weight = draw(np.random.default_rng(2), (9, 6))
    got = tg.embedding(ids, weight)
    assert got.shape == (2, 4, 6)
    assert same_bits(got[0, 2], weight[0])


def test_T2_4_explicit_position_ids():
    weight = np.zeros((9, 6), np.float32)
    table = tg.positional_encoding(4, 6)
    positions = np.broadcast_to(np.arange(4), (2, 4))
    got = tg.embedding(np.zeros((2, 4), int), weight, positions=positions, position_table=table)
    assert got.shape == (2, 4, 6)
    assert same_bits(got[0], table) and same_bits(got[1], table)


def test_T3_1_BERT_sizes():
    rng = np.random.default_rng(3)
    weight = rng.random((30522, 768), np.float32)
    assert weight.size == 23_440_896
    ids = rng.integers(0, 30522, (32, 512))
    got = tg.embedding(ids, weight, scale=2.0)
    assert got.shape == (32, 512, 768)
    assert same_bits(got, weight[ids] * np.float32(2))


def test_T4_1_T4_2_embedding_and_position_layers():
    rng = np.random.default_rng(4)
    weight, ids = draw(rng, (100, 512)), rng.integers(0, 100, (2, 16))
    table = reference.positional_encoding(5000, 512).astype(np.float32)
    expected = weight[ids] * np.float32(math.sqrt(512)) + table[:16]
    got = tg.embedding(ids, weight, scale=math.sqrt(512), position_table=table)
    np.testing.assert_allclose(got, expected, rtol=3e-7, atol=3e-6)
    assert same_bits(got, tg.embedding(ids, weight, scale=math.sqrt(512), position_table="sinusoidal"))


# ---- padding


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padding_idx", [0, -5])
def test_C01_C02_a_pad_row_that_is_not_zero(dtype, padding_idx):
    weight = draw(np.random.default_rng(5), (5, 40), dtype)
    weight[0, 3] = np.nan
    rows = tg.embedding([0, 1], weight, padding_idx=padding_idx, pad_output="row")
    assert same_bits(rows, weight[:2])
    zeros = tg.embedding([0, 1], weight, padding_idx=padding_idx, pad_output="zero")
    assert same_bits(zeros[0], np.zeros(40, weight.dtype)) and same_bits(zeros[1], weight[1])


def test_zero_pads_have_neither_position_nor_segment():
    weight = draw(np.random.default_rng(6), (5, 20))
    got = tg.embedding(
        [[4, 1, 4]], weight, padding_idx=4, pad_output="zero", scale=3.0, position_table="sinusoidal",
        segments=[[1, 0, 1]], segment_table=np.ones((2, 20)), dropout_p=0.5, seed=1,
    )  # fmt: skip
    assert same_bits(got[0, [0, 2]], np.zeros((2, 20), np.float32))


def test_C08_negative_ids_and_padding_idx():
    weight = draw(np.random.default_rng(7), (5, 4))
    with pytest.raises(IndexError, match=r"id -1 at ids\[0\] is outside \[0, 5\)"):
        tg.embedding([-1], weight)
    with pytest.raises(IndexError, match=r"id -1 at ids\[1\]"):
        tg.embedding([0, -1], weight, padding_idx=-1)
    ignored = tg.embedding([-1, 2], weight, ignore_id=-1)
    assert not ignored[0].any() and same_bits(ignored[1], weight[2])
    for padding_idx in (-6, 5, 100):
        with pytest.raises(ValueError, match=rf"padding_idx {padding_idx} is outside \[-5, 5\)"):
            tg.embedding([0], weight, padding_idx=padding_idx)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_ignored_ids_yield_zeros(dtype):
    weight = draw(np.random.default_rng(8), (5, 33))
    ids = np.array([[-100, 2, -100], [4, -100, 0]], dtype)
    got = tg.embedding(ids, weight, ignore_id=-100, position_table="sinusoidal")
    expected = reference.embedding(ids, weight, ignore_id=-100, position_table="sinusoidal")
    assert not got[ids == -100].any()
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_ids_never_wrap_into_an_ignored_one():
    weight = draw(np.random.default_rng(8), (5, 3))
    wrapped = np.array([1, 2**64 - 100], np.uint64)
    with pytest.raises(IndexError, match=rf"id {2**64 - 100} at ids\[1\] is outside \[0, 5\)"):
        tg.embedding(wrapped, weight, ignore_id=-100)
    assert not tg.embedding(np.array([255], np.uint8), weight, ignore_id=255).any()
    with pytest.raises(IndexError, match="id 255"):
        tg.embedding(np.array([255], np.uint8), weight, ignore_id=-1)


def test_C09_C18_no_padding_unless_asked_for():
    weight = draw(np.random.default_rng(9), (5, 4))
    ids = np.array([[0, 1], [4, 0]])
    assert same_bits(tg.embedding(ids, weight, padding_idx=None), weight[ids])
    assert same_bits(tg.embedding(ids, weight, pad_output="zero"), weight[ids])


# ---- ids and tables


def test_C10_the_message_says_what_and_where():
    ids = np.zeros((4, 9), int)
    ids[2, 7] = 99999
    with pytest.raises(IndexError, match=r"id 99999 at ids\[2, 7\] is outside \[0, 30522\)"):
        tg.embedding(ids, np.zeros((30522, 2), np.float32))
    with pytest.raises(IndexError, match=r"^id 7 at ids is outside \[0, 5\)"):
        tg.embedding(7, np.zeros((5, 2), np.float32))


def test_C10_the_first_of_many_is_named(threads):
    ids = np.zeros((3, 100_000), np.int32)
    ids[1, 70_000] = -5
    ids[2, 3] = 12
    for n in (1, 3):
        tg.set_num_threads(n)
        with pytest.raises(IndexError, match=r"id -5 at ids\[1, 70000\]"):
            tg.embedding(ids, np.zeros((5, 2), np.float32))


def test_C10_positions_and_segments():
    weight, table = np.zeros((5, 2), np.float32), np.zeros((4, 2), np.float32)
    ids = np.zeros((2, 3), int)
    with pytest.raises(IndexError, match=r"position 4 at positions\[1, 2\] is outside \[0, 4\)"):
        tg.embedding(ids, weight, positions=[[0, 1, 2], [0, 1, 4]], position_table=table)
    with pytest.raises(IndexError, match=r"position -1 at positions\[0\] is outside \[0, 4\)"):
        tg.embedding(ids, weight, positions=[-1, 0, 1], position_table=table)
    with pytest.raises(IndexError, match=r"segment 4 at segments\[1, 0\] is outside \[0, 4\)"):
        tg.embedding(ids, weight, segments=[[0], [4]], segment_table=table)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_C14_every_integer_type(dtype):
    rng = np.random.default_rng(10)
    weight, ids = draw(rng, (120, 20)), rng.integers(0, 120, (3, 7))
    typed = ids.astype(dtype)
    expected = tg.embedding(ids, weight, positions=ids, position_table=weight, segments=ids, segment_table=weight)
    got = tg.embedding(typed, weight, positions=typed, position_table=weight, segments=typed, segment_table=weight)
    assert same_bits(got, expected)
    for strided in (
        typed[::-1, ::2],
        typed.T,
        np.broadcast_to(typed[:1], (4, 7)),
        typed.astype(typed.dtype.newbyteorder(">")),
    ):
        assert same_bits(tg.embedding(strided, weight), weight[strided.astype(np.int64)])


@pytest.mark.parametrize("ids", [np.zeros(2, bool), np.zeros(2), np.zeros(2, np.float16), np.array([1, None])])
def test_C14_other_kinds_of_ids(ids):
    with pytest.raises(TypeError, match=f"ids.*{ids.dtype}"):
        tg.embedding(ids, np.zeros((5, 2), np.float32))


@pytest.mark.isa_once
def test_C15_offsets_beyond_32_bits(tmp_path):
    rows, dim = 2**15 + 1, 2**16
    weight = np.memmap(tmp_path / "sparse", np.float16, "w+", shape=(rows, dim))  # 4.3 GB of holes
    weight[-1] = np.arange(dim) % 1000
    assert same_bits(tg.embedding(np.array([rows - 1], np.int32), weight), np.asarray(weight[-1:]))
    assert not tg.embedding(np.array([0, rows // 2], np.uint16), weight).any()


def test_offsets_beyond_32_bits_by_strides():
    row = draw(np.random.default_rng(11), (8,))
    huge = np.lib.stride_tricks.as_strided(row, (2**40, 8), (0, 4))
    ids = np.array([2**40 - 1, 0, 2**35])
    assert same_bits(tg.embedding(ids, huge), np.stack([row] * 3))
    far = np.array([2**40 - 1])
    assert same_bits(tg.embedding([0], row[None], positions=far, position_table=huge)[0], row + row)


def test_C24_a_sequence_longer_than_the_table():
    weight, table = np.zeros((5, 2), np.float32), np.zeros((4, 2), np.float32)
    with pytest.raises(ValueError, match=r"length 5 .*only 4 rows"):
        tg.embedding(np.zeros((2, 5), int), weight, position_table=table)
    assert tg.embedding(np.zeros((2, 4), int), weight, position_table=table).shape == (2, 4, 2)
    assert tg.embedding(np.zeros((2, 5), int), weight, position_table="sinusoidal").shape == (2, 5, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("table", ["sinusoidal", "rows"])
def test_C31_left_padding_does_not_shift_positions(dtype, table):
    rng = np.random.default_rng(12)
    weight = draw(rng, (9, 48), dtype)
    table = draw(rng, (10, 48), dtype) if table == "rows" else table
    options = {"scale": 7.0, "position_table": table}
    keep = np.array([[False, False, True, True, True]])
    positions = np.maximum(np.cumsum(keep, axis=-1) - 1, 0)
    padded = tg.embedding([[0, 0, 5, 6, 7]], weight, positions=positions, **options)
    assert same_bits(padded[:, 2:], tg.embedding([[5, 6, 7]], weight, **options))


# ---- an error leaves nothing behind


@pytest.mark.isa_once
def test_C11_the_process_lives_on():
    run_python(
        """
        import numpy as np, tegula as tg
        weight = np.arange(10, dtype=np.float32).reshape(5, 2)
        for ids in ([10**17], [2**63 - 1], [-2**63], [5], [[0, 1], [2, -1]]):
            try:
                tg.embedding(ids, weight)
            except IndexError:
                pass
            else:
                raise SystemExit("no error")
        assert (tg.embedding([4, 0], weight) == weight[[4, 0]]).all()
        """
    )


def test_nothing_is_written_after_an_error():
    out = np.full((70_000, 4), 7, np.float32)
    ids = np.zeros(70_000, int)
    ids[-1] = 5
    weight = np.zeros((5, 4), np.float32)
    with pytest.raises(IndexError):
        tg.embedding(ids, weight, out=out)
    with pytest.raises(IndexError):
        tg.embedding(ids * 0, weight, positions=ids, position_table=weight, out=out)
    with pytest.raises(IndexError):
        tg.embedding(ids * 0, weight, segments=ids, segment_table=weight, out=out)
    with pytest.raises(ValueError, match="length 70000"):
        tg.embedding(ids * 0, weight, position_table=weight, out=out)
    assert (out == 7).all()


def test_numpy_dtype_of_the_result():
    for dtype in DTYPES:
        weight = np.zeros((2, 3), numpy_dtype(dtype))
        table = np.zeros((4, 3), np.float64)
        assert tg.embedding([0], weight, position_table=table).dtype == weight.dtype
