"""Masks whose rows see two runs of keys: sinks, global tokens, blocks, unions, and attention under them."""

import functools

import numpy as np
import pytest
import reference
import tegula as tg
from cases import AttentionCase, two_runs
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DTYPES, backward, draw, same_bits
from tegula import masks
from test_masks import LENGTHS, SIZES, check, pairs
from tolerances import assert_attention_close, assert_gradients_close, attention_twins, gradient_twins


def attention(q, k, v, **options):
    return tg.attention(q, k, v, **options, return_lse=True)


def all_same(a, b):
    return all(same_bits(x, y) for x, y in zip(a, b, strict=True))


# ---------------------------------------------------------------------------------------------------
# Constructors


@pytest.mark.parametrize("sinks", [0, 1, 4, 10**20])
@pytest.mark.parametrize("size", [1, 3, 20])
def test_sinks_stay_visible(size, sinks):
    for q_len, k_len in SIZES:
        moved = k_len - q_len
        rule = lambda i, j, moved=moved: j <= i + moved and (j > i + moved - size or j < sinks)
        mask = masks.sliding(size, align="bottom_right", sinks=sinks)
        check(mask, q_len, k_len, pairs(q_len, k_len, rule), structured=False)
        assert mask._lower(1, 1, q_len, k_len)[2] is None


def test_sinks_with_an_offset_for_each_batch_entry():
    offsets = [5, -3, 70]
    shown = masks.sliding(3, offset=offsets, sinks=2).dense(9, 40)
    for b, moved in enumerate(offsets):
        rule = lambda i, j, moved=moved: j <= i + moved and (j > i + moved - 3 or j < 2)
        assert (shown[b, 0] == pairs(9, 40, rule)).all()


@pytest.mark.parametrize("queries", [True, False])
def test_global_tokens(queries):
    for q_len, k_len in SIZES:
        for count in sorted({0, 1, k_len // 2, k_len}):
            count = min(count, k_len)
            mask = masks.global_tokens(count, "bottom_right", queries=queries)
            moved = k_len - q_len
            rule = lambda i, j, n=count, d=moved: j < n or (queries and 0 <= i + d < n)
            check(mask, q_len, k_len, pairs(q_len, k_len, rule))
            both = masks.window(2, 1, align="bottom_right") | mask
            either = lambda i, j, rule=rule, d=moved: rule(i, j) or i + d - 2 <= j <= i + d + 1
            check(both, q_len, k_len, pairs(q_len, k_len, either), structured=False)
            assert both._lower(1, 1, q_len, k_len)[2] is None


def test_global_tokens_need_an_alignment_only_for_queries():
    assert masks.global_tokens(1, queries=False).dense(2, 3).astype(int).tolist() == [[1, 0, 0]] * 2
    with pytest.raises(ValueError, match="alignment"):
        masks.global_tokens(1).dense(2, 3)
    with pytest.raises(ValueError, match=r"count\[0\] is 4"):
        masks.global_tokens([4]).dense(3, 3)
    with pytest.raises(TypeError, match="queries must be a bool"):
        masks.global_tokens(1, queries=1)
    with pytest.raises(TypeError, match="count must be integers"):
        masks.global_tokens(0.5)


@pytest.mark.parametrize("sinks", [-1, 1.5, None, True])
def test_sinks_are_a_count(sinks):
    with pytest.raises((ValueError, TypeError), match="sinks must be"):
        masks.sliding(2, sinks=sinks)


@pytest.mark.parametrize(("q_block", "k_block"), [(1, 1), (4, 4), (3, 5), (64, 16)])
def test_block_sparse(q_block, k_block):
    rng = np.random.default_rng(0)
    for q_len, k_len in [(n, m) for n, m in SIZES if n and m]:
        counts = -(-q_len // q_block), -(-k_len // k_block)
        for density in (0.2, 0.7):
            layout = rng.random(counts) < density
            blocks = [rng.permutation(np.flatnonzero(row)) for row in layout]
            expected = reference.block_sparse(q_len, k_len, blocks, q_block, k_block)
            size = (q_block, k_block)
            for mask in (masks.block_sparse(blocks, size, k_blocks=counts[1]), masks.block_sparse(layout, size)):
                check(mask, q_len, k_len, expected, structured=False)
                most = max(np.count_nonzero(np.diff(row.astype(int), prepend=0) == 1) for row in layout)
                assert (mask._lower(1, 1, q_len, k_len)[2] is None) == (most <= 2)


def test_block_sparse_per_batch_entry_and_head():
    layout = np.random.default_rng(0).random((2, 3, 4, 5)) < 0.5
    shown = masks.block_sparse(layout, (2, 3)).dense(7, 14)
    expected = layout.repeat(2, axis=2).repeat(3, axis=3)[:, :, :7, :14]
    assert (shown == expected).all()
    layout[...] = True  # the mask has its own
    assert not masks.block_sparse(~layout, (2, 3)).dense(7, 14).any()
    with pytest.raises(ValueError, match="3 heads"):
        tg.attention(
            *(np.zeros((2, 2, n, 4), np.float32) for n in (7, 14, 14)), mask=masks.block_sparse(layout, (2, 3))
        )


def test_block_sparse_says_what_is_wrong():
    with pytest.raises(IndexError, match=r"blocks\[1\] holds 3, outside the 2 blocks"):
        masks.block_sparse([[0], [3]], 4, k_blocks=2)
    with pytest.raises(IndexError, match=r"blocks\[0\] holds -1"):
        masks.block_sparse([[-1]], 4)
    with pytest.raises(TypeError, match=r"blocks\[0\] must be integers"):
        masks.block_sparse([[0.5]], 4)
    with pytest.raises(ValueError, match="block_size must be at least 1"):
        masks.block_sparse([[0]], 0)
    with pytest.raises(TypeError, match="must be bool"):
        masks.block_sparse(np.ones((2, 2)), 4)
    with pytest.raises(ValueError, match="must have shape"):
        masks.block_sparse(np.ones((2, 2, 2), bool), 4)
    with pytest.raises(ValueError, match=r"q_len 9 and k_len 8 have \(3, 2\) blocks"):
        masks.block_sparse([[0], [1]], 4).dense(9, 8)


# ---------------------------------------------------------------------------------------------------
# Unions


def test_unions_merge_runs_that_meet():
    """Runs that touch or overlap are one: the mask keeps the form that costs nothing."""
    for mask in (
        masks.window(4, 0) | masks.window(0, 4),
        masks.causal() | masks.prefix(3),
        masks.sliding(3) | masks.sliding(5) | masks.full(),
        masks.padding([2, 3]) | masks.padding([1, 4]),
    ):
        lo, hi, dense = mask._lower(2, 1, 6, 6)
        assert lo.ndim == hi.ndim == 3 and dense is None


def test_a_union_beyond_two_runs_becomes_an_array():
    three = masks.sliding(1) | masks.window(None, -0) & masks.padding([1]) | masks.block_sparse([[3]] * 4, 8)
    shown = three.dense(32, 32)
    borders = np.count_nonzero(np.diff(shown.astype(np.int8), axis=1, prepend=0, append=0), axis=1)
    assert borders.max() == 6 and three._lower(1, 1, 32, 32)[2] is not None
    assert three.area(32, 32) == shown.sum()


def test_arrays_join_on_either_side():
    array = np.random.default_rng(0).random((5, 5)) < 0.4
    for mask in (masks.causal() | array, array | masks.causal()):
        assert (mask.dense(5, 5) == (array | np.tri(5, dtype=bool))).all()
    with pytest.raises(TypeError, match="must be bool"):
        masks.causal() | np.ones((5, 5))
    with pytest.raises(ValueError, match="batch entries"):
        masks.padding([1, 2]) | masks.padding([1, 2, 3])


# ---------------------------------------------------------------------------------------------------
# Attention


def rows(count, k_len, edges):
    """(count, k_len) bool from sorted borders (count, 4) of two runs."""
    begin, gap, after, end = edges.T[:, :, None]
    key = np.arange(k_len)
    return (begin <= key) & (key < gap) | (after <= key) & (key < end)


@st.composite
def two_run_calls(draw_from):
    """Sizes around tiles, and two runs a row: some touch, some are empty, some tiles lie in gaps."""
    q_len = draw_from(st.sampled_from([1, 2, 4, 5, 17, 50, 97]))
    k_len = draw_from(st.sampled_from([3, 65, 129, 300, 700]))
    dim, value_dim = draw_from(st.sampled_from([(16, 16), (7, 9), (64, 33)]))
    group = draw_from(st.sampled_from([1, 3]))
    seed = draw_from(st.integers(0, 2**32 - 1))
    near = draw_from(st.booleans())
    rng = np.random.default_rng(seed)
    edges = np.sort(rng.integers(0, k_len + 1, (q_len, 4)), axis=1)
    if near:  # rows like their neighbours, as under sinks and a window
        edges = np.minimum(np.sort(edges[:1] + rng.integers(0, 3, (q_len, 4)), axis=1), k_len)
    edges[rng.random(q_len) < 0.1, 1:] = 0
    edges = np.sort(edges, axis=1)
    return q_len, k_len, dim, value_dim, group, rows(q_len, k_len, edges), rng


@pytest.mark.parametrize("dtype", DTYPES)
@given(call=two_run_calls())
@settings(max_examples=6)
def test_attention_under_two_runs(call, dtype):
    """Against the float64 twin; and the same bits as the dense array, whose rows are no intervals."""
    q_len, k_len, dim, value_dim, group, visible, rng = call
    shapes = ((1, 2 * group, q_len, dim), (1, 2, k_len, dim), (1, 2, k_len, value_dim))
    q, k, v = (draw(rng, shape, dtype) for shape in shapes)
    mask = masks.dense(visible)
    assert mask._lower(1, 1, q_len, k_len)[2] is None
    unseen = ~visible.any(axis=0)
    k[:, :, unseen], v[:, :, unseen] = np.nan, np.inf
    out, lse = attention(q, k, v, mask=mask)
    assert_attention_close(out, lse, None, attention_twins(q, k, v, visible=visible))
    assert all_same((out, lse), forced_dense(q, k, v, visible))
    for threads in (2, 3):
        assert all_same((out, lse), attention(q, k, v, mask=mask, threads=threads))


def forced_dense(q, k, v, visible):
    """The kernel's own answer to the array, with no interval beside it."""
    pairs = np.broadcast_to(visible, (q.shape[0], q.shape[1], *visible.shape[-2:]))
    numbers = (None, None, None, None, 0.0, 0.0, 0)
    return tg._core.attention(q, k, v, None, None, None, np.ascontiguousarray(pairs), *numbers, "bhld", True, False, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@given(call=two_run_calls())
@settings(max_examples=4)
def test_gradients_under_two_runs(call, dtype):
    q_len, k_len, dim, value_dim, group, visible, rng = call
    q_len, k_len = min(q_len, 50), min(k_len, 300)
    visible = visible[:q_len, :k_len]
    shapes = (
        (1, 2 * group, q_len, dim),
        (1, 2, k_len, dim),
        (1, 2, k_len, value_dim),
        (1, 2 * group, q_len, value_dim),
    )
    q, k, v, grad_out = (draw(rng, shape, dtype) for shape in shapes)
    mask = masks.dense(visible)
    found = backward(grad_out, q, k, v, mask=mask)
    assert_gradients_close(found, gradient_twins(grad_out, q, k, v, visible=visible), {})
    out, lse = attention(q, k, v, mask=mask)
    for threads in (1, 3):
        again = tg.attention_backward(grad_out, q, k, v, out, lse, mask=mask, threads=threads)
        assert all_same(found, again)
    irregular = masks.dense(visible) & other_gaps(visible)
    assert all_same(found, tg.attention_backward(grad_out, q, k, v, out, lse, mask=irregular))


def other_gaps(visible):
    """An array that hides nothing more, but has rows of many runs: the kernel reads it pair by pair."""
    shown = visible.copy()
    shown[..., ::2] |= ~visible[..., ::2]
    return masks.dense(shown)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_one_run_does_not_see_the_gaps_of_others(dtype):
    """The same bits whether or not its neighbours have two runs."""
    rng = np.random.default_rng(0)
    q, k, v = AttentionCase(67, 900, 40, heads=2, leading=(1,), dtype=dtype).arrays()
    plain = np.zeros((67, 900), bool)
    for row in plain:
        lo, hi = np.sort(rng.integers(0, 901, 2))
        row[lo:hi] = True
    mixed = np.where(np.arange(67)[:, None] % 3 == 1, two_runs(67, 900), plain)
    whole, beside = (attention(q, k, v, mask=masks.dense(x)) for x in (plain, mixed))
    kept = np.arange(67) % 3 != 1
    assert all(same_bits(a[:, :, kept].copy(), b[:, :, kept].copy()) for a, b in zip(whole, beside, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k_len", [1025, 5000])
def test_a_decoded_row_under_sinks_is_the_row_of_the_whole(k_len, dtype):
    """One query of grouped heads against a long cache, whose chunks in the gap are skipped, on any threads."""
    q, k, v = AttentionCase(70, k_len, 32, heads=4, kv_heads=2, leading=(1,), dtype=dtype).arrays()
    mask = masks.sliding(300, align="bottom_right", sinks=5)
    whole = attention(q, k, v, mask=mask)
    k[:, :, 5 : k_len - 70 - 299], v[:, :, 5 : k_len - 70 - 299] = np.nan, np.nan
    for q_len in (1, 3, 48):
        last = np.s_[:, :, 70 - q_len :]
        for threads in (1, 4):
            alone = attention(q[last], k, v, mask=mask, threads=threads)
            assert all_same(alone, [x[last].copy() for x in whole])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_in_a_gap_reaches_the_rows_that_see_it_alone(dtype):
    """Keys and values inside the gap of most rows: forward and backward."""
    q, k, v = AttentionCase(67, 600, 24, heads=2, leading=(1,), dtype=dtype).arrays()
    visible = np.ones((67, 600), bool)
    visible[:, 100:130] = False
    visible[5, 100:] = False
    visible[40] = True  # sees the gap of the others
    mask = masks.dense(visible)
    clean = attention(q, k, v, mask=mask)
    grad_out = draw(np.random.default_rng(3), clean[0].shape, dtype)
    clean_grads = tg.attention_backward(grad_out, q, k, v, *clean, mask=mask)
    for name in ("k", "v"):
        arrays = {"k": k.copy(), "v": v.copy()}
        arrays[name][:, :, 111] = np.nan
        found = attention(q, arrays["k"], arrays["v"], mask=mask)
        others = np.arange(67) != 40
        assert np.isnan(found[0][:, :, 40].astype(np.float32)).all()
        assert all(same_bits(a[:, :, others].copy(), b[:, :, others].copy()) for a, b in zip(found, clean, strict=True))
        dq, *_ = tg.attention_backward(grad_out, q, arrays["k"], arrays["v"], *found, mask=mask)
        assert same_bits(dq[:, :, others].copy(), clean_grads[0][:, :, others].copy())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_options_under_two_runs(dtype):
    """Everything that changes a score, dropout and weights: against the dense array."""
    case = AttentionCase(
        67, 290, 24, heads=4, kv_heads=2, leading=(2,), mask="two_runs", bias="head_pair", softcap=4.0, alibi=True,
        sinks=True, dropout_p=0.2, dtype=dtype,
    )  # fmt: skip
    arrays, options = case.arrays(), case.options(tg.masks)
    weighed = {"return_weights": True} | {name: x for name, x in options.items() if name not in ("dropout_p", "seed")}
    dense = options["mask"] & other_gaps(two_runs(*case.dims))
    assert dense._lower(*case.dims)[2] is not None
    assert all_same(attention(*arrays, **options), attention(*arrays, **options | {"mask": dense}))
    assert all_same(attention(*arrays, **weighed), attention(*arrays, **weighed | {"mask": dense}))
    grad_out = case.grad_out()
    found = attention(*arrays, **options)
    both = [tg.attention_backward(grad_out, *arrays, *found, **options | {"mask": m}) for m in (options["mask"], dense)]
    assert all_same(*both)


@pytest.mark.parametrize("length", [n for n in LENGTHS if n > 8])
def test_every_place_of_a_short_gap(length):
    """A gap of three keys, at every place in turn."""
    rng = np.random.default_rng(length)
    q, k, v = (draw(rng, (1, 1, n, 8)) for n in (length, length, length))
    visible = np.ones((length, length), bool)
    for row in range(length):
        visible[row, row : row + 3] = False
    found = attention(q, k, v, mask=masks.dense(visible))
    assert_attention_close(*found, None, attention_twins(q, k, v, visible=visible))


def test_the_native_call_takes_any_numbers():
    """Bounds outside the keys and runs in disorder: what both runs show, and nothing out of bounds."""
    rng = np.random.default_rng(0)
    q, k, v = (draw(rng, (1, 1, n, 8)) for n in (60, 90, 90))
    lo, hi = (np.sort(rng.integers(-(2**31), 2**31, (2, 1, 1, 60)) // 2**24, axis=0).astype(np.int32) for _ in range(2))
    j = np.arange(90)
    hull = (lo[0][..., None] <= j) & (j < hi[1][..., None])
    visible = hull & ~((hi[0][..., None] <= j) & (j < lo[1][..., None]))
    numbers = (None, None, None, None, None, 0.0, 0.0, 0)
    out, lse = tg._core.attention(q, k, v, None, lo, hi, *numbers, "bhld", True, False, 1)
    assert_attention_close(out, lse, None, attention_twins(q, k, v, visible=visible))
    with pytest.raises(ValueError, match="first axis must be 2"):
        tg._core.attention(q, k, v, None, lo[:1], hi[:1], *numbers, "bhld", True, False, 1)
    with pytest.raises(ValueError, match="number of axes differs"):
        tg._core.attention(q, k, v, None, lo[0], hi, *numbers, "bhld", True, False, 1)


# ---------------------------------------------------------------------------------------------------
# Dense masks whose empty and full parts are skipped and hurried through


def sparse(q_len, k_len, *, heads=1, rows=48):
    """(1, heads, q_len, k_len): blocks of `rows` by 64 pairs, wholly hidden, wholly visible, and some with holes."""
    rng = np.random.default_rng(q_len + k_len)
    counts = heads, -(-q_len // rows), -(-k_len // 64)
    blocks = rng.random(counts).repeat(rows, axis=1).repeat(64, axis=2)[:, :q_len, :k_len]
    visible = (blocks < 0.3) | ((blocks < 0.4) & (rng.random(blocks.shape) < 0.7))
    visible[:, :, : k_len // 3] |= blocks[:, :, -1:] < 0.5  # whole tiles
    return visible[None]


@functools.cache
def dense_blocks(q_len, k_len, rows, dtype):
    """q, k, v with NaN where nobody looks, the mask, and what attention has to give."""
    q, k, v = AttentionCase(q_len, k_len, 24, value_dim=17, heads=2, kv_heads=1, leading=(1,), dtype=dtype).arrays()
    visible = sparse(q_len, k_len, heads=2, rows=rows)
    unseen = ~visible[0].any(axis=(0, 1))
    k[:, :, unseen], v[:, :, unseen] = np.nan, np.inf
    return q, k, v, visible, attention_twins(q, k, v, visible=visible)


@functools.cache
def gradients_of_blocks(rows, dtype):
    case = AttentionCase(100, 600, 24, value_dim=17, heads=2, kv_heads=1, leading=(1,), dtype=dtype)
    visible = sparse(100, 600, heads=2, rows=rows)
    return case, visible, gradient_twins(case.grad_out(), *case.arrays(), visible=visible)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("q_len", "k_len", "rows"), [(100, 900, 48), (200, 900, 16), (60, 900, 3), (3, 1500, 3)])
def test_dense_blocks(q_len, k_len, rows, dtype):
    """Against the twin; and rows in another order, whose neighbours see other blocks, have the same bits."""
    q, k, v, visible, twins = dense_blocks(q_len, k_len, rows, dtype)
    found = attention(q, k, v, mask=visible)
    assert_attention_close(*found, None, twins)
    order = np.random.default_rng(0).permutation(q_len)
    mixed = attention(np.ascontiguousarray(q[:, :, order]), k, v, mask=np.ascontiguousarray(visible[:, :, order]))
    assert all_same(mixed, [np.ascontiguousarray(x[:, :, order]) for x in found])
    for threads in (2, 5):
        assert all_same(found, attention(q, k, v, mask=visible, threads=threads))
    strided = np.empty((1, 2, q_len, 2 * k_len), bool)[..., ::2]
    strided[...] = visible
    assert all_same(found, attention(q, k, v, mask=strided))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [16, 48])
def test_gradients_of_dense_blocks(rows, dtype):
    case, visible, twins = gradients_of_blocks(rows, dtype)
    (q, k, v), grad_out = case.arrays(), case.grad_out()
    found = backward(grad_out, q, k, v, mask=visible)
    assert_gradients_close(found, twins, {})
    order = np.random.default_rng(0).permutation(100)
    rows = lambda x: np.ascontiguousarray(x[:, :, order])
    mixed = backward(rows(grad_out), rows(q), k, v, mask=rows(visible))
    assert same_bits(mixed[0], rows(found[0]))
    out, lse = attention(q, k, v, mask=visible)
    for threads in (1, 3):
        assert all_same(found, tg.attention_backward(grad_out, q, k, v, out, lse, mask=visible, threads=threads))


@pytest.mark.parametrize("options", [{"bias": True}, {"softcap": 3.0}, {"alibi": True}, {"dropout_p": 0.2, "seed": 7}])
def test_options_with_dense_blocks(options):
    rng = np.random.default_rng(1)
    q, k, v = AttentionCase(70, 600, 24, heads=2, leading=(1,)).arrays()
    visible = sparse(70, 600)
    if "bias" in options:
        options = {"bias": rng.standard_normal((70, 600), np.float32)}
    if "alibi" in options:
        options = {"alibi": [0.1, 0.01]}
    twins = {"keep": tg.dropout_mask(7, 0.2, (1, 2, 70, 600)), "dropout_p": 0.2} if "seed" in options else options
    out, lse = attention(q, k, v, mask=visible, **options)
    assert_attention_close(out, lse, None, attention_twins(q, k, v, visible=visible, **twins))
    weighed = tg.attention(
        q,
        k,
        v,
        mask=visible,
        return_weights=True,
        **{n: x for n, x in options.items() if n != "seed" and n != "dropout_p"},
    )
    assert (weighed[1][..., ~visible[0, 0]] == 0).all()
