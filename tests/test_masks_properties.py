"""Whatever masks are combined: the result is the AND, or the OR, of what each of them shows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tegula import masks

BATCH, HEADS = 2, 3
LENGTH = st.integers(0, 40)


def integers(low, high, count):
    return st.lists(st.integers(low, high), min_size=count, max_size=count)


def aligned():
    """Keyword arguments that align queries and keys of any lengths."""
    return st.one_of(
        st.sampled_from([{"align": "bottom_right"}, {"align": "top_left"}]),
        st.builds(lambda n: {"offset": n}, st.one_of(st.integers(-50, 50), integers(-50, 50, BATCH))),
    )


def borders(length):
    inner = st.lists(st.integers(0, length), min_size=3, max_size=3).map(sorted)
    return inner.map(lambda cuts: [0, *cuts, length])


def arrays(*shape):
    def build(seed, fill, runs):
        rng = np.random.default_rng(seed)
        if runs:
            shown = np.zeros(shape, bool)
            for _ in range(runs):
                lo, hi = rng.integers(0, shape[-1] + 1, (2, *shape[:-1], 1))
                shown |= (lo <= np.arange(shape[-1])) & (np.arange(shape[-1]) < hi)
            return shown
        return rng.random(shape) < fill

    return st.builds(build, st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 0.9, 1.0]), st.integers(0, 3))


def kinds(q_len, k_len):
    """Any mask that fits (BATCH, HEADS, q_len, k_len)."""
    count = st.one_of(st.none(), st.integers(0, 45))
    inside = st.fixed_dictionaries(
        {},
        optional={
            "causal": st.sampled_from(["bottom_right", "top_left"]),
            "window": st.tuples(count, count),
        },
    )
    ids = lambda length: integers(0, 3, length)
    return st.one_of(
        st.builds(masks.full),
        st.builds(lambda a: masks.causal(**a), aligned()),
        st.builds(lambda left, right, a: masks.window(left, right, **a), count, count, aligned()),
        st.builds(lambda size, a: masks.sliding(size, **a), st.integers(1, 45), aligned()),
        st.builds(lambda size, a: masks.chunked(size, **a), st.integers(1, 45), aligned()),
        st.builds(
            lambda size, n, a: masks.sliding(size, sinks=n, **a), st.integers(1, 45), st.integers(0, 9), aligned()
        ),
        st.builds(
            lambda n, q, a: masks.global_tokens(n, queries=q, **a), integers(0, k_len, BATCH), st.booleans(), aligned()
        ),
        st.builds(lambda n, a: masks.prefix(n, **a), integers(0, k_len, BATCH), aligned()),
        st.builds(masks.padding, integers(0, k_len, BATCH)),
        st.builds(lambda k, q: masks.padding(k, queries=q), integers(0, k_len, BATCH), integers(0, q_len, BATCH)),
        st.builds(lambda keep: masks.padding(keep=keep), arrays(BATCH, k_len)),
        st.builds(lambda keep: masks.padding(queries=keep), arrays(BATCH, q_len)),
        st.builds(lambda q, k, o: masks.documents(q, k, **o), ids(q_len), ids(k_len), inside),
        st.builds(
            lambda q, k, o: masks.documents(cu_seqlens=q, cu_seqlens_k=k, **o), borders(q_len), borders(k_len), inside
        ),
        *(
            st.builds(masks.dense, arrays(*shape, q_len, k_len))
            for shape in ((), (BATCH, 1), (1, HEADS), (BATCH, HEADS))
        ),
    )


def whole(mask, q_len, k_len):
    """(BATCH, HEADS, q_len, k_len), from what attention reads."""
    lo, hi, dense = mask._lower(BATCH, HEADS, q_len, k_len)
    assert lo.dtype == hi.dtype == np.int32 and lo.ndim == hi.ndim and lo.ndim in (3, 4)
    assert all(bound.size == 0 or (bound.min() >= 0 and bound.max() <= k_len) for bound in (lo, hi))
    j = np.arange(k_len)
    visible = (lo[..., None] <= j) & (j < hi[..., None])
    if lo.ndim == 4:
        seen = np.broadcast_to((lo < hi).any(axis=0), np.broadcast_shapes(lo.shape, hi.shape)[1:])
        lo, hi = np.broadcast_arrays(lo, hi)
        # The runs follow each other, and so the hull without the gap says the same.
        assert all((a <= b)[seen].all() for a, b in ((lo[0], lo[1]), (hi[0], hi[1])))
        hull = (lo[0][..., None] <= j) & (j < hi[1][..., None])
        gap = (hi[0][..., None] <= j) & (j < lo[1][..., None])
        assert not (visible[0] & visible[1]).any()
        visible = visible.any(axis=0)
        assert ((hull & ~gap) == visible).all()
    if dense is not None:
        assert dense.ndim == 4 and dense.dtype == np.bool_
        visible = visible & dense
    return np.broadcast_to(visible, (BATCH, HEADS, q_len, k_len))


@given(data=st.data(), q_len=LENGTH, k_len=LENGTH)
def test_an_intersection_is_the_and_of_its_parts(data, q_len, k_len):
    parts = data.draw(st.lists(kinds(q_len, k_len), min_size=2, max_size=4))
    both = parts[0]
    for part in parts[1:]:
        both = both & part
    expected = np.ones((BATCH, HEADS, q_len, k_len), bool)
    for part in parts:
        expected &= part.dense(q_len, k_len)
    assert (whole(both, q_len, k_len) == expected).all()
    dense = both.dense(q_len, k_len)
    assert (np.broadcast_to(dense, expected.shape) == expected).all()
    assert both.area(q_len, k_len) == dense.sum()
    assert ((both.additive(q_len, k_len) == 0) == dense).all()


@given(data=st.data(), q_len=LENGTH, k_len=LENGTH)
def test_a_mask_is_what_its_array_says(data, q_len, k_len):
    """dense() of dense() is the same mask, and is kept as intervals exactly when no row needs more than two."""
    mask = data.draw(kinds(q_len, k_len))
    again = masks.dense(mask.dense(q_len, k_len))
    visible = whole(mask, q_len, k_len)
    assert (whole(again, q_len, k_len) == visible).all()
    borders = np.diff(visible.astype(np.int8), axis=-1, prepend=0, append=0)
    runs = (borders != 0).sum(axis=-1) <= 4
    assert (again._lower(BATCH, HEADS, q_len, k_len)[2] is None) == runs.all()


@given(data=st.data(), q_len=LENGTH, k_len=LENGTH)
def test_order_does_not_matter(data, q_len, k_len):
    a, b = data.draw(kinds(q_len, k_len)), data.draw(kinds(q_len, k_len))
    assert (whole(a & b, q_len, k_len) == whole(b & a, q_len, k_len)).all()
    assert (whole(a & a, q_len, k_len) == whole(a, q_len, k_len)).all()


@given(data=st.data(), q_len=LENGTH, k_len=LENGTH)
def test_a_union_is_the_or_of_its_parts(data, q_len, k_len):
    parts = data.draw(st.lists(kinds(q_len, k_len), min_size=2, max_size=4))
    either, expected = parts[0], np.zeros((BATCH, HEADS, q_len, k_len), bool)
    for part in parts[1:]:
        either = either | part
    for part in parts:
        expected |= part.dense(q_len, k_len)
    assert (whole(either, q_len, k_len) == expected).all()
    dense = either.dense(q_len, k_len)
    assert (np.broadcast_to(dense, expected.shape) == expected).all()
    assert either.area(q_len, k_len) == dense.sum()
    assert ((either.additive(q_len, k_len) == 0) == dense).all()
    # Intervals as long as no row needs more than two.
    borders = np.diff(expected.astype(np.int8), axis=-1, prepend=0, append=0)
    if (np.count_nonzero(borders, axis=-1) <= 4).all():
        assert either._lower(BATCH, HEADS, q_len, k_len)[2] is None


@given(data=st.data(), q_len=LENGTH, k_len=LENGTH)
def test_unions_and_intersections_nest(data, q_len, k_len):
    a, b, c = (data.draw(kinds(q_len, k_len)) for _ in range(3))
    shown = [whole(m, q_len, k_len) for m in (a, b, c)]
    assert (whole((a | b) & c, q_len, k_len) == (shown[0] | shown[1]) & shown[2]).all()
    assert (whole(a & b | c, q_len, k_len) == shown[0] & shown[1] | shown[2]).all()
    assert (whole((a | b) & (b | c), q_len, k_len) == (shown[0] | shown[1]) & (shown[1] | shown[2])).all()


@given(data=st.data(), q_len=LENGTH, k_len=LENGTH)
def test_runs_say_what_the_mask_shows(data, q_len, k_len):
    mask = data.draw(kinds(q_len, k_len)) | data.draw(kinds(q_len, k_len))
    lo, hi = mask.runs(q_len, k_len)
    assert lo.ndim == 4 and lo.shape[0] == hi.shape[0] in (1, 2)
    j = np.arange(k_len)
    shown = ((lo[..., None] <= j) & (j < hi[..., None])).any(axis=0)
    dense = mask.dense(q_len, k_len)
    irregular = mask._lower(mask._batch, mask._heads, q_len, k_len)[2] is not None
    assert ((shown >= dense) if irregular else (shown == dense)).all()
    first, last = mask.intervals(q_len, k_len)
    inside = (first[..., None] <= j) & (j < last[..., None])
    assert (inside >= dense).all()
    seen = np.broadcast_to(dense, (mask._batch, mask._heads, q_len, k_len)).any(axis=-1)
    assert (np.broadcast_to(inside, (*seen.shape, k_len)).sum(-1) >= seen).all()
