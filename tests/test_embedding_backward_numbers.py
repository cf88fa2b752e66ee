"""The gradient of embedding over sizes, types, strides and threads, and the same bits by every way through it."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import reference
import tegula as tg
from support import DTYPES, draw, numpy_dtype, poisoned, same_bits
from test_embedding_numbers import DIMS
from tolerances import arithmetic_of, assert_close

PIECE = 512  # places of one row that are summed by themselves


def check(grad, ids, rows, **options):
    """Dense, sparse and added, each against the twin; returns the dense one."""
    p, seed = options.get("dropout_p", 0.0), options.get("seed")
    keep = tg.dropout_mask(seed, p, grad.shape) if p > 0 else None
    twin = {name: value for name, value in options.items() if name != "seed"} | {"keep": keep}
    exact_type = np.longdouble if grad.dtype == np.float64 else np.float64
    exact = reference.embedding_backward(grad, ids, rows, **twin, arithmetic=exact_type, storage=exact_type)
    plain_types = {"arithmetic": arithmetic_of(grad.dtype), "storage": grad.dtype.type}
    plain = reference.embedding_backward(grad, ids, rows, **twin, **plain_types)

    got = tg.embedding_backward(grad, ids, rows, **options)
    assert_close(got, exact, plain)
    zeros = np.zeros(got.shape, got.dtype)
    assert same_bits(tg.embedding_backward(grad, ids, rows, out=zeros, **options), got)
    found, values = tg.embedding_backward(grad, ids, rows, sparse=True, **options)
    assert (np.diff(found) > 0).all()
    assert same_bits(values, got[found]) and not np.delete(got, found, axis=0).any()

    held = draw(np.random.default_rng(0), got.shape, got.dtype.name)
    added = tg.embedding_backward(grad, ids, rows, out=held.copy(), **options)
    wide = plain_types["arithmetic"]
    sums = reference.embedding_backward(grad, ids, rows, **twin, arithmetic=wide, storage=wide)
    assert_close(added, exact + held.astype(exact_type), (sums + held.astype(wide)).astype(grad.dtype))
    return got


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS)
def test_sizes(dtype, dim):
    rng = np.random.default_rng(dim)
    grad, ids = draw(rng, (3, 7, dim), dtype), rng.integers(0, 11, (3, 7))
    check(grad, ids, 11)
    check(grad, ids, 11, scale=1.7, padding_idx=3)
    check(grad, ids, 11, scale=-0.3, dropout_p=0.3, seed=5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1, 5 * PIECE + 77])
@pytest.mark.parametrize("p", [0.0, 0.25])
def test_a_row_with_many_places(dtype, count, p):
    rng = np.random.default_rng(count)
    ids = np.repeat(5, count + 40)
    ids[rng.permutation(count + 40)[:40]] = rng.integers(0, 5, 40)
    check(draw(rng, (count + 40, 18), dtype), ids, 8, scale=0.5, dropout_p=p, seed=1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_s_bits_are_its_own(dtype):
    """Other rows and the places between its own have no say; the order of its places has."""
    rng = np.random.default_rng(0)
    grad, ids = draw(rng, (3000, 33), dtype), rng.integers(0, 4, 3000)
    whole = tg.embedding_backward(grad, ids, 4, scale=1.1)
    for row in range(4):
        own = np.flatnonzero(ids == row)
        alone = tg.embedding_backward(grad[own], np.zeros(len(own), np.int8), 1, scale=1.1)
        assert same_bits(alone[0], whole[row])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["uniform", "few", "one"])
@pytest.mark.parametrize("p", [0.0, 0.2])
def test_same_bits_for_any_number_of_threads(threads, dtype, kind, p):
    rng = np.random.default_rng(1)
    ids = rng.integers(0, {"uniform": 5000, "few": 3, "one": 1}[kind], (9, 400))
    grad, results = draw(rng, (9, 400, 257), dtype), []
    for n in (1, 2, 3, 7):
        tg.set_num_threads(n)
        options = {"scale": 2.5, "dropout_p": p, "seed": 9}
        held = np.ones((5000, 257), grad.dtype)
        found, rows = tg.embedding_backward(grad, ids, 5000, sparse=True, **options)
        results.append([found, rows, tg.embedding_backward(grad, ids, 5000, out=held, **options)])
    for result in results[1:]:
        assert all(same_bits(a, b) for a, b in zip(result, results[0], strict=True))


@pytest.mark.parametrize("rows", [1, 2, 300, 2**20, 2**40])
def test_places_are_sorted_by_any_number_of_threads(threads, rows):
    """Enough ids for several threads to sort, in tables that take one digit or many."""
    rng = np.random.default_rng(2)
    ids = rng.integers(0, rows, (3, 70_000))
    ids[:, ::5] = -1
    grad = draw(rng, (3, 70_000, 1), "float64")
    for n in (1, 3):
        tg.set_num_threads(n)
        found, sums = tg.embedding_backward(grad, ids, rows, ignore_id=-1, sparse=True)
        unique, inverse = np.unique(ids[ids >= 0], return_inverse=True)
        assert same_bits(found, unique)
        exact = np.bincount(inverse, grad[ids >= 0].ravel())
        np.testing.assert_allclose(sums[:, 0], exact, rtol=1e-9, atol=1e-9)


# ---- strides

VIEWS = {
    "rows_reversed": lambda a: a[:, ::-1],
    "rows_skipped": lambda a: a[::2, 1::3],
    "columns_reversed": lambda a: a[..., ::-1],
    "columns_skipped": lambda a: a[..., 1::2],
    "transposed": lambda a: a.swapaxes(0, 2),
    "batch_second": lambda a: a.swapaxes(0, 1),
    "one_column": lambda a: a[..., 3:4],
    "one_number_repeated": lambda a: np.broadcast_to(a[0, 0, 0], (4, 9, 40)),
    "one_row_repeated": lambda a: np.broadcast_to(a[1, 2], (4, 9, a.shape[-1])),
    "one_column_repeated": lambda a: np.broadcast_to(a[..., :1], (*a.shape[:2], 40)),
    "fortran": np.asfortranarray,
    "misaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), np.int8)[1:].view(a.dtype).reshape(a.shape),
    "read_only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", VIEWS)
def test_C57_C80_gradients_of_any_strides(dtype, view):
    rng = np.random.default_rng(3)
    base = draw(rng, (6, 20, 33), dtype)
    grad, before = VIEWS[view](base), base.copy()
    ids = rng.integers(0, 7, grad.shape[:-1])
    options = {"scale": 1.5, "dropout_p": 0.2, "seed": 3}
    plain = np.array(grad)
    assert same_bits(tg.embedding_backward(grad, ids, 7, **options), tg.embedding_backward(plain, ids, 7, **options))
    assert same_bits(base, before)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_C80_big_endian(dtype):
    grad = draw(np.random.default_rng(4), (9, 20), dtype)
    swapped, ids = grad.astype(grad.dtype.newbyteorder(">")), np.arange(9) % 4
    expected = tg.embedding_backward(grad, ids, 4)
    assert same_bits(tg.embedding_backward(swapped, ids, 4), expected)
    assert same_bits(tg.embedding_backward(swapped, ids, 4, sparse=True)[1], expected)
    assert tg.embedding_backward(swapped, ids, 4).dtype.isnative


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [5, 16, 33])
def test_out_of_any_strides(dtype, dim):
    rng = np.random.default_rng(5)
    grad, ids, held = draw(rng, (3, 4, dim), dtype), rng.integers(0, 9, (3, 4)), draw(rng, (9, dim), dtype)
    expected = tg.embedding_backward(grad, ids, 9, out=held.copy())
    for make in (
        lambda a: a[:9, :dim],
        lambda a: a[8::-1, dim - 1 :: -1],
        lambda a: a[1:19:2, 1::2][:, :dim],
        lambda a: a.T[:9, :dim],
    ):
        base = poisoned((80, 80), numpy_dtype(dtype))
        out = make(base)
        out[...] = held
        assert tg.embedding_backward(grad, ids, 9, out=out) is out
        assert same_bits(np.ascontiguousarray(out), expected)
        assert np.isnan(base.astype(np.float32)).sum() == base.size - out.size  # nothing beside it


@hypothesis.given(data=st.data())
def test_properties(data):
    shape = data.draw(st.lists(st.integers(1, 6), min_size=0, max_size=3).map(tuple))
    dtype, dim = data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(1, 90))
    rows = data.draw(st.sampled_from([1, 2, 12, 3000]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    options = {"scale": data.draw(st.sampled_from([None, 0.0, -3.25]))}
    options["dropout_p"] = data.draw(st.sampled_from([0.0, 0.4]))
    options["seed"] = data.draw(st.integers(0, 2**64 - 1))
    ids = rng.integers(0, rows, shape)
    if data.draw(st.booleans()):
        options["padding_idx"] = int(rng.integers(-rows, rows))
    if data.draw(st.booleans()):
        options["ignore_id"] = -100
        ids = np.where(rng.random(shape) < 0.3, -100, ids)
    check(draw(rng, (*shape, dim), dtype), ids, rows, **options)


def test_linear_in_the_gradient():
    """Whole numbers have exact sums: the gradient of a sum of gradients is the sum of theirs."""
    rng = np.random.default_rng(6)
    ids, a, b = rng.integers(0, 30, 2000), *(rng.integers(-9, 9, (2, 2000, 17)).astype(np.float32))
    both = tg.embedding_backward(a, ids, 30) + tg.embedding_backward(b, ids, 30)
    assert same_bits(tg.embedding_backward(a + b, ids, 30), both)
    out = np.zeros((30, 17), np.float32)
    for part in (slice(0, 700), slice(700, 2000)):
        tg.embedding_backward((a + b)[part], ids[part], 30, out=out)
    assert same_bits(out, both)
