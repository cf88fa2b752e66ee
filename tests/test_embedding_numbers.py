"""Embedding over sizes, types and combinations of options, and the same bits by every way through it."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import reference
import tegula as tg
from support import DTYPES, draw, numpy_dtype, poisoned, same_bits
from test_embedding import plain_embedding
from tolerances import assert_close

# Lanes, lines of 64 bytes and quads of dropout words, each with its neighbours.
DIMS = sorted(({n + step for n in (1, 4, 8, 16, 32, 64, 128, 768) for step in (-1, 0, 1)} | {2, 20, 100}) - {0})
POSITIONS = ("none", "sinusoidal", "own", *DTYPES)


def table_of(rng, name, rows, dim, own):
    """A position or segment table by name: none, sinusoidal, in the weight's type, or in another one."""
    if name == "none":
        return None
    return name if name == "sinusoidal" else draw(rng, (rows, dim), own if name == "own" else name)


def check(ids, weight, *, scale=None, positions=None, table=None, segments=None, segment_table=None, p=0.0, seed=None):
    options = {"scale": scale, "positions": positions, "position_table": table, "dropout_p": p}
    options |= {"segments": segments, "segment_table": segment_table}
    dim = weight.shape[1]
    keep = tg.dropout_mask(seed, p, ids.shape + (dim,)) if p > 0 else None
    exact = reference.embedding(ids, weight, keep=keep, **options)

    added = []
    at = np.broadcast_to(np.arange(ids.shape[-1]) if positions is None else positions, ids.shape)
    if isinstance(table, str):
        added.append(reference.positional_encoding(at, dim))
    elif table is not None:
        added.append(table[at])
    if segment_table is not None:
        added.append(segment_table[np.broadcast_to(segments, ids.shape)])
    steps = {"scale": 1.0 if scale is None else scale, "added": added, "keep": keep, "dropout_p": p}
    plain = plain_embedding(ids, weight, **steps)
    if weight.dtype == np.float64:  # the exact answer to float64 inputs needs more than float64
        exact = plain_embedding(ids, weight, **steps, sums=np.longdouble)

    out = poisoned(ids.shape + (dim,), weight.dtype)
    assert tg.embedding(ids, weight, seed=seed, out=out, **options) is out
    assert_close(out, exact, plain)
    assert same_bits(tg.embedding(ids, weight, seed=seed, **options), out)
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS)
def test_sizes(dtype, dim):
    rng = np.random.default_rng(dim)
    ids, weight = rng.integers(0, 11, (3, 5)), draw(rng, (11, dim), dtype)
    assert same_bits(tg.embedding(ids, weight), weight[ids])
    check(ids, weight, scale=1.7)
    check(ids, weight, table="sinusoidal")
    segments, segment_table = rng.integers(0, 2, (3, 5)), draw(rng, (2, dim), dtype)
    check(ids, weight, scale=1.7, table=draw(rng, (9, dim), dtype), segments=segments, segment_table=segment_table)
    check(ids, weight, scale=1.7, table="sinusoidal", segments=segments, segment_table=segment_table, p=0.3, seed=5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("segment", ["none", "own", "float64", "float16"])
def test_tables_of_every_type(dtype, position, segment):
    rng = np.random.default_rng(0)
    ids, weight = rng.integers(0, 11, (4, 6)), draw(rng, (11, 37), dtype)
    options = {"table": table_of(rng, position, 13, 37, dtype), "segment_table": table_of(rng, segment, 3, 37, dtype)}
    if segment != "none":
        options["segments"] = rng.integers(0, 3, (4, 1))
    check(ids, weight, **options)
    if position != "none":
        check(ids, weight, positions=rng.integers(0, 13, (4, 6)), scale=-0.5, **options)


def test_shapes_of_ids():
    rng = np.random.default_rng(1)
    weight = draw(rng, (7, 10))
    for shape in ((1,), (5,), (2, 3), (1, 1), (2, 1, 3), (2, 3, 1, 4), (6, 1)):
        check(rng.integers(0, 7, shape), weight, scale=2.0, table="sinusoidal", p=0.4, seed=3)
    for shape in ((0,), (0, 4), (3, 0), (2, 0, 5)):
        assert tg.embedding(np.zeros(shape, int), weight, position_table="sinusoidal").shape == shape + (10,)
    assert same_bits(tg.embedding(3, weight), weight[3])
    assert same_bits(
        tg.embedding(np.array(3), weight, position_table="sinusoidal"), weight[3] + tg.positional_encoding(1, 10)[0]
    )
    assert tg.embedding([], weight).shape == (0, 10)
    assert tg.embedding([[], []], weight).shape == (2, 0, 10)
    assert tg.embedding([1, 2], np.zeros((7, 0), np.float16)).shape == (2, 0)
    assert tg.embedding([], np.zeros((0, 4))).shape == (0, 4)


def test_sinusoidal_rows_are_those_of_positional_encoding():
    # float32: weight 0 leaves the row itself
    weight, ids = np.zeros((2, 50), np.float32), np.zeros((3, 8), int)
    for positions in (np.arange(8), -np.arange(24).reshape(3, 8), np.array([[5], [2**24], [2**40]])):
        got = tg.embedding(ids, weight, positions=positions, position_table="sinusoidal")
        assert same_bits(got, tg.positional_encoding(np.broadcast_to(positions, (3, 8)), 50))
    fractions = np.array([0.5, -3.25, 1e6, 998.3897, 0, 1, 2, 3])
    got = tg.embedding(ids, weight, positions=fractions, position_table="sinusoidal")
    assert same_bits(got[1], tg.positional_encoding(fractions, 50))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["sinusoidal", "float32", "float16", "bfloat16", "float64"])
def test_rows_made_beforehand_or_one_by_one(dtype, kind):
    # Many rows with few positions take a table made beforehand; the same rows one at a time do not.
    rng = np.random.default_rng(2)
    ids, weight = rng.integers(0, 20, (40, 6)), draw(rng, (20, 70), dtype)
    positions = rng.integers(3, 9, (40, 6))
    table = kind if kind == "sinusoidal" else draw(rng, (9, 70), kind)
    segments, segment_table = rng.integers(0, 2, (40, 6)), draw(rng, (2, 70), "float16")
    options = {"position_table": table, "segment_table": segment_table, "scale": 3.3}
    whole = tg.embedding(ids, weight, positions=positions, segments=segments, **options)
    for row in range(0, 40, 7):
        for column in range(6):
            at = (slice(row, row + 1), slice(column, column + 1))
            single = tg.embedding(ids[at], weight, positions=positions[at], segments=segments[at], **options)
            assert same_bits(single, np.ascontiguousarray(whole[at]))
    spread = positions.copy()
    spread[0, 0] = 8 if kind != "sinusoidal" else 10**9  # a range that no table covers
    other = tg.embedding(ids, weight, positions=spread, segments=segments, **options)
    assert same_bits(other[1:], whole[1:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, 1, 3, 8])
def test_results_larger_than_the_caches(dtype, offset):
    # They are written past the caches, wherever in a cache line their rows begin.
    rng = np.random.default_rng(3)
    dim = 193 if offset == 3 else 192
    length = -(-(16 << 20) // (numpy_dtype(dtype).itemsize * dim * 8))
    ids, weight = rng.integers(0, 100, (8, length)), draw(rng, (100, dim), dtype)
    weight[7] = 0
    options = {"scale": 0.5, "position_table": "sinusoidal", "padding_idx": 7, "pad_output": "zero"}
    buffer = poisoned(ids.size * dim + 64, weight.dtype)
    out = buffer[offset : offset + ids.size * dim].reshape(8, length, dim)
    tg.embedding(ids, weight, out=out, **options)
    for b in range(8):
        assert same_bits(out[b, ::97], np.ascontiguousarray(tg.embedding(ids[b], weight, **options)[::97]))
    assert np.isnan(buffer[:offset].astype(np.float32)).all()
    assert np.isnan(buffer[offset + out.size :].astype(np.float32)).all()
    tg.embedding(ids, weight, out=out)
    assert same_bits(out, weight[ids])


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_for_any_number_of_threads(threads, dtype):
    rng = np.random.default_rng(4)
    ids, weight = rng.integers(0, 500, (9, 190)), draw(rng, (500, 257), dtype)
    positions = rng.integers(0, 60, (9, 190))
    results = []
    for n in (1, 2, 3, 7):
        tg.set_num_threads(n)
        results.append(
            [
                tg.embedding(ids, weight, scale=2.5, position_table="sinusoidal", dropout_p=0.2, seed=9),
                tg.embedding(ids, weight, positions=positions, position_table="sinusoidal"),
            ]
        )
    for result in results[1:]:
        assert all(same_bits(a, b) for a, b in zip(result, results[0], strict=True))


def test_a_row_does_not_depend_on_the_others():
    rng = np.random.default_rng(5)
    ids, weight = rng.integers(0, 50, (6, 64)), draw(rng, (50, 100))
    whole = tg.embedding(ids, weight, scale=2.0, position_table="sinusoidal", dropout_p=0.3, seed=4)
    first = tg.embedding(ids[:1, :5], weight, scale=2.0, position_table="sinusoidal", dropout_p=0.3, seed=4)
    assert same_bits(np.ascontiguousarray(whole[:1, :5]), first)


@hypothesis.given(data=st.data())
def test_properties(data):
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple))
    dtype = data.draw(st.sampled_from(DTYPES))
    dim, seed = data.draw(st.integers(1, 90)), data.draw(st.integers(0, 2**64 - 1))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    ids, weight = rng.integers(0, 12, shape), draw(rng, (12, dim), dtype)
    options = {"table": table_of(rng, data.draw(st.sampled_from(POSITIONS)), 8, dim, dtype)}
    if options["table"] is not None and data.draw(st.booleans()):
        options["positions"] = rng.integers(0, 8, shape[-1:])
    if data.draw(st.booleans()):
        options["segments"] = rng.integers(0, 3, shape)
        options["segment_table"] = draw(rng, (3, dim), data.draw(st.sampled_from(DTYPES)))
    check(ids, weight, scale=data.draw(st.sampled_from([None, 0.0, -3.25])), p=data.draw(st.sampled_from([0.0, 0.4])),
          seed=seed, **options)  # fmt: skip
