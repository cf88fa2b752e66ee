"""The gradients of biases and sinks: of every broadcast shape, summed in float32 or more, rounded once."""

import dataclasses
import functools

import numpy as np
import pytest
import tegula as tg
from cases import MASKS, AttentionCase, expected_gradients
from gradients import summed_to
from support import DTYPES, all_same_bits, backward, draw, same_bits
from test_attention_arrays import LAYOUTS
from tolerances import assert_close, assert_gradients_close, epsilon, exact_gradients, gradient_twins

B, H, LQ, LK = 2, 4, 19, 35
CASE = AttentionCase(LQ, LK, 8, heads=H, kv_heads=2, leading=(B,))

SHAPES = {
    "(1,1,L,L)": (1, 1, LQ, LK),
    "(1,H,L,L)": (1, H, LQ, LK),
    "(B,1,L,L)": (B, 1, LQ, LK),
    "(B,H,L,L)": (B, H, LQ, LK),
    "(B,1,1,L)": (B, 1, 1, LK),
    "(B,1,L,1)": (B, 1, LQ, 1),
    "(B,H,1,1)": (B, H, 1, 1),
    "(B,1,1,1)": (B, 1, 1, 1),
    "(1,H,1,L)": (1, H, 1, LK),
    "(1,1,1,1)": (1, 1, 1, 1),
    "(H,L,L)": (H, LQ, LK),
    "(H,1,1)": (H, 1, 1),
    "(L,L)": (LQ, LK),
    "(L,1)": (LQ, 1),
    "(1,L)": (1, LK),
    "(L,)": (LK,),
    "(1,)": (1,),
    "()": (),
}


def inputs(case=CASE):
    return case.grad_out(), *case.arrays()


@functools.cache
def bias_and_twins(shape, bias_dtype, case=CASE):
    """Arguments and expected gradients, the same for every instruction set.

    A sink takes part, so that the sum over the keys of a row is not 0.
    """
    options = {"bias": draw(np.random.default_rng(1), shape, bias_dtype), "sinks": np.linspace(-1, 2, H)}
    return options, gradient_twins(*inputs(case), visible=MASKS[case.mask].visible(case.dims), orders=8, **options)


@pytest.mark.parametrize("bias_dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_c65_a_bias_of_any_shape_and_type(shape, bias_dtype):
    options, twins = bias_and_twins(shape, bias_dtype)
    bias, got = options["bias"], backward(*inputs(), **options)
    assert (got[3].shape, got[3].dtype) == (bias.shape, bias.dtype)
    assert_gradients_close(got, twins, options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["causal", "documents", "dense_per_head", "padding_both"])
@pytest.mark.parametrize("shape", [SHAPES[name] for name in ("(1,H,L,L)", "(B,1,1,L)", "(B,1,L,1)", "(1,1,1,1)")])
def test_c65_a_bias_under_a_mask(shape, mask, dtype):
    """What no pair uses gets exactly 0."""
    case = dataclasses.replace(CASE, mask=mask, dtype=dtype)
    options, twins = bias_and_twins(shape, dtype, case)
    options = options | {"mask": MASKS[mask].build(tg.masks, case.dims)}
    got = backward(*inputs(case), **options)
    assert_gradients_close(got, twins, options)
    axes = tuple(axis for axis, n in enumerate(shape) if n == 1)
    visible = np.broadcast_to(MASKS[mask].visible(case.dims), tuple(case.dims))
    assert (got[3][~visible.any(axes, keepdims=True)] == 0).all()


@pytest.mark.parametrize(
    "shape", [(2, 3, 1, LQ, LK), (3, 2, 1, LK), (2, 1, 1, LQ, 1), (1, 1, 1, 1, 1), (2, LQ, LK), ()]
)
def test_c65_more_leading_axes(shape):
    """(2, 3) batch entries of 2 heads."""
    case = AttentionCase(LQ, LK, 8, heads=2, leading=(2, 3))
    bias = draw(np.random.default_rng(1), shape)
    whole = np.broadcast_to(bias, (2, 3, 2, LQ, LK)).reshape(6, 2, LQ, LK)
    twins = gradient_twins(*inputs(case), bias=whole)
    got = backward(*inputs(case), bias=bias)
    exact, *plain = (summed_to(x.dbias.reshape(2, 3, 2, LQ, LK), shape) for x in (twins.exact, *twins.plain))
    walk = np.sqrt(summed_to(twins.exact.dscores.reshape(2, 3, 2, LQ, LK) ** 2, shape).max())
    assert_close(got[3], exact, plain, "dbias", walk)
    assert_gradients_close(got[:3], twins._replace(exact=twins.exact._replace(dbias=None)), {})


@pytest.mark.parametrize("leading", [(), (2, 3)])
def test_four_axes_are_batch_heads_and_pairs_whatever_the_leading_axes_are(leading):
    """A 4-D bias counts batch entries as their product; its gradient has its shape."""
    case = AttentionCase(LQ, LK, 8, heads=2, leading=leading)
    rows = int(np.prod(leading))
    for shape in ((rows, 2, LQ, LK), (1, 2, LQ, LK), (rows, 1, 1, LK), (1, 1, 1, 1)):
        bias = draw(np.random.default_rng(1), shape)
        twins = gradient_twins(*inputs(case), bias=bias)
        assert_gradients_close(backward(*inputs(case), bias=bias), twins, {"bias": bias})


def test_a_broadcast_view_is_an_array_of_its_own_shape():
    """Whoever passes the view (B, H, Lq, Lk) of a row of numbers gets a gradient for every pair."""
    row = draw(np.random.default_rng(1), (LK,))
    view = np.broadcast_to(row, (B, H, LQ, LK))
    by_pair, by_key = (backward(*inputs(), bias=bias) for bias in (view, row))
    assert same_bits(by_pair[3], backward(*inputs(), bias=view.copy())[3])
    assert by_pair[3].flags.c_contiguous and by_pair[3].shape == view.shape
    twins = gradient_twins(*inputs(), bias=row)
    summed = by_pair[3].astype(np.float64).sum((0, 1, 2)).astype(np.float32)
    assert_gradients_close((*by_key[:3], summed), twins, {"bias": row})
    assert all_same_bits(by_pair[:3], by_key[:3])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bias_of_any_strides(layout):
    bias = draw(np.random.default_rng(1), (B, H, LQ, LK))
    assert all_same_bits(backward(*inputs(), bias=bias), backward(*inputs(), bias=LAYOUTS[layout](bias)))


@pytest.mark.parametrize("bias_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 70), (1, 1, 300, 1), (1, 1, 1, 1)])
def test_c65_sixteen_bits_are_rounded_once_after_the_sum(shape, bias_dtype):
    """Hundreds of terms go into one number; a sum in 16 bits would be off by many roundings of its type.

    With a sink the terms of a row do not cancel out.
    """
    case = AttentionCase(300, 70, 8, heads=4, leading=(4,), mask="causal")
    grad_out, (q, k, v) = case.grad_out(), case.arrays()
    grad_out[..., 0] += 2
    v[..., 0] += 3 * (np.arange(70) % 7 == 0)  # so that the terms of a key do not cancel out
    bias = draw(np.random.default_rng(1), shape, bias_dtype)
    sinks = np.linspace(-1, 2, 4)
    exact = exact_gradients(grad_out, q, k, v, bias=bias, sinks=sinks, visible=MASKS["causal"].visible(case.dims))
    terms = summed_to(np.abs(exact.dscores), shape)
    got = backward(grad_out, q, k, v, bias=bias, sinks=sinks, mask=tg.masks.causal(align="bottom_right"))[3]
    error = np.abs(got.astype(float) - exact.dbias)
    assert (error <= epsilon(got.dtype) / 2 * np.abs(exact.dbias) + 16 * epsilon("float32") * terms).all()


def test_a_bias_of_infinity_or_nan_reaches_its_row_only():
    bias = np.zeros((LQ, LK), "f4")
    clean = backward(*inputs(), bias=bias)
    bias[5, 7] = np.nan
    dq, _, _, dbias = backward(*inputs(), bias=bias)
    others = np.arange(LQ) != 5
    assert np.isnan(dq[:, :, 5]).all() and np.isnan(dbias[5]).all()
    assert same_bits(dq[:, :, others], clean[0][:, :, others])
    assert same_bits(dbias[others], clean[3][others])


def test_slopes_are_a_bias_without_a_gradient():
    """alibi gives the gradients of the bias that it stands for."""
    slopes = np.array([0.5, 0.25, -0.125, 0.0], "f4")
    distance = np.arange(LK) - np.arange(LQ)[:, None] - (LK - LQ)
    bias = (slopes[:, None, None] * distance).astype("f4")
    twins = gradient_twins(*inputs(), bias=bias)
    got = backward(*inputs(), alibi=slopes)
    assert len(got) == 3
    assert_gradients_close(got, twins._replace(exact=twins.exact._replace(dbias=None)), {})


# ---------------------------------------------------------------------------------------------------
# Sinks


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["list", "float32", "float64", "strided"])
def test_sinks_of_any_kind(kind, dtype):
    case = dataclasses.replace(CASE, dtype=dtype, mask="causal")
    numbers = np.array([0.5, -1.0, 2.0, 0.0])
    as_kind = {
        "list": list(numbers),
        "float32": numbers.astype("f4"),
        "float64": numbers,
        "strided": numbers.repeat(2)[::2],
    }
    options = {"sinks": as_kind[kind], "mask": tg.masks.causal(align="bottom_right")}
    twins = gradient_twins(*inputs(case), sinks=numbers, visible=MASKS["causal"].visible(case.dims))
    assert_gradients_close(backward(*inputs(case), **options), twins, options)


def test_a_sink_is_a_key_without_a_value():
    """Its gradient is that of the bias of one more key, whose value is 0."""
    grad_out, q, k, v = inputs()
    sinks = np.array([1.5, -0.5, 0.25, 0.0], "f4")
    padding = [(0, 0), (0, 0), (0, 1), (0, 0)]
    bias = np.zeros((H, 1, LK + 1), "f4")
    bias[:, 0, LK] = sinks
    zero_key = backward(grad_out, q, np.pad(k, padding), np.pad(v, padding), bias=bias)
    dsinks = backward(grad_out, q, k, v, sinks=sinks)[3]
    np.testing.assert_allclose(dsinks, zero_key[3][:, 0, LK], rtol=1e-4, atol=1e-5)


def test_a_sink_of_minus_infinity_has_no_gradient():
    sinks = np.array([-np.inf, 0.5, -np.inf, 0.5])
    got = backward(*inputs(), sinks=sinks)
    twins = gradient_twins(*inputs(), sinks=sinks)
    assert_gradients_close(got, twins, {})
    assert (got[3][[0, 2]] == 0).all() and (got[3][[1, 3]] != 0).all()


def test_a_sink_that_takes_all_leaves_small_gradients_behind():
    """A sink of 200 above all scores: every weight vanishes, nothing overflows."""
    got = backward(*inputs(), sinks=np.full(H, 200.0))
    for x in got:
        assert (np.abs(x) < 1e-20).all()


# ---------------------------------------------------------------------------------------------------
# Dropout


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_c64_the_forward_decisions_are_replayed(p, dtype):
    """In tiles of every kind: whole, cut by the diagonal, and skipped."""
    case = AttentionCase(67, 290, 24, None, 4, 2, (1,), mask="causal", bias="key", dropout_p=p, dtype=dtype)
    options = case.options(tg.masks)
    assert_gradients_close(backward(*inputs(case), **options), expected_gradients(case), options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_c64_the_ends_of_p(dtype):
    case = dataclasses.replace(CASE, dtype=dtype)
    grad_out, q, k, v = inputs(case)
    plain = backward(grad_out, q, k, v)
    assert all_same_bits(plain, backward(grad_out, q, k, v, dropout_p=0.0))
    assert all_same_bits(plain, backward(grad_out, q, k, v, dropout_p=0.0, seed=4))
    v[0, 0, 2] = np.inf
    for x in backward(grad_out, q, k, v, dropout_p=1.0, seed=4, sinks=np.zeros(H)):
        assert (x == 0).all()


def test_same_seed_same_gradients_other_seed_others():
    one, again, other = (backward(*inputs(), dropout_p=0.2, seed=seed) for seed in (8, np.int64(8), 2**63 + 8))
    assert all_same_bits(one, again)
    assert not any(same_bits(x, y) for x, y in zip(one, other, strict=True))


def test_a_pair_that_is_dropped_still_counts_in_the_softmax():
    """dk of a key that every row drops is not 0: its weight takes from the others. Its dv is."""
    case = AttentionCase(3, 6, 8, heads=1, leading=(1,))
    seed = next(s for s in range(1000) if not tg.dropout_mask(s, 0.5, (1, 1, 3, 6))[..., 4].any())
    _, dk, dv = backward(*inputs(case), dropout_p=0.5, seed=seed)
    assert (dv[0, 0, 4] == 0).all() and (dk[0, 0, 4] != 0).all()
