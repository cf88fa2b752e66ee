"""The same inputs give the same bits, whatever is computed beside them and by however many threads."""

import dataclasses

import numpy as np
import pytest
import tegula as tg
from cases import MASKS, AttentionCase, around
from support import DTYPES, draw, same_bits


def attention(q, k, v, **options):
    return tg.attention(q, k, v, **options, return_lse=True)


def same(a, b):
    return all(same_bits(x, y) for x, y in zip(a, b, strict=True))


def part(results, index):
    """The same slice of out and lse; `index` reaches over (B, H, Lq)."""
    return [x[index].copy() for x in results]


# ---------------------------------------------------------------------------------------------------
# Threads and repetition

# Enough work to be shared out: many heads, one head with many rows, and few rows with many keys.
SHARED = {
    "heads": AttentionCase(130, 200, 64, heads=8, kv_heads=2, mask="causal"),
    "rows": AttentionCase(800, 300, 32, heads=1, leading=(1,), mask="window"),
    "keys": AttentionCase(1, 20_000, 64, heads=2, leading=(1,)),
    "keys-masked": AttentionCase(1, 20_000, 64, heads=2, leading=(1,), mask="padding_lengths"),
    "keys-dropout": AttentionCase(5, 9_000, 64, heads=1, leading=(1,), dropout_p=0.2),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shared", SHARED)
def test_the_number_of_threads_changes_no_bit(shared, dtype):
    case = dataclasses.replace(SHARED[shared], dtype=dtype)
    arrays, options = case.arrays(), case.options(tg.masks)
    alone = attention(*arrays, **options, threads=1)
    for threads in (2, 3, 7):
        assert same(alone, attention(*arrays, **options, threads=threads))


@pytest.mark.parametrize("mask", MASKS)
def test_the_number_of_threads_changes_no_bit_under_any_mask(mask):
    case = AttentionCase(150, 150, 64, heads=4, mask=mask, bias="head_pair", sinks=True)
    arrays, options = case.arrays(), case.options(tg.masks)
    assert same(attention(*arrays, **options, threads=1), attention(*arrays, **options, threads=3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_second_call_gives_the_same(dtype):
    case = AttentionCase(67, 290, 33, mask="causal_and_padding", dtype=dtype)
    arrays, options = case.arrays(), case.options(tg.masks)
    first = attention(*arrays, **options)
    for _ in range(3):
        assert same(first, attention(*arrays, **options))
    assert same_bits(first[0], tg.attention(*arrays, **options, out=np.full_like(first[0], np.nan)))


# ---------------------------------------------------------------------------------------------------
# What stands beside a row


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [24, 64])
def test_c76_a_row_does_not_depend_on_the_number_of_queries(head_dim, dtype):
    q, k, v = AttentionCase(768, 300, head_dim, leading=(1,), dtype=dtype).arrays()
    whole = attention(q, k, v)
    for q_len in (1, 8, 192, 768):
        first, last = np.s_[:, :, :q_len], np.s_[:, :, 768 - q_len :]
        assert same(attention(q[first], k, v), part(whole, first))
        assert same(attention(q[last], k, v), part(whole, last))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["causal", "sliding"])
def test_c76_a_decoded_row_is_the_row_of_the_whole(mask, dtype):
    """The newest queries alone, under a mask that is aligned bottom-right, see what they saw before."""
    case = AttentionCase(200, 200, 64, leading=(1,), mask=mask, dtype=dtype)
    q, k, v = case.arrays()
    build = MASKS[mask].build
    whole = attention(q, k, v, mask=build(tg.masks, case.dims))
    for q_len in (1, 8, 49):
        last = np.s_[:, :, 200 - q_len :]
        alone = attention(q[last], k, v, mask=build(tg.masks, case.dims._replace(q_len=q_len)))
        assert same(alone, part(whole, last))


@pytest.mark.parametrize("dtype", DTYPES)
def test_c77_one_query_against_a_long_cache_is_the_row_of_many(dtype):
    """Keys are split over threads when there are few rows; the split must not show."""
    q, k, v = AttentionCase(70, 9_001, 64, heads=1, leading=(2,), dtype=dtype).arrays()
    whole = attention(q, k, v)
    for row in (0, 37, 69):
        at = np.s_[:, :, row : row + 1]
        for threads in (1, 2, 7):
            assert same(attention(q[at], k, v, threads=threads), part(whole, at))
        one = np.s_[1:, :, row : row + 1]
        assert same(attention(q[one], k[1:], v[1:], threads=7), part(whole, one))


@pytest.mark.parametrize("dtype", DTYPES)
def test_c76_masked_keys_behind_the_last_visible_one_change_no_bit(dtype):
    lengths = (1, *around((16, 64, 256, 1024)), 300)
    q, k, v = AttentionCase(20, 2100, 64, heads=1, leading=(1,), dtype=dtype).arrays()
    for length in lengths:
        trimmed = attention(q, k[:, :, :length], v[:, :, :length])
        for behind in (1, 15, 64, 1000):
            keys = np.s_[:, :, : length + behind]
            padded = attention(q, k[keys], v[keys], mask=tg.masks.padding([length]))
            assert same(trimmed, padded), (length, behind)


@pytest.mark.parametrize("dtype", DTYPES)
def test_c76_a_long_cache_with_room_behind_the_last_key(dtype):
    q, k, v = AttentionCase(1, 9_000, 64, heads=1, leading=(1,), dtype=dtype).arrays()
    trimmed = attention(q, k[:, :, :5_000], v[:, :, :5_000])
    assert same(trimmed, attention(q, k, v, mask=tg.masks.padding([5_000])))


@pytest.mark.parametrize("dtype", DTYPES)
def test_c76_a_batch_entry_does_not_depend_on_the_others(dtype):
    case = AttentionCase(67, 130, 64, leading=(4,), heads=3, mask="padding_lengths", dtype=dtype)
    q, k, v = case.arrays()
    lengths = np.array([66, 130, 0, 129])
    whole = attention(q, k, v, mask=tg.masks.padding(lengths))
    for b in range(4):
        one = np.s_[b : b + 1]
        alone = attention(q[one], k[one], v[one], mask=tg.masks.padding(lengths[one]))
        assert same(alone, part(whole, one))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("q_len", [1, 67])
def test_c76_a_head_does_not_depend_on_the_others(q_len, dtype):
    """Alone, in a group that shares one key/value head, or with keys and values repeated."""
    case = AttentionCase(q_len, 130, 64, heads=6, kv_heads=2, mask="causal", dtype=dtype)
    q, k, v = case.arrays()
    mask = tg.masks.causal(align="bottom_right")
    grouped = attention(q, k, v, mask=mask)
    repeated = attention(q, k.repeat(3, axis=1), v.repeat(3, axis=1), mask=mask)
    assert same(grouped, repeated)
    for h in range(6):
        one, shared = np.s_[:, h : h + 1], np.s_[:, h // 3 : h // 3 + 1]
        assert same(attention(q[one], k[shared], v[shared], mask=mask), part(grouped, one))


@pytest.mark.parametrize("dtype", DTYPES)
def test_c76_a_row_does_not_depend_on_what_the_others_hold(dtype):
    q, k, v = AttentionCase(50, 130, 64, dtype=dtype).arrays()
    clean = attention(q, k, v)
    changed = q.copy()
    changed[:, :, 0::3] = np.nan
    changed[:, :, 1::3] *= np.asarray(50, q.dtype)
    assert same(part(attention(changed, k, v), np.s_[:, :, 2::3]), part(clean, np.s_[:, :, 2::3]))


def test_what_else_is_returned_changes_no_bit():
    case = AttentionCase(67, 290, 64, mask="sliding")
    arrays, options = case.arrays(), case.options(tg.masks)
    out = tg.attention(*arrays, **options)
    for wanted in ({"return_lse": True}, {"return_weights": True}):
        assert same_bits(out, tg.attention(*arrays, **options, **wanted)[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_give_the_same_bits(dtype):
    q, k, v = AttentionCase(50, 50, 24, leading=(1,), heads=4, kv_heads=2, dtype=dtype).arrays()
    mask = tg.masks.documents(cu_seqlens=[0, 20, 50])
    out, lse = attention(q, k, v, mask=mask)
    swapped = [x.swapaxes(1, 2) for x in (q, k, v)]
    for layout, arrays in (("blhd", swapped), ("lhd", [x[0] for x in swapped])):
        got = attention(*arrays, mask=mask, layout=layout)
        assert same_bits(got[0].swapaxes(-3, -2).reshape(out.shape), out)
        assert same_bits(got[1].reshape(lse.shape), lse)


def test_a_row_in_a_packed_batch_is_the_row_of_its_own_call():
    """Documents that start where a tile starts are computed as if they were alone."""
    rng = np.random.default_rng(0)
    q, k, v = (draw(rng, (1, 2, 512, 16)) for _ in range(3))
    whole = attention(q, k, v, mask=tg.masks.documents(cu_seqlens=[0, 200, 512]))
    first = np.s_[:, :, :200]
    assert same(attention(q[first], k[first], v[first]), part(whole, first))
