"""Attention on shapes, masks and types that nobody thought of: each one on every instruction set."""

import numpy as np
import pytest
import tegula as tg
from hypothesis import assume, given
from hypothesis import strategies as st
from support import DTYPES, HAS_BFLOAT16, draw, every_isa, same_bits
from tolerances import assert_attention_close, assert_close, attention_twins

pytestmark = pytest.mark.isa_once

lengths = st.integers(0, 40) | st.sampled_from([63, 64, 65, 130])
few = st.integers(1, 3)
head_sizes = st.integers(1, 20) | st.sampled_from([32, 64, 65])
aligns = st.sampled_from(["bottom_right", "top_left"])
seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from(DTYPES if HAS_BFLOAT16 else DTYPES[:-1])
sides = st.none() | st.integers(0, 30)


@st.composite
def simple_masks(draw_, batch, heads, q_len, k_len):
    """One mask object of any kind that fits."""

    def numbers(n, low, high):
        return np.array(draw_(st.lists(st.integers(low, high), min_size=n, max_size=n)), int)

    def bools(*shape):
        return np.random.default_rng(draw_(seeds)).random(shape) < draw_(st.floats(0, 1))

    def borders(length, count):
        inner = sorted(draw_(st.lists(st.integers(0, length), min_size=count, max_size=count)))
        return np.array([0, *inner, length])

    m, align = tg.masks, draw_(aligns)
    kind = draw_(st.sampled_from(["causal", "offset", "window", "padding", "keep", "both", "ids", "packed",
                                  "prefix", "chunked", "dense", "full"]))  # fmt: skip
    if kind == "causal":
        return m.causal(align=align)
    if kind == "offset":
        return m.causal(offset=numbers(batch, -10, 40))
    if kind == "window":
        return m.window(draw_(sides), draw_(sides), align=align)
    if kind == "padding":
        return m.padding(numbers(batch, 0, k_len))
    if kind == "keep":
        return m.padding(keep=bools(batch, k_len))
    if kind == "both":
        return m.padding(numbers(batch, 0, k_len), queries=numbers(batch, 0, q_len))
    if kind == "ids":
        return m.documents(numbers(q_len, 0, 3), numbers(k_len, 0, 3))
    if kind == "packed":
        count = draw_(st.integers(0, 4))
        causal = draw_(st.none() | aligns)
        return m.documents(cu_seqlens=borders(q_len, count), cu_seqlens_k=borders(k_len, count), causal=causal)
    if kind == "chunked":
        return m.chunked(draw_(st.integers(1, 40)), align=align)
    if kind == "prefix":
        return m.prefix(numbers(batch, 0, k_len), align=align)
    if kind == "dense":
        return m.dense(bools(draw_(st.sampled_from([1, batch])), draw_(st.sampled_from([1, heads])), q_len, k_len))
    return m.full()


@st.composite
def problems(draw_):
    """q, k, v and one mask, or several combined."""
    batch, groups, per_group = draw_(few), draw_(few), draw_(few)
    q_len, k_len, head_dim, value_dim = (draw_(s) for s in (lengths, lengths, head_sizes, head_sizes))
    heads, dtype = groups * per_group, draw_(dtypes)
    rng = np.random.default_rng(draw_(seeds))
    q = draw(rng, (batch, heads, q_len, head_dim), dtype)
    k = draw(rng, (batch, groups, k_len, head_dim), dtype)
    v = draw(rng, (batch, groups, k_len, value_dim), dtype)
    mask = draw_(simple_masks(batch, heads, q_len, k_len))
    for _ in range(draw_(st.integers(0, 2))):
        mask = mask & draw_(simple_masks(batch, heads, q_len, k_len))
    return q, k, v, mask


def attention(*arrays, **options):
    return tg.attention(*arrays, **options, return_lse=True, return_weights=True)


def dense(mask, q, k):
    """(B, H, Lq, Lk): the mask as the array it stands for."""
    return np.broadcast_to(mask.dense(q.shape[2], k.shape[2]), (*q.shape[:3], k.shape[2]))


@given(problems())
def test_any_problem_is_the_twin_and_its_mask_is_its_dense_form(problem):
    q, k, v, mask = problem
    visible = dense(mask, q, k)
    twins = attention_twins(q, k, v, visible=visible)
    for _ in every_isa():
        assert_attention_close(*attention(q, k, v, mask=mask), twins)
        assert_attention_close(*attention(q, k, v, mask=visible), twins)


@given(
    problems(), st.sampled_from(["none", "keys", "pairs", "whole"]),
    st.none() | st.floats(0.5, 20), st.none() | st.floats(-2, 2), st.booleans(), st.booleans(),
    st.sampled_from([0.0, 0.2, 0.7]), seeds,
)  # fmt: skip
def test_any_problem_with_any_options_is_the_twin(problem, bias, softcap, scale, alibi, sinks, p, seed):
    q, k, v, mask = problem
    pairs = (*q.shape[:3], k.shape[2])
    rng = np.random.default_rng(seed)
    shared = {"softcap": softcap, "scale": scale}
    if bias != "none":
        axes = {"keys": pairs[3:], "pairs": pairs[2:], "whole": pairs}[bias]
        shared["bias"] = draw(rng, axes, q.dtype.name)
    if alibi:
        shared["alibi"] = draw(rng, pairs[1:2]) / 8
    if sinks:
        shared["sinks"] = draw(rng, pairs[1:2])
    keep = tg.dropout_mask(seed, p, pairs)
    twins = attention_twins(q, k, v, visible=dense(mask, q, k), keep=keep, dropout_p=p, **shared)
    for _ in every_isa():
        got = attention(q, k, v, mask=mask, dropout_p=p, seed=seed, **shared)
        assert_attention_close(*got, twins)


@given(problems(), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_keys_that_nobody_sees_change_no_bit(problem, value):
    q, k, v, mask = problem
    visible = dense(mask, q, k)
    batch, heads, q_len, k_len = visible.shape
    rows_of_a_key_head = heads // k.shape[1] * q_len
    seen = visible.reshape(batch, k.shape[1], rows_of_a_key_head, k_len).any(2)
    assume(not seen.all())
    poisoned_k, poisoned_v = k.copy(), v.copy()
    poisoned_k[~seen], poisoned_v[~seen] = value, value
    for _ in every_isa():
        clean = attention(q, k, v, mask=mask)
        for a, b in zip(clean, attention(q, poisoned_k, poisoned_v, mask=mask), strict=True):
            assert same_bits(a, b)


@given(problems(), st.integers(2, 5))
def test_threads_change_no_bit(problem, threads):
    q, k, v, mask = problem
    for _ in every_isa():
        one = attention(q, k, v, mask=mask, threads=1)
        for a, b in zip(one, attention(q, k, v, mask=mask, threads=threads), strict=True):
            assert same_bits(a, b)


@given(problems(), st.data())
def test_a_row_alone_has_the_bits_it_has_among_others(problem, data):
    """The row's own mask goes with it, as a dense row in both calls."""
    q, k, v, mask = problem
    assume(q.shape[2] > 0)
    row = data.draw(st.integers(0, q.shape[2] - 1))
    visible, at = dense(mask, q, k), np.s_[:, :, row : row + 1]
    for _ in every_isa():
        whole = attention(q, k, v, mask=visible)
        alone = attention(q[at], k, v, mask=visible[at].copy())
        for a, b in zip(whole, alone, strict=True):
            assert same_bits(a[at].copy(), b)


@given(problems(), st.data())
def test_keys_cut_anywhere_merge_to_the_whole(problem, data):
    q, k, v, mask = problem
    cut = data.draw(st.integers(0, k.shape[2]))
    visible = dense(mask, q, k)
    twins = attention_twins(q, k, v, visible=visible)
    # The halves are rounded once more than the whole is, at the size of single values.
    magnitude = np.abs(v.astype(float)).max(initial=0)
    for _ in every_isa():
        parts = []
        for keys in (slice(None, cut), slice(cut, None)):
            half = visible[..., keys].copy()
            parts += tg.attention(q, k[:, :, keys], v[:, :, keys], mask=half, return_lse=True)
        out, lse = tg.merge_attention(*parts)
        assert_close(out, twins.exact.out, [x.out for x in twins.plain], "out", unit=magnitude)
        assert_close(lse, twins.exact.lse, [x.lse for x in twins.plain], "lse", unit=2.0)
