"""The embedding on a GPU gives the bits of the processor's, whose tests say what they have to be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tegula as tg
from gpu_arrays import from_gpu, on_gpu
from support import DTYPES, numpy_dtype, same_bits

IDS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
LAYOUTS = {
    "contiguous": lambda x: x,
    "columns apart": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "rows backwards": lambda x: x[::-1].copy()[::-1],
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "one row for all": lambda x: np.broadcast_to(x[:1], x.shape),
}


def numbers(seed, shape, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(shape).astype(numpy_dtype(dtype))


def some_ids(seed, shape, rows, dtype="int64"):
    return np.random.default_rng(seed).integers(0, rows, shape).astype(dtype)


def close(got, expected):
    """Equal but for the last bit of a sine."""
    unit = {2: 2.0**-7, 4: 2.0**-21, 8: 2.0**-50}[got.dtype.itemsize]
    a, b = (x.astype(np.float64) for x in (got, expected))
    return got.dtype == expected.dtype and np.all(np.abs(a - b) <= unit * np.maximum(np.abs(b), 1))


def both(*arrays, **options):
    """The call on the GPU and on the processor."""
    moved = {name: on_gpu(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    return from_gpu(tg.embedding(*map(on_gpu, arrays), **moved)), tg.embedding(*arrays, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, 3, 8, 24, 33, 64, 130])
def test_gather(dtype, dim):
    got, expected = both(some_ids(0, (3, 5), 11), numbers(1, (11, dim), dtype))
    assert same_bits(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pad", ["row", "zero"])
def test_everything_at_once(dtype, pad):
    got, expected = both(
        some_ids(0, (2, 3, 7), 11), numbers(1, (11, 40), dtype), padding_idx=-3, pad_output=pad, ignore_id=4,
        scale=3.3, position_table=numbers(2, (9, 40), "float32"), segments=some_ids(3, (7,), 2, "int8"),
        segment_table=numbers(4, (2, 40), dtype), positions=some_ids(5, (3, 7), 9, "uint8"), dropout_p=0.3, seed=77,
    )  # fmt: skip
    assert same_bits(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sinusoidal_rows(dtype):
    got, expected = both(some_ids(0, (2, 9), 11), numbers(1, (11, 34), dtype), position_table="sinusoidal", scale=2.0)
    assert close(got, expected)
    far = np.array([0.5, -3.0, 1e6])
    got, expected = both(
        some_ids(0, (4, 3), 11), numbers(1, (11, 34), dtype), position_table="sinusoidal", positions=far
    )
    assert close(got, expected)


@pytest.mark.parametrize("kind", IDS)
def test_every_type_of_ids(kind):
    got, expected = both(some_ids(0, (17,), 11, kind), numbers(1, (11, 16)))
    assert same_bits(got, expected)


@pytest.mark.parametrize(("name", "dtype"), [*itertools.product(LAYOUTS, ("float32", "bfloat16"))])
def test_strides(name, dtype):
    weight = LAYOUTS[name](numbers(1, (11, 16), dtype))
    ids = some_ids(0, (6, 8), 11)[::-1, ::3]
    got, expected = both(ids, weight, dropout_p=0.5, seed=3)
    assert same_bits(got, expected)


def test_out_is_written_where_it_lies():
    ids, weight = some_ids(0, (4, 5), 11), numbers(1, (11, 12))
    out = np.full((5, 4, 24), 7.0, np.float32)
    there = on_gpu(out)
    result = tg.embedding(on_gpu(ids.T), on_gpu(weight), out=there[..., ::2])
    assert from_gpu(result).shape == (5, 4, 12)
    out[..., ::2] = tg.embedding(ids.T, weight)
    assert same_bits(from_gpu(there), out)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (), (1,)])
def test_few_ids(shape):
    got, expected = both(some_ids(0, shape, 11), numbers(1, (11, 8)))
    assert same_bits(got, expected)


# ---------------------------------------------------------------------------------------------------
# Gradients


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 8, 33, 64])
def test_gradient(dtype, dim):
    grad, ids = numbers(1, (3, 50, dim), dtype), some_ids(0, (3, 50), 20)
    options = {"padding_idx": 3, "ignore_id": 7, "scale": 1.7, "dropout_p": 0.2, "seed": 5}
    got = tg.embedding_backward(on_gpu(grad), on_gpu(ids), 20, **options)
    assert same_bits(from_gpu(got), tg.embedding_backward(grad, ids, 20, **options))


@pytest.mark.parametrize("rows", [1, 2, 300, 70_000])
def test_gradient_of_many_or_few_rows(rows):
    grad, ids = numbers(1, (700, 8)), some_ids(0, (700,), rows)
    got = from_gpu(tg.embedding_backward(on_gpu(grad), on_gpu(ids), rows))
    exact = np.zeros((rows, 8))
    np.add.at(exact, ids, grad.astype(np.float64))
    # Long sums are cut into other pieces than the processor's.
    assert np.abs(got - exact).max() <= 2e-5
    assert same_bits(got, from_gpu(tg.embedding_backward(on_gpu(grad), on_gpu(ids), rows)))


def test_gradient_is_added():
    grad, ids, out = numbers(1, (9, 8)), some_ids(0, (9,), 5), numbers(2, (5, 8))
    there = on_gpu(out)
    tg.embedding_backward(on_gpu(grad), on_gpu(ids), 5, out=there)
    tg.embedding_backward(grad, ids, 5, out=out)
    assert same_bits(from_gpu(there), out)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sparse_gradient(dtype):
    grad, ids = numbers(1, (40, 12), dtype), some_ids(0, (40,), 1000)
    got = from_gpu(tg.embedding_backward(on_gpu(grad), on_gpu(ids), 1000, padding_idx=int(ids[0]), sparse=True))
    expected = tg.embedding_backward(grad, ids, 1000, padding_idx=int(ids[0]), sparse=True)
    assert all(same_bits(x, np.asarray(y)) for x, y in zip(got, expected, strict=True))


# ---------------------------------------------------------------------------------------------------
# Ids outside their table


def test_an_id_outside_is_reported_by_the_next_call():
    ids, weight = some_ids(0, (3, 5), 11), numbers(1, (11, 8))
    ids[2, 1] = 99
    got = from_gpu(tg.embedding(on_gpu(ids), on_gpu(weight)))
    assert np.isnan(got[2, 1]).all()
    assert not np.isnan(np.delete(got.reshape(15, 8), 11, axis=0)).any()
    with pytest.raises(IndexError, match=r"id 99 at place 11 is outside \[0, 11\)"):
        tg.cuda.check()
    tg.cuda.check()  # said once


@pytest.mark.parametrize("id_", [-1, 11, 2**40])
def test_an_id_outside_raises_first_when_asked(id_):
    ids, weight = some_ids(0, (3, 5), 11), numbers(1, (11, 8))
    ids[0, 0] = id_
    out = on_gpu(np.full((3, 5, 8), 7.0, np.float32))
    tg.cuda.set_id_checks("raise")
    try:
        with pytest.raises(IndexError, match=rf"id {id_} at place 0 is outside \[0, 11\)"):
            tg.embedding(on_gpu(ids), on_gpu(weight), out=out)
    finally:
        tg.cuda.set_id_checks("flag")
    assert (from_gpu(out) == 7).all()


def test_positions_and_segments_outside():
    ids, weight = some_ids(0, (4,), 11), numbers(1, (11, 8))
    for name, options in {
        "position 9": {"positions": np.array([0, 9, 1, 2]), "position_table": numbers(2, (5, 8))},
        "segment 3": {"segments": np.array([0, 3, 1, 1]), "segment_table": numbers(2, (2, 8))},
    }.items():
        moved = {key: on_gpu(x) for key, x in options.items()}
        got = from_gpu(tg.embedding(on_gpu(ids), on_gpu(weight), **moved))
        assert np.isnan(got[1]).all()
        with pytest.raises(IndexError, match=name):
            tg.cuda.check()


def test_an_id_outside_gets_no_gradient():
    grad, ids = numbers(1, (6, 8)), np.array([0, 1, 70, 2, -4, 1])
    got = from_gpu(tg.embedding_backward(on_gpu(grad), on_gpu(ids), 5))
    inside = (ids >= 0) & (ids < 5)
    assert same_bits(got, tg.embedding_backward(grad[inside], ids[inside], 5))
    with pytest.raises(IndexError, match="outside"):
        tg.cuda.check()
