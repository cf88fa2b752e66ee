"""In the gradients too: a masked key does not exist, and a row without keys gives and gets nothing."""

import numpy as np
import pytest
import tegula as tg
from cases import MASKS, AttentionCase
from support import DTYPES, all_same_bits, backward, draw, same_bits
from tolerances import assert_gradients_close, gradient_twins

POISONS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


def visible_pairs(case):
    return np.broadcast_to(MASKS[case.mask].visible(case.dims), tuple(case.dims))


def without(x, hidden, value):
    """A copy of x with `value` in the hidden rows."""
    x = x.copy()
    x[hidden] = value
    return x


# ---------------------------------------------------------------------------------------------------
# NaN and Inf behind a mask

# Masks under which some keys are seen by no query, or some queries see no key, on sizes with whole and
# partial tiles.
HIDING = {
    "padding_lengths": (35, 290),
    "padding_left": (35, 290),
    "padding_scattered": (35, 70),
    "padding_both": (130, 290),
    "causal_top_left": (19, 290),
    "window": (5, 290),
    "sliding_and_documents": (35, 290),
    "causal_and_padding": (70, 70),
    "causal": (290, 35),
    "documents_causal": (35, 70),
    "dense_per_batch": (70, 35),
    "nothing": (35, 70),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", POISONS.values(), ids=POISONS)
@pytest.mark.parametrize("mask", HIDING)
def test_c61_what_a_mask_hides_changes_no_bit_of_any_gradient(mask, value, dtype):
    """Keys and values that nobody sees; queries that see nobody, and the gradients of their results."""
    q_len, k_len = HIDING[mask]
    case = AttentionCase(q_len=q_len, k_len=k_len, mask=mask, dtype=dtype, leading=(4,), bias="pair", sinks=True)
    q, k, v = case.arrays()
    pairs = visible_pairs(case)
    empty, hidden = ~pairs.any(-1), ~pairs.any(-2)
    assert empty.any() or hidden.any()
    options = case.options(tg.masks)

    def gradients(value):
        rows = (without(x, empty, value) for x in (case.grad_out(), q))
        return backward(*rows, without(k, hidden, value), without(v, hidden, value), **options)

    clean = gradients(0)
    assert all_same_bits(clean, gradients(value))
    dq, dk, dv = clean[:3]
    assert (dq[empty] == 0).all() and (dk[hidden] == 0).all() and (dv[hidden] == 0).all()


@pytest.mark.parametrize("value", POISONS.values(), ids=POISONS)
@pytest.mark.parametrize("options", [{"softcap": 2.0}, {"alibi": True}, {"dropout_p": 0.3}, {"kv_heads": 1}])
def test_c61_what_a_mask_hides_stays_out_of_every_option(options, value):
    case = AttentionCase(q_len=35, k_len=290, mask="padding_lengths", leading=(3,), **options)
    q, k, v = case.arrays()
    hidden = ~visible_pairs(case).any(-2)[:, : k.shape[1]]
    clean, dirty = (
        backward(case.grad_out(), q, without(k, hidden, x), without(v, hidden, x), **case.options(tg.masks))
        for x in (0, value)
    )
    assert all_same_bits(clean, dirty)


TRIANGLES = {
    "causal": lambda seen, dtype: {"mask": tg.masks.causal()},
    "bool_array": lambda seen, dtype: {"mask": seen},
    "bias": lambda seen, dtype: {"bias": np.where(seen, 0, -np.inf).astype(dtype)},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", POISONS.values(), ids=POISONS)
@pytest.mark.parametrize("which", ["q", "k", "v", "grad_out"])
@pytest.mark.parametrize("build", TRIANGLES.values(), ids=TRIANGLES)
def test_c62_future_poison_stays_in_the_future(build, value, which, dtype):
    """Rows in the same tile as the poisoned one, but before it, do not notice.

    Poison in key or value j reaches the queries from j on, and so every key they see: none is spared. But
    the gradients of the queries before j are what they were. A poisoned query i spares the keys behind it.
    """
    n, at = 40, 21
    case = AttentionCase(q_len=n, k_len=n, dtype=dtype)
    arrays = dict(zip(("grad_out", "q", "k", "v"), (case.grad_out(), *case.arrays()), strict=True))
    options = build(np.tril(np.ones((n, n), bool)), arrays["q"].dtype)
    clean = backward(**arrays, **options)
    arrays[which][:, :, at] = value
    dq, dk, dv = backward(**arrays, **options)[:3]
    if which in "kv":
        assert same_bits(dq[:, :, :at], clean[0][:, :, :at])
        if np.isnan(value):
            assert np.isnan(dq[:, :, at:].astype(float)).all()
    else:
        others = np.arange(n) != at
        assert same_bits(dq[:, :, others], clean[0][:, :, others])
        for got, expect in ((dk, clean[1]), (dv, clean[2])):
            assert same_bits(got[:, :, at + 1 :], expect[:, :, at + 1 :])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["dense_per_batch", "window", "documents_unsorted", "full"])
@pytest.mark.parametrize("which", ["q", "grad_out"])
def test_c60_nan_in_a_row_reaches_exactly_its_own_keys(which, mask, dtype):
    """NaN in one query, or in the gradient of its result: its dq, and dk and dv of the keys it sees."""
    case = AttentionCase(q_len=70, k_len=150, mask=mask, leading=(1,), dtype=dtype)
    row = 36
    arrays = dict(zip(("grad_out", "q", "k", "v"), (case.grad_out(), *case.arrays()), strict=True))
    options, seen = case.options(tg.masks), visible_pairs(case)[0, 0, row]
    assert seen.any()
    clean = backward(**arrays, **options)
    arrays[which][0, 0, row, 3] = np.nan
    dq, dk, dv = backward(**arrays, **options)
    assert np.isnan(dq[0, 0, row].astype(float)).all()
    assert np.isnan(dk[0, 0, seen].astype(float)).all()
    columns = np.arange(16) == 3 if which == "grad_out" else np.full(16, True)
    assert np.isnan(dv[0, 0, seen][:, columns].astype(float)).all()
    dq[0, 0, row], dk[0, 0, seen] = clean[0][0, 0, row], clean[1][0, 0, seen]
    dv[0, 0][np.ix_(seen, columns)] = clean[2][0, 0][np.ix_(seen, columns)]
    assert all_same_bits((dq, dk, dv), clean)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["dense_per_batch", "window", "documents_unsorted", "full"])
@pytest.mark.parametrize("which", ["k", "v"])
def test_c60_nan_in_a_key_reaches_exactly_the_rows_that_see_it(which, mask, dtype):
    """And through them dk of every key that these rows see. dv does not depend on the values at all."""
    case = AttentionCase(q_len=70, k_len=150, mask=mask, leading=(1,), dtype=dtype)
    key = 100
    arrays = dict(zip(("grad_out", "q", "k", "v"), (case.grad_out(), *case.arrays()), strict=True))
    options, pairs = case.options(tg.masks), visible_pairs(case)[0, 0]
    rows = pairs[:, key]
    assert rows.any()
    clean = backward(**arrays, **options)
    arrays[which][0, 0, key, 3] = np.nan
    dq, dk, dv = backward(**arrays, **options)
    reached = pairs[rows].any(0)
    assert np.isnan(dq[0, 0, rows].astype(float)).all()
    assert np.isnan(dk[0, 0, reached].astype(float)).all()
    dq[0, 0, rows], dk[0, 0, reached] = clean[0][0, 0, rows], clean[1][0, 0, reached]
    if which == "k":
        assert np.isnan(dv[0, 0, reached].astype(float)).all()
        dv[0, 0, reached] = clean[2][0, 0, reached]
    assert all_same_bits((dq, dk, dv), clean)


@pytest.mark.parametrize("mask", ["causal", "dense_per_head", "window"])
def test_a_bias_behind_a_mask_does_not_exist_either(mask):
    """It may hold NaN, and its gradient is 0 there."""
    case = AttentionCase(q_len=70, k_len=70, mask=mask, leading=(1,))
    arrays, pairs = [case.grad_out(), *case.arrays()], visible_pairs(case)
    options, bias = case.options(tg.masks), draw(np.random.default_rng(0), tuple(case.dims))
    clean = backward(*arrays, bias=bias, **options)
    assert all_same_bits(clean, backward(*arrays, bias=np.where(pairs, bias, np.nan).astype("f4"), **options))
    assert (clean[3][~pairs] == 0).all() and (clean[3][pairs] != 0).mean() > 0.9


@pytest.mark.parametrize("dtype", DTYPES)
def test_minus_infinity_in_a_bias_masks(dtype):
    """Like a bool mask: hidden keys may hold NaN, rows without keys are zero, and so is dbias there."""
    rng = np.random.default_rng(0)
    case = AttentionCase(dtype=dtype)
    grad_out, (q, k, v) = case.grad_out(), case.arrays()
    visible = rng.random((2, 1, 35, 70)) < 0.5
    visible[:, :, 4] = False
    visible[..., 50:] = False
    bias = np.where(visible, draw(rng, visible.shape), -np.inf).astype(q.dtype)
    twins = gradient_twins(grad_out, q, k, v, bias=bias)
    k[:, :, 50:], v[:, :, 50:], q[:, :, 4], grad_out[:, :, 4] = np.nan, np.inf, np.nan, np.inf
    got = backward(grad_out, q, k, v, bias=bias)
    assert_gradients_close(got, twins, {"bias": bias})
    assert (got[3][~visible] == 0).all()


# ---------------------------------------------------------------------------------------------------
# Rows without keys

HIDE_ROWS = {
    "bool": lambda hidden, k: {"mask": np.repeat(~hidden[:, None], k, axis=1)},
    "bias": lambda hidden, k: {"bias": np.where(hidden[:, None], -np.inf, np.zeros((1, k)))},
    "padding": lambda hidden, k: {"mask": tg.masks.padding(keep=np.ones((1, k), bool), queries=~hidden[None])},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hide", HIDE_ROWS.values(), ids=HIDE_ROWS)
def test_c41_a_row_without_keys_has_no_gradient(hide, dtype):
    """And gives none to the keys, whatever it holds; the rows beside it have those they have without it."""
    case = AttentionCase(leading=(1,), dtype=dtype)
    grad_out, (q, k, v) = case.grad_out(), case.arrays()
    empty = np.arange(35) % 3 == 1
    twins = gradient_twins(grad_out, q, k, v, visible=~empty[:, None])
    others = backward(grad_out[:, :, ~empty], q[:, :, ~empty], k, v, **hide(empty[~empty], 70))
    q[:, :, empty], grad_out[:, :, empty] = np.nan, np.inf
    dq, dk, dv = backward(grad_out, q, k, v, **hide(empty, 70))[:3]
    assert (dq[:, :, empty] == 0).all()
    assert same_bits(dq[:, :, ~empty], others[0])
    assert_gradients_close((dq, dk, dv), twins, {})


@pytest.mark.parametrize("dtype", DTYPES)
def test_c40_bottom_right_leaves_the_first_queries_without_keys(dtype):
    case = AttentionCase(q_len=5, k_len=2, dtype=dtype)
    got = backward(case.grad_out(), *case.arrays(), mask=tg.masks.causal(align="bottom_right"))
    visible = np.tril(np.ones((5, 2), bool), -3)
    assert (got[0][:, :, :3] == 0).all()
    assert_gradients_close(got, gradient_twins(case.grad_out(), *case.arrays(), visible=visible), {})


def test_t2_07_a_row_without_keys_but_with_a_sink():
    """The sink takes all the weight and gives nothing: its gradient is 0, whatever grad_out holds."""
    case = AttentionCase()
    grad_out, sinks = case.grad_out(), np.array([0.5, -2.0], np.float32)
    grad_out[0] = np.nan
    mask = tg.masks.padding([0, 70])
    dq, dk, dv, dsinks = backward(grad_out, *case.arrays(), mask=mask, sinks=sinks)
    assert (dq[0] == 0).all() and (dk[0] == 0).all() and (dv[0] == 0).all()
    one = np.s_[1:]
    alone = backward(grad_out[one], *(x[one] for x in case.arrays()), sinks=sinks)
    assert all_same_bits((dq[one], dk[one], dv[one], dsinks), alone)


def test_c51_documents_of_length_zero():
    """Empty on the query side, on the key side, and on both, next to ones that are not."""
    cu_q, cu_k = [0, 0, 3, 3, 5], [0, 2, 2, 4, 9]
    rng = np.random.default_rng(0)
    q, k, v, grad_out = (draw(rng, (n, 2, 8)) for n in (5, 9, 9, 5))
    mask = tg.masks.documents(cu_seqlens=cu_q, cu_seqlens_k=cu_k)
    dq, dk, dv = backward(grad_out, q, k, v, mask=mask, layout="lhd")
    assert (dq[:3] == 0).all() and (dk[:4] == 0).all() and (dv[:4] == 0).all()
    last = gradient_twins(grad_out[3:], q[3:], k[4:], v[4:], layout="lhd")
    assert_gradients_close((dq[3:], dk[4:], dv[4:]), last, {})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, 7.0])
def test_c49_documents_have_gradients_of_their_own(value, dtype):
    """Whatever stands in one document, and whatever other mask comes with it."""
    cu = [0, 13, 13, 40, 57, 300]
    rng = np.random.default_rng(0)
    arrays = [draw(rng, (300, 2, 8), dtype) for _ in range(4)]
    changed, others = [x.copy() for x in arrays], np.r_[0:13, 40:300]
    for x in changed:
        x[13:40] = value
    documents = tg.masks.documents(cu_seqlens=cu)
    for mask in (
        documents,
        documents & tg.masks.causal(),
        documents & tg.masks.dense(np.ones((300, 300), bool)),
        tg.masks.documents(cu_seqlens=cu, window=(5, 3)),
        documents.dense(300, 300).reshape(300, 300),
    ):
        before = backward(*arrays, mask=mask, layout="lhd")
        after = backward(*changed, mask=mask, layout="lhd")
        for x, y in zip(before, after, strict=True):
            assert same_bits(x[others], y[others])
            assert not same_bits(x[13:40], y[13:40])


def test_c55_padding_holds_on_every_call():
    case = AttentionCase(mask="padding_lengths")
    arrays, options = [case.grad_out(), *case.arrays()], case.options(tg.masks)
    first, second = (backward(*arrays, **options) for _ in range(2))
    assert all_same_bits(first, second)
    assert not same_bits(first[1], backward(*arrays)[1])
