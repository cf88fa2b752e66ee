"""Gradients at the ends of the ranges: large scores, biases beyond float32, caps that are reached, long sums."""

import numpy as np
import pytest
import tegula as tg
from cases import AttentionCase
from support import DTYPES, all_same_bits, backward, draw, numpy_dtype, same_bits
from tolerances import assert_gradients_close, epsilon, gradient_twins


def smallest(dtype):
    """The smallest finite number of a type."""
    return (pytest.importorskip("ml_dtypes") if dtype == "bfloat16" else np).finfo(numpy_dtype(dtype)).min


@pytest.mark.parametrize("dtype", DTYPES)
def test_c44_scores_of_ten_thousand_under_a_mask(dtype):
    """Too large for the square of a float16, and for exp of anything."""
    case = AttentionCase(q_len=40, k_len=40, dtype=dtype)
    q, k, v = case.arrays()
    q, k = (x * np.asarray(60, x.dtype) for x in (q, k))
    assert np.abs(q.astype(float) @ k.astype(float).swapaxes(-1, -2)).max() > 4e4
    got = backward(case.grad_out(), q, k, v, mask=tg.masks.causal())
    assert all(np.isfinite(x.astype(float)).all() for x in got)
    visible = np.tril(np.ones((40, 40), bool))
    assert_gradients_close(got, gradient_twins(case.grad_out(), q, k, v, visible=visible, orders=8), {})


@pytest.mark.parametrize("scale", [1e3, -1e3, 1e-6])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_large_or_a_small_scale(scale, dtype):
    case = AttentionCase(q_len=40, k_len=50, dtype=dtype)
    arrays = case.grad_out(), *case.arrays()
    got = backward(*arrays, scale=scale)
    assert_gradients_close(got, gradient_twins(*arrays, scale=scale, orders=8), {})


@pytest.mark.parametrize("size", [30.0, 1e3, 3e4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_of_large_scores_takes_all_and_leaves_nothing(dtype, size):
    """One key has all the weight: no score can change that a little, so dq and dk are 0."""
    size = numpy_dtype(dtype).type(size)
    q = np.full((1, 3, 4), size)
    k = np.concatenate([-q[:, :1], q[:, :1], q[:, :1] * q.dtype.type(0.5)], axis=1).astype(q.dtype)
    v = np.array([[[1.0], [2.0], [4.0]]], q.dtype)
    grad_out = np.array([[[1.0], [2.0], [3.0]]], q.dtype)
    dq, dk, dv = backward(grad_out, q, k, v)
    assert (dq == 0).all() and (dk == 0).all()
    np.testing.assert_allclose(dv.astype(float), [[[0.0], [6.0], [0.0]]], rtol=1e-6 if dtype == "float64" else 1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_that_tie_at_a_large_score_share_the_weight(dtype):
    """At 1e7 the log-sum-exp of two equal scores is not their size: float32 cannot tell it from one of them."""
    q, k = np.full((1, 3, 4), 2000, numpy_dtype(dtype)), np.full((1, 2, 4), 2500, numpy_dtype(dtype))
    v, grad_out = np.array([[[1.0], [3.0]]], q.dtype), np.array([[[1.0], [2.0], [3.0]]], q.dtype)
    dq, dk, dv = backward(grad_out, q, k, v)
    np.testing.assert_allclose(dv.astype(float), [[[3.0], [3.0]]], rtol=1e-2)
    expect = 0.5 * 2000 * 0.5 * 6 * np.array([-1.0, 1.0])[None, :, None] + np.zeros((1, 1, 4))
    np.testing.assert_allclose(dk.astype(float), expect, rtol=1e-2)
    np.testing.assert_allclose(dq.astype(float), np.zeros((1, 3, 4)), atol=1.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_c43_a_finite_bias_is_arithmetic(dtype):
    """A row of the smallest number is an even one: it has the gradients of a row of zeros.

    But for float16: its smallest number is -65504, where the log-sum-exp is good to 1 in 256.
    """
    case = AttentionCase(dtype=dtype)
    grad_out, (q, k, v) = case.grad_out(), case.arrays()
    q[:] = 0
    even, lowest = (np.full((35, 70), x, q.dtype) for x in (0, smallest(dtype)))
    twins = gradient_twins(grad_out, q, k, v, bias=lowest if dtype == "float16" else even)
    assert_gradients_close(backward(grad_out, q, k, v, bias=lowest), twins, {"bias": lowest})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_c43_a_finite_bias_beyond_float32(dtype):
    case = AttentionCase(5, 5, 8, heads=1, leading=(1,), dtype=dtype)
    arrays = case.grad_out(), *case.arrays()
    lowest = backward(*arrays, bias=np.full((5, 5), np.finfo(np.float64).min))
    assert all(np.isfinite(x.astype(float)).all() for x in lowest)
    highest = np.zeros((5, 5))
    highest[:, 2] = 1e39
    dq, dk, dv, dbias = backward(*arrays, bias=highest)
    # The third key takes everything; what is left of the others' weight is 0.
    terms = np.abs(arrays[0].astype(float)).sum(-1).max() * np.abs(arrays[3].astype(float)).max()
    for x in (dq, dk, dbias):
        assert np.abs(x.astype(float)).max() <= 10 * epsilon(arrays[1].dtype) * terms
    expect = np.zeros(dv.shape)
    expect[0, 0, 2] = arrays[0].astype(float)[0, 0].sum(0)
    np.testing.assert_allclose(dv.astype(float), expect, rtol=2 * epsilon(dv.dtype), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_c43_smallest_plus_smallest_is_not_nan(dtype):
    """A score and a bias that together are below every number."""
    case = AttentionCase(q_len=8, k_len=20, head_dim=1, dtype=dtype)
    grad_out, (q, k, v) = case.grad_out(), case.arrays()
    q[:], k[:], k[:, :, 1:] = 1, 0, smallest(dtype)
    bias = np.zeros((8, 20), q.dtype)
    bias[:4, 1:] = smallest(dtype)
    dq, dk, dv, dbias = backward(grad_out, q, k, v, bias=bias)
    # The first key has all the weight of every row.
    for x in (dq, dk, dbias):
        assert (x.astype(float) == 0).all()
    assert (dv[:, :, 1:] == 0).all() and np.isfinite(dv.astype(float)).all() and (dv[:, :, 0] != 0).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cap_that_is_reached_lets_no_gradient_through(dtype):
    """tanh of a large number is 1 and flat: dq and dk vanish, dv and dbias do not."""
    case = AttentionCase(q_len=20, k_len=30, bias="pair", dtype=dtype)
    grad_out, (q, k, v) = case.grad_out(), case.arrays()
    bias = case.options(tg.masks)["bias"]
    q[:], k[:] = 100, np.where(np.arange(30) % 2, 100, -100)[:, None]
    dq, dk, dv, dbias = backward(grad_out, q, k, v, softcap=3.0, bias=bias)
    assert (dq == 0).all() and (dk == 0).all()
    assert (dv != 0).mean() > 0.99 and (dbias != 0).mean() > 0.99


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [0.05, 50.0, 1000.0])
def test_softcap_far_below_and_far_above_the_scores(softcap, dtype):
    case = AttentionCase(softcap=softcap, dtype=dtype)
    arrays = case.grad_out(), *case.arrays()
    assert_gradients_close(backward(*arrays, softcap=softcap), gradient_twins(*arrays, softcap=softcap), {})


def test_a_cap_beyond_every_score_is_none_and_the_tightest_one_makes_all_alike():
    case = AttentionCase(5, 5, 8)
    arrays = case.grad_out(), *case.arrays()
    for x, y in zip(backward(*arrays, softcap=1e300), backward(*arrays), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    tightest = backward(*arrays, softcap=1e-300)
    assert all(np.isfinite(x).all() for x in tightest)
    np.testing.assert_allclose(tightest[2], backward(*arrays, scale=0.0)[2], rtol=1e-5, atol=1e-6)


def test_scores_grow_from_tile_to_tile():
    for slope in (0.2, -0.2, 0.0):
        case = AttentionCase(q_len=20, k_len=600, head_dim=4, heads=1)
        grad_out, (q, k, v) = case.grad_out(), case.arrays()
        q[..., 0], k[..., 0] = 1, slope * np.arange(600)
        assert_gradients_close(backward(grad_out, q, k, v, scale=1.0), gradient_twins(grad_out, q, k, v, scale=1.0), {})


@pytest.mark.parametrize("dtype", DTYPES)
def test_c60_infinite_gradients_stay_with_their_row(dtype):
    case = AttentionCase(q_len=50, k_len=50, mask="causal", leading=(1,), dtype=dtype)
    arrays = dict(zip(("grad_out", "q", "k", "v"), (case.grad_out(), *case.arrays()), strict=True))
    clean = backward(**arrays, mask=tg.masks.causal())
    arrays["grad_out"][:, :, 20] = np.inf
    dq, dk, dv = backward(**arrays, mask=tg.masks.causal())
    others = np.arange(50) != 20
    assert same_bits(dq[:, :, others], clean[0][:, :, others])
    assert not np.isfinite(dq[:, :, 20].astype(float)).any()
    assert np.isposinf(dv[:, :, :21].astype(float)).all()
    assert same_bits(dv[:, :, 21:], clean[2][:, :, 21:]) and same_bits(dk[:, :, 21:], clean[1][:, :, 21:])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_over_many_rows_are_not_kept_in_sixteen_bits(dtype):
    """4096 rows with the same grad_out of 1 and one key: dv is 4096, where adding 1 to 2048 in float16 stays 2048."""
    q, k, v = (np.zeros((1, 1, n, 4), numpy_dtype(dtype)) for n in (4096, 1, 1))
    grad_out = np.ones((1, 1, 4096, 4), q.dtype)
    _, _, dv = backward(grad_out, q, k, v)
    np.testing.assert_array_equal(dv.astype(float), np.full((1, 1, 1, 4), 4096.0))
    # And many heads that share the key.
    q, grad_out = (np.broadcast_to(x, (1, 8, 4096, 4)) for x in (q, grad_out))
    np.testing.assert_array_equal(backward(grad_out, q, k, v)[2].astype(float), np.full((1, 1, 1, 4), 8 * 4096.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiny_gradients_are_not_flushed(dtype):
    """A gradient that is smaller than the smallest normal number of its type but a number of its type."""
    tiny = {"float64": 2.0**-1030, "float32": 2.0**-130, "float16": 2.0**-16, "bfloat16": 2.0**-130}[dtype]
    q, k, v = (np.zeros((1, 1, 2, 4), numpy_dtype(dtype)) for _ in range(3))
    grad_out = np.full((1, 1, 2, 4), tiny).astype(q.dtype)
    assert (grad_out != 0).all()
    dv = backward(grad_out, q, k, v)[2]
    np.testing.assert_array_equal(dv.astype(np.float64), np.full(dv.shape, tiny))


def test_c76_masked_keys_behind_do_not_turn_a_zero():
    """-0.0 and the smallest numbers come out the same with keys behind that nobody sees."""
    rng = np.random.default_rng(0)
    q, k, v, grad_out = (draw(rng, (1, 1, 3, 1)) for _ in range(4))
    grad_out[:] = -1e-45
    longer = [np.concatenate([x, np.ones((1, 1, 2000, 1), np.float32)], axis=2) for x in (k, v)]
    short = backward(grad_out, q, k, v)
    dq, dk, dv = backward(grad_out, q, *longer, mask=tg.masks.padding(lengths=[3]))
    assert all_same_bits(short, (dq, dk[:, :, :3].copy(), dv[:, :, :3].copy()))


@pytest.mark.parametrize("empty", ["head_dim", "value_dim"])
def test_heads_of_no_size_before_a_long_cache(empty):
    """Rows of no numbers have nothing to be sent for."""
    length = 70_000
    cut = np.lib.stride_tricks.as_strided
    ones = np.ones(64, np.float32)
    full = cut(ones, (1, 1, length, 64), (0, 0, 0, 4))
    nothing = cut(ones, (1, 1, length, 0), (0, 0, 0, 4))
    k, v = (nothing, full) if empty == "head_dim" else (full, nothing)
    q = k[:, :, :1]
    out, lse = tg.attention(q, k, v, return_lse=True)
    score = k.shape[-1] ** 0.5
    np.testing.assert_allclose(lse, np.log(length) + score, rtol=1e-6)
    np.testing.assert_allclose(out, np.ones_like(out), rtol=1e-5)
    dq, dk, dv = tg.attention_backward(np.ones_like(out), q, k, v, out, lse)
    np.testing.assert_allclose(dq, np.zeros_like(dq), atol=1e-5)
    np.testing.assert_allclose(dk, np.zeros_like(dk), atol=1e-5)
    np.testing.assert_allclose(dv, np.full_like(dv, 1 / length), rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 4, 5, 50])
def test_a_visible_nan_is_seen_whatever_the_number_of_rows(rows):
    """Also by a key whose own score is -inf."""
    q = np.ones((1, 1, rows, 4), np.float32)
    k = np.zeros((1, 1, 16, 4), np.float32)
    v = np.ones_like(k)
    k[0, 0, 0], k[0, 0, 1] = -np.inf, np.nan
    out, lse = tg.attention(q, k, v, return_lse=True)
    _, dk, dv = tg.attention_backward(np.ones_like(out), q, k, v, out, lse)
    assert np.isnan(dk).all() and np.isnan(dv).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lanes_without_a_row_add_nothing(dtype):
    """A block of rows that ends early, and an infinite key that its rows see."""
    q, k, v = np.ones((1, 2, 6, 16), dtype), np.zeros((1, 1, 16, 16), dtype), np.ones((1, 1, 16, 1), dtype)
    q[:, :, 5], k[0, 0, 15] = 0, -np.inf
    for real in range(1, 6):
        mask = tg.masks.padding([16], queries=[real])
        out, lse = tg.attention(q, k, v, mask=mask, return_lse=True)
        dv = tg.attention_backward(np.ones_like(out), q, k, v, out, lse, mask=mask)[2]
        np.testing.assert_allclose(dv[0, 0, :15], 2 * real / 15, rtol=1e-5)
        assert (dv[0, 0, 15] == 0).all()
