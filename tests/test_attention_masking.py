"""A masked key does not exist, and a row without keys gives zeros."""

import numpy as np
import pytest
import tegula as tg
from cases import MASKS, AttentionCase
from support import DTYPES, draw, same_bits
from tolerances import assert_attention_close, attention_twins

POISONS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


def hidden_keys(case):
    """(B, H, Lk): the keys that no query of that head sees."""
    pairs = np.broadcast_to(MASKS[case.mask].visible(case.dims), tuple(case.dims))
    return ~pairs.any(-2)


def poison(case, k, v, value):
    """Copies of k and v with `value` in every key nobody sees; heads are not grouped."""
    k, v, hidden = k.copy(), v.copy(), hidden_keys(case)
    k[hidden], v[hidden] = value, value
    return k, v


def attention(q, k, v, mask, **options):
    return tg.attention(q, k, v, mask=mask, return_lse=True, return_weights=True, **options)


# ---------------------------------------------------------------------------------------------------
# NaN and Inf behind a mask

# Masks under which some keys are seen by no query at all, on sizes with whole and partial tiles.
HIDING = {
    "padding_lengths": (35, 290),
    "padding_left": (35, 290),
    "padding_scattered": (35, 70),
    "causal_top_left": (19, 290),
    "window": (5, 290),
    "sliding_and_documents": (35, 290),
    "causal_and_padding": (70, 70),
    "documents_causal": (35, 70),
    "window_left_unlimited": (5, 290),
    "nothing": (35, 70),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", POISONS.values(), ids=POISONS)
@pytest.mark.parametrize("mask", HIDING)
def test_c61_what_a_masked_key_holds_changes_no_bit(mask, value, dtype):
    q_len, k_len = HIDING[mask]
    case = AttentionCase(q_len=q_len, k_len=k_len, mask=mask, dtype=dtype, leading=(4,))
    assert hidden_keys(case).any()
    q, k, v = case.arrays()
    mask = MASKS[mask].build(tg.masks, case.dims)
    clean = attention(q, *poison(case, k, v, 0), mask)
    dirty = attention(q, *poison(case, k, v, value), mask)
    for a, b in zip(clean, dirty, strict=True):
        assert same_bits(a, b)


@pytest.mark.parametrize("value", POISONS.values(), ids=POISONS)
@pytest.mark.parametrize("options", [{"bias": "pair"}, {"softcap": 2.0}, {"alibi": True}, {"sinks": True}])
def test_c61_masked_keys_stay_out_of_every_option(options, value):
    case = AttentionCase(q_len=35, k_len=290, mask="padding_lengths", leading=(3,), **options)
    q, k, v = case.arrays()
    options = case.options(tg.masks)
    clean = tg.attention(q, *poison(case, k, v, 0), **options)
    assert same_bits(clean, tg.attention(q, *poison(case, k, v, value), **options))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", POISONS.values(), ids=POISONS)
@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize("mask", ["causal", "bool_array", "bias"])
def test_c62_future_poison_stays_in_the_future(which, value, mask, dtype):
    """Rows in the same tile as the poisoned key, but before it, do not notice."""
    n, at = 40, 21
    q, k, v = AttentionCase(q_len=n, k_len=n, dtype=dtype).arrays()
    triangle = np.tril(np.ones((n, n), bool))
    options = {
        "causal": {"mask": tg.masks.causal()},
        "bool_array": {"mask": triangle},
        "bias": {"bias": np.where(triangle, 0, -np.inf).astype(q.dtype)},
    }[mask]
    clean = tg.attention(q, k, v, **options, return_lse=True)
    {"k": k, "v": v}[which][:, :, at] = value
    out, lse = tg.attention(q, k, v, **options, return_lse=True)
    assert same_bits(out[:, :, :at], clean[0][:, :, :at])
    assert same_bits(lse[:, :, :at], clean[1][:, :, :at])
    if np.isnan(value) or which == "v":
        assert not np.isfinite(out[:, :, at:].astype(float)).any()
    if np.isnan(value) and which == "k":
        assert np.isnan(lse[:, :, at:]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_c60_nan_in_a_query_stays_in_its_row(dtype):
    q, k, v = AttentionCase(dtype=dtype).arrays()
    clean = tg.attention(q, k, v, return_lse=True)
    q[0, 1, 3, 5] = np.nan
    out, lse = tg.attention(q, k, v, return_lse=True)
    assert np.isnan(out[0, 1, 3].astype(float)).all() and np.isnan(lse[0, 1, 3])
    others = np.ones(lse.shape, bool)
    others[0, 1, 3] = False
    assert same_bits(out[others], clean[0][others])
    assert same_bits(lse[others], clean[1][others])


@pytest.mark.parametrize("which", ["k", "v"])
def test_c60_nan_that_may_be_attended_reaches_exactly_the_rows_that_may(which):
    case = AttentionCase(q_len=70, k_len=290, mask="dense_per_batch")
    q, k, v = case.arrays()
    mask = MASKS[case.mask].build(tg.masks, case.dims)
    clean = tg.attention(q, k, v, mask=mask)
    {"k": k, "v": v}[which][:, :, 130] = np.nan
    out = tg.attention(q, k, v, mask=mask)
    sees = np.broadcast_to(mask.dense(70, 290)[..., 130], out.shape[:-1])
    assert sees.any() and not sees.all()
    assert np.isnan(out[sees]).all()
    assert same_bits(out[~sees], clean[~sees])


def test_c60_one_nan_among_the_values_stays_in_its_column():
    q, k, v = AttentionCase().arrays()
    clean = tg.attention(q, k, v)
    v[0, 0, 9, 4] = np.nan
    out = tg.attention(q, k, v)
    assert np.isnan(out[0, 0, :, 4]).all()
    out[0, 0, :, 4] = clean[0, 0, :, 4]
    assert same_bits(out, clean)


def test_nan_in_a_masked_query_is_not_looked_at():
    """A query that has no key gives zeros whatever it holds."""
    case = AttentionCase(q_len=35, k_len=35, mask="padding_both")
    q, k, v = case.arrays()
    mask = MASKS[case.mask].build(tg.masks, case.dims)
    clean = attention(q, k, v, mask)
    empty = np.isneginf(clean[1])
    assert empty.any()
    q[empty] = np.nan
    for a, b in zip(clean, attention(q, k, v, mask), strict=True):
        assert same_bits(a, b)


def test_a_bias_behind_a_mask_does_not_exist_either():
    q, k, v = AttentionCase(q_len=35, k_len=70).arrays()
    bias = draw(np.random.default_rng(0), (35, 70))
    mask = tg.masks.causal(align="bottom_right")
    clean = tg.attention(q, k, v, mask=mask, bias=bias)
    bias[~mask.dense(35, 70)] = np.nan
    assert same_bits(tg.attention(q, k, v, mask=mask, bias=bias), clean)


@pytest.mark.parametrize("dtype", DTYPES)
def test_minus_infinity_in_a_bias_masks(dtype):
    """Like a bool mask: hidden keys may hold NaN, and rows without keys are zero."""
    rng = np.random.default_rng(0)
    q, k, v = AttentionCase(dtype=dtype).arrays()
    visible = rng.random((2, 1, 35, 70)) < 0.5
    visible[:, :, 4] = False
    visible[..., 50:] = False
    bias = np.where(visible, draw(rng, visible.shape), -np.inf).astype(q.dtype)
    twins = attention_twins(q, k, v, bias=bias)
    k[:, :, 50:], v[:, :, 50:] = np.nan, np.nan
    got = tg.attention(q, k, v, bias=bias, return_lse=True, return_weights=True)
    assert_attention_close(*got, twins)
    assert (got[0][:, :, 4] == 0).all() and np.isneginf(got[1][:, :, 4]).all()


# ---------------------------------------------------------------------------------------------------
# Rows without keys


HIDE_ROWS = {
    "bool": lambda hidden, k: {"mask": np.repeat(~hidden[:, None], k, axis=1)},
    "bias": lambda hidden, k: {"bias": np.where(hidden[:, None], -np.inf, np.zeros((1, k)))},
    "padding": lambda hidden, k: {"mask": tg.masks.padding(keep=np.ones((1, k), bool), queries=~hidden[None])},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hide", HIDE_ROWS.values(), ids=HIDE_ROWS)
def test_c41_a_row_without_keys_is_zero(hide, dtype):
    """And the rows beside it are what they are without it."""
    q, k, v = AttentionCase(leading=(1,), dtype=dtype).arrays()
    empty = np.arange(35) % 3 == 1
    with_empty, without = (
        tg.attention(q, k, v, **hide(hidden, 70), return_lse=True, return_weights=True)
        for hidden in (empty, np.zeros(35, bool))
    )
    out, lse, weights = (x[:, :, empty] for x in with_empty)
    assert (out == 0).all() and (weights == 0).all() and np.isneginf(lse).all()
    for got, expect in zip(with_empty, without, strict=True):
        assert same_bits(got[:, :, ~empty], expect[:, :, ~empty])


@pytest.mark.parametrize("dtype", DTYPES)
def test_c40_bottom_right_leaves_the_first_queries_without_keys(dtype):
    q, k, v = AttentionCase(q_len=5, k_len=2, dtype=dtype).arrays()
    mask = tg.masks.causal(align="bottom_right")
    out, lse, weights = attention(q, k, v, mask)
    assert (out[:, :, :3] == 0).all() and np.isneginf(lse[:, :, :3]).all()
    visible = np.tril(np.ones((5, 2), bool), -3)
    assert_attention_close(out, lse, weights, attention_twins(q, k, v, visible=visible))


def test_t2_07_a_row_without_keys_but_with_a_sink():
    """The sink alone is the denominator: nothing comes out, and the log-sum-exp is the sink."""
    q, k, v = AttentionCase().arrays()
    sinks = np.array([0.5, -2.0], np.float32)
    out, lse = tg.attention(q, k, v, mask=tg.masks.padding([0, 70]), sinks=sinks, return_lse=True)
    assert (out[0] == 0).all()
    np.testing.assert_array_equal(lse[0], np.broadcast_to(sinks[:, None], (2, 35)))
    assert np.isfinite(lse[1]).all() and (out[1] != 0).all()


def test_c51_documents_of_length_zero():
    """Empty on the query side, on the key side, and on both, next to ones that are not."""
    cu_q, cu_k = [0, 0, 3, 3, 5], [0, 2, 2, 4, 9]
    rng = np.random.default_rng(0)
    q, k, v = (draw(rng, (n, 2, 8)) for n in (5, 9, 9))
    mask = tg.masks.documents(cu_seqlens=cu_q, cu_seqlens_k=cu_k)
    out, lse = tg.attention(q, k, v, mask=mask, layout="lhd", return_lse=True)
    assert (out[:3] == 0).all() and np.isneginf(lse[:, :3]).all()
    last = attention_twins(q[3:], k[4:], v[4:], layout="lhd")
    assert_attention_close(out[3:], lse[:, 3:], None, last)


def test_c49_documents_do_not_see_one_another():
    """Whatever stands in one document, and whatever other mask comes with it."""
    cu = [0, 13, 13, 40, 57]
    rng = np.random.default_rng(0)
    q, k, v = (draw(rng, (57, 2, 8)) for _ in range(3))
    documents = tg.masks.documents(cu_seqlens=cu)
    for mask in (documents, documents & tg.masks.causal(), documents & tg.masks.dense(np.ones((57, 57), bool))):
        before = tg.attention(q, k, v, mask=mask, layout="lhd")
        changed = [x.copy() for x in (q, k, v)]
        for x in changed:
            x[13:40] = np.nan
        after = tg.attention(*changed, mask=mask, layout="lhd")
        others = np.r_[0:13, 40:57]
        assert same_bits(before[others], after[others])
        assert np.isnan(after[13:40]).all()


def test_c55_padding_holds_on_every_call():
    """The second call is not a faster one that forgot the mask."""
    case = AttentionCase(mask="padding_lengths")
    q, k, v = case.arrays()
    mask = MASKS[case.mask].build(tg.masks, case.dims)
    first, second = (tg.attention(q, k, v, mask=mask) for _ in range(2))
    assert same_bits(first, second)
    assert not same_bits(first, tg.attention(q, k, v))
