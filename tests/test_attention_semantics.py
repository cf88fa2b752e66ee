"""Which pairs a mask lets through, and what bias, scale, softcap, alibi and sinks do, on numbers by hand."""

import numpy as np
import pytest
import tegula as tg
from cases import AttentionCase
from support import DTYPES, draw, numpy_dtype, same_bits
from tolerances import assert_attention_close, attention_twins


def attention(*arrays, **options):
    return tg.attention(*arrays, **options, return_lse=True, return_weights=True)


def seen(q_len, k_len, mask, **options):
    """(Lq, Lk) bool: the keys each query takes its values from. All weights are equal."""
    q, k = np.zeros((q_len, 1), "f4"), np.zeros((k_len, 1), "f4")
    return tg.attention(q, k, np.eye(k_len, dtype="f4"), mask=mask, **options) > 0


def rows(*text):
    return np.array([[cell == "x" for cell in row] for row in text])


# ---------------------------------------------------------------------------------------------------
# Masks


def test_c34_true_means_may_attend():
    visible = np.array([[True, False], [True, True]])
    np.testing.assert_array_equal(seen(2, 2, visible), visible)
    np.testing.assert_array_equal(seen(2, 2, tg.masks.causal()), visible)


@pytest.mark.parametrize(
    ("q_len", "k_len", "mask", "expect"),
    [
        (2, 5, {"align": "bottom_right"}, ("xxxx.", "xxxxx")),
        (2, 5, {"align": "top_left"}, ("x....", "xx...")),
        (2, 5, {"offset": 1}, ("xx...", "xxx..")),
        (2, 5, {"offset": -1}, (".....", "x....")),
        (5, 2, {"align": "bottom_right"}, ("..", "..", "..", "x.", "xx")),
        (5, 2, {"align": "top_left"}, ("x.", "xx", "xx", "xx", "xx")),
        (1, 5, {"align": "bottom_right"}, ("xxxxx",)),
        (1, 5, {"align": "top_left"}, ("x....",)),
    ],
)
def test_c39_causal_alignment(q_len, k_len, mask, expect):
    np.testing.assert_array_equal(seen(q_len, k_len, tg.masks.causal(**mask)), rows(*expect))


@pytest.mark.isa_once
@pytest.mark.parametrize("mask", [lambda m: m.causal(), lambda m: m.window(2, 0), lambda m: m.sliding(3)])
def test_c39_alignment_has_to_be_named_when_lengths_differ(mask):
    with pytest.raises(ValueError, match="align"):
        seen(2, 5, mask(tg.masks))
    seen(5, 5, mask(tg.masks))


@pytest.mark.parametrize("n", [1, 2, 9, 17])
def test_c45_a_sliding_window_counts_its_own_key(n):
    for size in range(1, n + 2):
        counts = seen(n, n, tg.masks.sliding(size)).sum(-1)
        np.testing.assert_array_equal(counts, np.minimum(np.arange(n) + 1, size))
        i = np.arange(n)
        counts = seen(n, n, tg.masks.window(size, size)).sum(-1)
        np.testing.assert_array_equal(counts, np.minimum(i, size) + 1 + np.minimum(n - 1 - i, size))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("q_len", [1, 7, 300])
@pytest.mark.parametrize("layout", ["bhld", "blhd"])
def test_c47_no_path_forgets_the_window(layout, q_len, dtype):
    """300 keys, a window of 8: one query, few, many; both layouts; grouped heads."""
    case = AttentionCase(q_len, 300, 8, layout=layout, heads=4, kv_heads=2, leading=(1,), dtype=dtype)
    q, k, v = case.arrays()
    mask = tg.masks.sliding(8, align="bottom_right")
    got = attention(q, k, v, mask=mask, layout=layout)
    i, j = np.arange(q_len)[:, None] + 300 - q_len, np.arange(300)
    visible = (j <= i) & (j > i - 8)
    assert_attention_close(*got, attention_twins(q, k, v, visible=visible, layout=layout))


def test_c37_one_meaning_for_every_mask_shape():
    """A 2-D array is (Lq, Lk), never (B, Lk), also where the sizes would allow both."""
    q, k, v = AttentionCase(q_len=3, k_len=3, leading=(3,), heads=3).arrays()
    visible = np.tril(np.ones((3, 3), bool))
    got = tg.attention(q, k, v, mask=visible, return_lse=True)
    assert_attention_close(*got, None, attention_twins(q, k, v, visible=visible))
    with pytest.raises(ValueError, match="mask"):
        tg.attention(q, k, v, mask=np.ones((3, 3, 3), bool))
    q, k, v = AttentionCase(q_len=4, k_len=3, leading=(3,)).arrays()
    with pytest.raises(ValueError, match="mask"):
        tg.attention(q, k, v, mask=np.ones((3, 3), bool))


@pytest.mark.isa_once
def test_c36_a_mask_is_bool_and_a_bias_is_float():
    q, k, v = AttentionCase(q_len=4, k_len=4).arrays()
    triangle = np.tril(np.ones((4, 4)))
    for dtype in (np.float64, np.float32, np.int64, np.uint8):
        with pytest.raises(TypeError, match=f"mask.*{np.dtype(dtype)}"):
            tg.attention(q, k, v, mask=triangle.astype(dtype))
    for dtype in (bool, np.int64, np.uint8):
        with pytest.raises(TypeError, match=f"bias.*{np.dtype(dtype)}"):
            tg.attention(q, k, v, bias=triangle.astype(dtype))


def test_c38_masks_given_together_are_combined():
    q, k, v = AttentionCase(q_len=35, k_len=35).arrays()
    rng = np.random.default_rng(0)
    dense = rng.random((2, 1, 35, 35)) < 0.6
    visible = dense & np.tril(np.ones((35, 35), bool))
    twins = attention_twins(q, k, v, visible=visible)
    causal = tg.masks.causal()
    for mask in (causal & tg.masks.dense(dense), tg.masks.dense(dense) & causal):
        assert_attention_close(*attention(q, k, v, mask=mask), twins)
    bias = np.where(dense, 0, -np.inf).astype(np.float32)
    assert_attention_close(*attention(q, k, v, mask=causal, bias=bias), twins)


# ---------------------------------------------------------------------------------------------------
# Large numbers


def smallest(dtype):
    """The smallest finite number of a type."""
    kind = numpy_dtype(dtype)
    return (pytest.importorskip("ml_dtypes") if dtype == "bfloat16" else np).finfo(kind).min


@pytest.mark.parametrize("dtype", DTYPES)
def test_c43_a_finite_bias_is_arithmetic(dtype):
    """A row of the smallest number is an even one: the mean of all values, no mask."""
    q, k, v = AttentionCase(dtype=dtype).arrays()
    q[:] = 0
    bias = np.full((35, 70), smallest(dtype), q.dtype)
    assert_attention_close(*attention(q, k, v, bias=bias), attention_twins(q, k, v, bias=bias))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_c43_smallest_plus_smallest_is_not_nan(dtype):
    """A score and a bias that together are below every number: no weight beside a key that is seen."""
    q, k, v = AttentionCase(q_len=8, k_len=20, head_dim=1, dtype=dtype).arrays()
    q[:], k[:], k[:, :, 1:] = 1, 0, smallest(dtype)
    bias = np.zeros((8, 20), q.dtype)
    bias[:4, 1:], bias[4:] = smallest(dtype), smallest(dtype)
    out, lse = tg.attention(q, k, v, bias=bias, return_lse=True)
    assert same_bits(out, np.broadcast_to(v[:, :, :1], out.shape).copy())
    assert (lse[:, :, :4] == 0).all() and not np.isnan(lse).any()
    # Rows where every key is like that have nothing to prefer, but are not NaN either.
    out, lse = tg.attention(q, k[:, :, 1:], v[:, :, 1:], bias=bias[:, 1:], return_lse=True)
    assert np.isfinite(out.astype(float)).all() and not np.isnan(lse).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_c44_scores_of_ten_thousand_under_a_mask(dtype):
    """Too large for the square of a float16, and for exp of anything."""
    q, k, v = AttentionCase(q_len=40, k_len=40, dtype=dtype).arrays()
    q, k = (x * np.asarray(60, x.dtype) for x in (q, k))
    assert np.abs(q.astype(float) @ k.astype(float).swapaxes(-1, -2)).max() > 4e4
    got = attention(q, k, v, mask=tg.masks.causal())
    assert all(np.isfinite(x.astype(float)).all() for x in got)
    visible = np.tril(np.ones((40, 40), bool))
    assert_attention_close(*got, attention_twins(q, k, v, visible=visible, orders=16))


def test_scores_grow_from_tile_to_tile():
    """The running maximum rises, falls and stays; earlier sums are rescaled each time."""
    q, k, v = AttentionCase(q_len=20, k_len=600, head_dim=4).arrays()
    for slope in (0.2, -0.2, 0.0):
        grown = k.copy()
        q[..., 0], grown[..., 0] = 1, slope * np.arange(600)
        got = attention(q, grown, v, scale=1.0)
        assert_attention_close(*got, attention_twins(q, grown, v, scale=1.0))


# ---------------------------------------------------------------------------------------------------
# What changes the scores


def test_scale_defaults_to_one_over_the_root_of_the_head_size():
    q, k, v = AttentionCase(head_dim=16).arrays()
    assert same_bits(tg.attention(q, k, v), tg.attention(q, k, v, scale=0.25))
    doubled = tg.attention(q * 2, k, v, scale=0.125)
    assert same_bits(tg.attention(q, k, v), doubled)


def test_softcap_bends_scores_before_anything_is_added():
    """One query, two keys with scores 0 and 10; softcap 2 makes them 0 and 2 tanh(5)."""
    q, k = np.array([[1.0]], "f4"), np.array([[0.0], [10.0]], "f4")
    v = np.eye(2, dtype="f4")
    bias = np.array([[3.0, 0.0]], "f4")
    twins = attention_twins(q, k, v, softcap=2.0, bias=bias)
    expect = np.log(np.exp(3.0) + np.exp(2 * np.tanh(5.0)))
    np.testing.assert_allclose(twins.exact.lse, [expect], rtol=1e-15)
    assert_attention_close(*attention(q, k, v, softcap=2.0, bias=bias), twins)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softcap_of_small_scores_loses_nothing(dtype):
    """tanh(x) of a small x is x, not the difference of two exponentials."""
    case = AttentionCase(softcap=1000.0, dtype=dtype)
    q, k, v = case.arrays()
    assert_attention_close(*attention(q, k, v, softcap=1000.0), attention_twins(q, k, v, softcap=1000.0))


def test_alibi_is_a_bias_by_distance_from_the_bottom_right():
    case = AttentionCase(q_len=20, k_len=30, heads=4)
    q, k, v = case.arrays()
    slopes = np.array([0.5, 0.25, -0.125, 0.0], "f4")
    distance = np.arange(30) - np.arange(20)[:, None] - 10
    bias = (slopes[:, None, None] * distance).astype("f4")
    twins = attention_twins(q, k, v, bias=bias)
    assert_attention_close(*attention(q, k, v, alibi=slopes), twins)
    assert_attention_close(*attention(q, k, v, bias=bias), twins)


def test_a_sink_is_a_key_without_a_value():
    q, k, v = AttentionCase().arrays()
    sinks = np.array([1.5, -0.5], "f4")
    out, lse, weights = attention(q, k, v, sinks=sinks)
    assert weights.shape == (2, 2, 35, 70)
    assert (weights.sum(-1) < 1).all()
    # The same as one more key whose score is the sink and whose value is 0.
    one_more = np.pad(k, [(0, 0)] * 2 + [(0, 1), (0, 0)]), np.pad(v, [(0, 0)] * 2 + [(0, 1), (0, 0)])
    bias = np.zeros((2, 1, 71), "f4")
    bias[:, :, 70] = sinks[:, None]
    twins = attention_twins(q, *one_more, bias=bias)
    assert_attention_close(out, lse, None, twins)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_sink_of_minus_infinity_is_no_sink(dtype):
    q, k, v = AttentionCase(dtype=dtype).arrays()
    plain = tg.attention(q, k, v, return_lse=True)
    none = tg.attention(q, k, v, sinks=np.full(2, -np.inf, "f4"), return_lse=True)
    assert_attention_close(*none, None, attention_twins(q, k, v))
    assert same_bits(plain[0], none[0])


@pytest.mark.parametrize("bias_dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_of_any_float_type(dtype, bias_dtype):
    q, k, v = AttentionCase(q_len=9, k_len=20, dtype=dtype).arrays()
    bias = draw(np.random.default_rng(0), (2, 9, 20), "float32").astype(numpy_dtype(bias_dtype))
    assert_attention_close(*attention(q, k, v, bias=bias), attention_twins(q, k, v, bias=bias))


@pytest.mark.parametrize("dtype", DTYPES)
def test_c65_a_broadcast_bias_is_the_whole_one(dtype):
    """A broadcast axis is walked with stride 0, and gives the bits of the repeated array."""
    q, k, v = AttentionCase(q_len=35, k_len=70, dtype=dtype).arrays()
    for shape in ((1, 1, 35, 70), (1, 2, 35, 70), (2, 1, 1, 70), (35, 1), ()):
        bias = draw(np.random.default_rng(1), shape, dtype)
        whole = np.broadcast_to(bias, (2, 2, 35, 70)).copy()
        a, b = attention(q, k, v, bias=bias), attention(q, k, v, bias=whole)
        assert all(same_bits(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_scale_does_not_overflow_where_the_score_is_finite(dtype):
    large = 3e38 if dtype == "float32" else 1.7e308
    q, k = np.full((1, 1), large, dtype), np.full((2, 1), 1 / large, dtype)
    v = np.array([[1.0], [3.0]], dtype)
    for scale in (None, 1.0, -2.0, 30.0):
        np.testing.assert_array_equal(tg.attention(q, k, v, scale=scale), [[2.0]])


def test_a_cap_beyond_every_score_is_none_and_the_tightest_one_makes_all_alike():
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 5, 8), np.float32)
    np.testing.assert_array_equal(tg.attention(q, k, v, softcap=1e300), tg.attention(q, k, v))
    mean = np.broadcast_to(v.mean(axis=1, keepdims=True), v.shape)
    np.testing.assert_allclose(tg.attention(q, k, v, softcap=1e-300), mean, rtol=1e-6)
