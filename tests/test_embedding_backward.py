"""The gradient of embedding: what it means, and the failures of other libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tegula as tg
from support import DTYPES, draw, numpy_dtype, run_python, same_bits


def slope(function, at, direction):
    """Change of a function that is linear in `at`, along `direction`: exact but for rounding."""
    return (function(at + direction) - function(at - direction)) / 2


# ---- finite differences


@pytest.mark.parametrize("pad_output", ["row", "zero"])
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("scale", [None, math.sqrt(20), -0.5])
def test_C04_gradient_against_finite_differences(pad_output, p, scale):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 7, (3, 5))
    ids[1, 2] = ids[2, 0] = -100
    weight, cotangent = draw(rng, (7, 20), "float64"), draw(rng, (3, 5, 20), "float64")
    options = {"padding_idx": 2, "pad_output": pad_output, "ignore_id": -100, "scale": scale}
    options |= {"dropout_p": p, "seed": 77}

    def loss(weight):
        return np.sum(tg.embedding(ids, weight, position_table="sinusoidal", **options) * cotangent)

    grad = tg.embedding_backward(cotangent, ids, 7, **options)
    assert not grad[2].any()
    for row in range(7):
        direction = np.zeros_like(weight)
        direction[row] = draw(rng, (20,), "float64")
        if row == 2 and pad_output == "row":  # the pad's row is shown, but does not learn
            assert slope(loss, weight, direction) != 0
        else:
            np.testing.assert_allclose(np.sum(grad * direction), slope(loss, weight, direction), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_gradients_of_position_and_segment_tables(p):
    """They are the same function's: positions or segments are the ids, silent places are ignored."""
    rng = np.random.default_rng(1)
    ids, positions, segments = rng.integers(0, 7, (3, 5)), rng.integers(0, 9, (1, 5)), rng.integers(0, 2, (3, 1))
    weight, table, segment_table = (draw(rng, (n, 20), "float64") for n in (7, 9, 2))
    cotangent = draw(rng, (3, 5, 20), "float64")
    options = {"padding_idx": 2, "pad_output": "zero", "scale": 3.0, "dropout_p": p, "seed": 8}

    def loss(table, segment_table):
        out = tg.embedding(ids, weight, positions=positions, position_table=table, segments=segments,
                           segment_table=segment_table, **options)  # fmt: skip
        return np.sum(out * cotangent)

    def gradient(rows, count):
        rows = np.where(ids == 2, -1, np.broadcast_to(rows, ids.shape))
        return tg.embedding_backward(cotangent, rows, count, ignore_id=-1, dropout_p=p, seed=8)

    for _ in range(3):
        d, e = draw(rng, (9, 20), "float64"), draw(rng, (2, 20), "float64")
        for got, expected in (
            (np.sum(gradient(positions, 9) * d), slope(lambda t: loss(t, segment_table), table, d)),
            (np.sum(gradient(segments, 2) * e), slope(lambda t: loss(table, t), segment_table, e)),
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11)


# ---- padding


@pytest.mark.parametrize("dtype", DTYPES)
def test_C03_a_tied_projection_keeps_its_part(dtype):
    rng = np.random.default_rng(2)
    grad, ids = draw(rng, (4, 6, 10), dtype), rng.integers(0, 8, (4, 6))
    out = draw(rng, (8, 10), dtype)
    before, added = out.copy(), tg.embedding_backward(grad.astype(np.float64), ids, 8, padding_idx=0)
    assert tg.embedding_backward(grad, ids, 8, padding_idx=0, out=out) is out
    assert same_bits(out[0], before[0])
    exact = before.astype(np.float64) + added
    # float32 sums of some 3 numbers, and one rounding to the type
    unit = {"float64": 2**-52, "float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}[dtype]
    assert np.abs(out.astype(np.float64) - exact).max() <= unit * 8


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pad", [0, -8])
def test_C06_every_id_is_the_pad(dtype, pad):
    grad, ids = draw(np.random.default_rng(3), (2, 3, 10), dtype), np.zeros((2, 3), int)
    dense = tg.embedding_backward(grad, ids, 8, padding_idx=pad)
    assert same_bits(dense, np.zeros((8, 10), grad.dtype))
    found, rows = tg.embedding_backward(grad, ids, 8, padding_idx=pad, sparse=True)
    assert found.dtype == np.int64 and found.shape == (0,)
    assert rows.dtype == grad.dtype and rows.shape == (0, 10)


def test_ignored_ids_get_nothing():
    grad = draw(np.random.default_rng(4), (5, 10))
    grad[[1, 3]] = np.nan  # nothing of them arrives
    got = tg.embedding_backward(grad, [4, -100, 0, -100, 4], 5, ignore_id=-100)
    assert same_bits(got[0], grad[2]) and same_bits(got[4], grad[0] + grad[4]) and not got[1:4].any()
    inside = tg.embedding_backward(grad, [4, 3, 0, 3, 4], 5, ignore_id=3)
    assert same_bits(inside, got)
    both = tg.embedding_backward(grad, [4, 3, 0, -7, 4], 5, padding_idx=-2, ignore_id=-7)
    assert same_bits(both, got)
    with pytest.raises(IndexError, match=r"id -100 at ids\[1\]"):
        tg.embedding_backward(grad, [4, -100, 0, 0, 0], 5)


def test_C18_every_row_learns_unless_it_is_named():
    grad = np.ones((2, 3), np.float32)
    assert tg.embedding_backward(grad, [0, 1], 2).all()
    assert tg.embedding_backward(grad, [0, 1], 2, pad_output="zero").all()


# ---- ids


def test_C12_an_id_outside_the_table():
    run_python(
        """
        import numpy as np, tegula as tg
        grad, out = np.ones((3, 4), np.float32), np.full((5, 4), 7, np.float32)
        for ids, place in (([10**17, 0, 0], 0), ([0, 10**9, 0], 1), ([0, 1, -1], 2), ([0, 5, 9], 1), ([-2**63] * 3, 0)):
            for options in ({}, {"out": out}, {"sparse": True}, {"dropout_p": 1.0, "seed": 0}):
                try:
                    tg.embedding_backward(grad, ids, 5, **options)
                except IndexError as error:
                    assert str(error) == f"id {ids[place]} at ids[{place}] is outside [0, 5)", error
                else:
                    raise SystemExit("no error")
        try:
            tg.embedding_backward(grad[:1], np.array([10**17]), 0)
        except IndexError as error:
            assert "outside [0, 0)" in str(error)
        assert (out == 7).all()
        assert tg.embedding_backward(grad, [4, 0, 4], 5)[4, 0] == 2
        """
    )


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_C14_every_integer_type(dtype):
    rng = np.random.default_rng(5)
    grad, ids = draw(rng, (6, 7, 20)), rng.integers(0, 120, (6, 7))
    expected, typed = tg.embedding_backward(grad, ids, 120), ids.astype(dtype)
    assert same_bits(tg.embedding_backward(grad, typed, 120), expected)
    for view in (lambda a: a[::-1, ::2], lambda a: a.swapaxes(0, 1), lambda a: a[:, 3:4]):
        got = tg.embedding_backward(view(grad), view(typed), 120)
        assert same_bits(got, tg.embedding_backward(view(grad).copy(), view(ids).copy(), 120))
    swapped = typed.astype(typed.dtype.newbyteorder(">"))
    assert same_bits(tg.embedding_backward(grad, swapped, 120), expected)


@pytest.mark.parametrize("ids", [np.zeros(2, bool), np.zeros(2), np.zeros(2, np.float16), np.array([1, None])])
def test_C14_other_kinds_of_ids(ids):
    with pytest.raises(TypeError, match=f"ids.*{ids.dtype}"):
        tg.embedding_backward(np.zeros((2, 3), np.float32), ids, 5)


# ---- sizes


def test_any_size_from_zero():
    grad = np.zeros((0, 4), np.float32)
    assert tg.embedding_backward(grad, [], 0).shape == (0, 4)
    assert same_bits(tg.embedding_backward(grad, [], 3), np.zeros((3, 4), np.float32))
    assert tg.embedding_backward(np.zeros((2, 0, 4)), [[], []], 3).shape == (3, 4)
    assert tg.embedding_backward(np.zeros((3, 0), np.float16), [0, 1, 1], 3).shape == (3, 0)
    found, rows = tg.embedding_backward(np.zeros((3, 0), np.float16), [2, 1, 1], 3, sparse=True)
    assert found.tolist() == [1, 2] and rows.shape == (2, 0)
    found, rows = tg.embedding_backward(grad, [], 0, sparse=True)
    assert found.shape == (0,) and rows.shape == (0, 4)
    scalar = tg.embedding_backward(np.arange(4.0), 2, 3)
    assert scalar.tolist() == [[0] * 4, [0] * 4, [0, 1, 2, 3]]


@pytest.mark.isa_once
def test_C15_offsets_beyond_32_bits(tmp_path):
    """4.3 GB of holes: only the pages of the rows that occur come into being."""
    rows, dim = 2**15 + 1, 2**16
    grad = np.random.default_rng(6).standard_normal((2, dim)).astype(np.float16)
    out = np.memmap(tmp_path / "sparse", np.float16, "w+", shape=(rows, dim))
    tg.embedding_backward(grad, np.array([rows - 1, rows - 1], np.int32), rows, out=out)
    expected = (grad[0].astype(np.float32) + grad[1]).astype(np.float16)
    assert same_bits(np.asarray(out[-1]), expected)
    assert (tmp_path / "sparse").stat().st_blocks * 512 < 4 * 2**20
    # the gradient's rows lie as far apart
    out[0] = grad[0]
    got = tg.embedding_backward(out[:: rows - 1], np.array([1, 0], np.int16), 2)
    assert same_bits(got, np.stack([expected, grad[0]]))


def test_C15_C17_a_table_of_any_size_in_the_sparse_form():
    rng = np.random.default_rng(7)
    ids = rng.integers(0, 2**62, 300)
    ids[::3], ids[1], ids[2] = ids[0], 2**63 - 2, 0
    grad = draw(rng, (300, 5))
    found, rows = tg.embedding_backward(grad, ids, 2**63 - 1, sparse=True)
    unique, inverse = np.unique(ids, return_inverse=True)
    assert same_bits(found, unique)
    assert same_bits(rows, tg.embedding_backward(grad, inverse, len(unique)))


@pytest.mark.isa_once
def test_the_sparse_form_needs_memory_for_its_rows_alone():
    used = run_python(
        """
        import numpy as np, tegula as tg
        def status(field):
            for line in open("/proc/self/status"):
                if line.startswith(field):
                    return int(line.split()[1]) * 1024
        rng = np.random.default_rng(0)
        ids, grad = rng.integers(0, 2**40, (8, 64)), rng.standard_normal((8, 64, 256)).astype(np.float32)
        tg.embedding_backward(grad[:1, :1], ids[:1, :1], 2**40, sparse=True)
        before = status("VmHWM")
        found, rows = tg.embedding_backward(grad, ids, 2**40, sparse=True)
        assert len(found) == len(np.unique(ids))
        print(status("VmHWM") - before)
        """
    )
    assert int(used) < 4 * 2**20


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_C17_the_sparse_form_is_the_dense_one_s_rows(dtype, p):
    rng = np.random.default_rng(8)
    grad, ids = draw(rng, (9, 70, 37), dtype), rng.integers(0, 60, (9, 70)) ** 2 // 60
    options = {"padding_idx": 3, "scale": 1.5, "dropout_p": p, "seed": 4}
    dense = tg.embedding_backward(grad, ids, 100, **options)
    found, rows = tg.embedding_backward(grad, ids, 100, sparse=True, **options)
    assert same_bits(found, np.setdiff1d(ids, [3]))
    assert same_bits(rows, dense[found])
    assert not np.delete(dense, found, axis=0).any()
    everything = tg.embedding_backward(grad, ids, 100, sparse=True, dropout_p=1, seed=0)
    assert everything[0].shape == (0,) and everything[1].shape == (0, 37)


# ---- special values


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_reaches_the_row_and_column_it_belongs_to(dtype):
    grad = draw(np.random.default_rng(9), (3, 40), dtype)
    grad[0, 7], grad[1, 5] = np.nan, np.inf
    got = tg.embedding_backward(grad, [1, 4, 1], 6, padding_idx=4).astype(np.float32)
    assert np.argwhere(np.isnan(got)).tolist() == [[1, 7]] and np.isfinite(np.delete(got, 7, axis=1)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_of_a_dropped_element_does_not_exist(dtype):
    keep = tg.dropout_mask(5, 0.5, (4, 90))
    grad = np.where(keep, 1.0, np.nan).astype(numpy_dtype(dtype))
    got = tg.embedding_backward(grad, [0, 0, 1, 0], 2, dropout_p=0.5, seed=5)
    assert (got[0] == 2 * keep[[0, 1, 3]].sum(axis=0)).all() and (got[1] == 2 * keep[2]).all()
    gone = tg.embedding_backward(np.full_like(grad, np.nan), [0, 0, 1, 0], 2, dropout_p=1, seed=5)
    assert same_bits(gone, np.zeros_like(gone))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_16_bit_gradients_are_float32(dtype):
    """Ones added one by one in 16 bits stop at 2048 or 256."""
    grad = np.broadcast_to(np.ones((), numpy_dtype(dtype)), (4096, 19))
    got = tg.embedding_backward(grad, np.zeros(4096, int), 1)
    assert (got.astype(np.float32) == 4096).all()
    out = np.full((1, 19), 4096, grad.dtype)
    tg.embedding_backward(grad, np.zeros(4096, int), 1, out=out)
    assert (out.astype(np.float32) == 8192).all()


def test_rows_without_a_place_are_not_touched():
    rng = np.random.default_rng(10)
    base = rng.integers(0, 2**32, (50, 21), np.uint32).view(np.float32)  # any bits, NaN among them
    base[[7, 30]] = 0
    before = base.copy()
    tg.embedding_backward(draw(rng, (3, 21)), [7, 30, 49], 50, padding_idx=49, out=base)
    others = np.delete(np.arange(50), [7, 30])
    assert same_bits(base[others].view(np.uint32), before[others].view(np.uint32))
    assert base[[7, 30]].all()


# ---- another library


@pytest.mark.parametrize("padding_idx", [None, 0])
def test_torch_s_gradients(padding_idx):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(11)
    ids, grad = rng.integers(0, 40, (8, 33)), draw(rng, (8, 33, 50), "float64")
    weight = torch.zeros(40, 50, dtype=torch.float64, requires_grad=True)
    out = torch.nn.functional.embedding(torch.from_numpy(ids), weight, padding_idx=padding_idx)
    out.backward(torch.from_numpy(grad))
    got = tg.embedding_backward(grad, ids, 40, padding_idx=padding_idx)
    np.testing.assert_allclose(got, weight.grad.numpy(), rtol=1e-12, atol=1e-12)
    sparse = torch.zeros(40, 50, dtype=torch.float64, requires_grad=True)
    out = torch.nn.functional.embedding(torch.from_numpy(ids), sparse, padding_idx=padding_idx, sparse=True)
    out.backward(torch.from_numpy(grad))
    coalesced = sparse.grad.coalesce()
    found, rows = tg.embedding_backward(grad, ids, 40, padding_idx=padding_idx, sparse=True)
    assert found.tolist() == coalesced.indices()[0].tolist()
    np.testing.assert_allclose(rows, coalesced.values().numpy(), rtol=1e-12, atol=1e-12)
