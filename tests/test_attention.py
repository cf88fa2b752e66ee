"""Attention gives what the float64 twin gives, over the whole list of cases."""

import numpy as np
import pytest
import tegula as tg
from cases import ATTENTION_CASES, MASKS, AttentionCase, Dims, expected
from support import DTYPES, draw, numpy_dtype, poisoned, same_bits
from tolerances import assert_attention_close, assert_close, attention_twins, epsilon


@pytest.mark.parametrize("case", ATTENTION_CASES, ids=str)
def test_case(case):
    q, k, v = case.arrays()
    twins = expected(case)
    out = poisoned(twins.exact.out.shape, q.dtype)
    returned, lse, weights = tg.attention(
        q, k, v, **case.options(tg.masks), return_lse=True, return_weights=True, out=out
    )
    assert returned is out
    assert_attention_close(out, lse, weights, twins)


# ---------------------------------------------------------------------------------------------------
# What is returned


@pytest.fixture
def qkv():
    return AttentionCase(heads=4, kv_heads=2, value_dim=5).arrays()


def test_c79_weights_and_lse_come_when_asked_for_in_that_order(qkv):
    out, lse, weights = tg.attention(*qkv, return_lse=True, return_weights=True)
    only_out = tg.attention(*qkv)
    assert isinstance(only_out, np.ndarray)
    assert same_bits(only_out, out)
    for got, expect in zip(tg.attention(*qkv, return_lse=True), (out, lse), strict=True):
        assert same_bits(got, expect)
    for got, expect in zip(tg.attention(*qkv, return_weights=True), (out, weights), strict=True):
        assert same_bits(got, expect)


@pytest.mark.parametrize("dtype", DTYPES)
def test_c79_rows_of_the_weights_sum_to_one_or_zero(dtype):
    case = AttentionCase(dtype=dtype, mask="dense_per_batch")
    q, k, v = case.arrays()
    mask = MASKS[case.mask].build(tg.masks, case.dims)
    _, lse, weights = tg.attention(q, k, v, mask=mask, return_lse=True, return_weights=True)
    twins = expected(case)
    assert weights.dtype == q.dtype
    assert lse.dtype == (np.float64 if dtype == "float64" else np.float32)
    empty = np.broadcast_to(~mask.dense(35, 70).any(-1), lse.shape)
    assert empty.any() and not empty.all()
    assert np.isneginf(lse[empty]).all() and np.isfinite(lse[~empty]).all()
    sums = weights.astype(np.float64).sum(-1)
    assert (sums[empty] == 0).all()
    plain = [x.weights.astype(np.float64).sum(-1)[~empty] for x in twins.plain]
    assert_close(sums[~empty], np.ones_like(sums[~empty]), plain, "sum of weights")


@pytest.mark.parametrize("layout", ["bhld", "blhd", "lhd"])
def test_lse_and_weights_have_the_head_axis_first_in_every_layout(layout):
    case = AttentionCase(layout=layout, leading=() if layout == "lhd" else (2,), heads=4, value_dim=3)
    out, lse, weights = tg.attention(*case.arrays(), layout=layout, return_lse=True, return_weights=True)
    per_row = (35, 4, 3) if layout != "bhld" else (4, 35, 3)
    assert out.shape == (*case.leading, *per_row)
    assert lse.shape == (*case.leading, 4, 35)
    assert weights.shape == (*case.leading, 4, 35, 70)


def test_a_matrix_is_one_head():
    q, k, v = (x[0, 0] for x in AttentionCase(heads=1, leading=(1,)).arrays())
    got = tg.attention(q, k, v, return_lse=True, return_weights=True)
    with_axes = tg.attention(*(x[None, None] for x in (q, k, v)), return_lse=True, return_weights=True)
    assert_attention_close(*got, attention_twins(q, k, v))
    for one, four in zip(got, with_axes, strict=True):
        assert same_bits(one, four[0, 0])


# ---------------------------------------------------------------------------------------------------
# Sizes


SIZES = {"B": 2, "H": 4, "G": 2, "Lq": 3, "Lk": 5, "D": 6, "Dv": 7}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zero", [("B",), ("H",), ("H", "G"), ("Lq",), ("Lk",), ("D",), ("Dv",), tuple(SIZES)])
def test_any_axis_may_be_empty(zero, dtype):
    size = {**SIZES, **dict.fromkeys(zero, 0)}
    rng = np.random.default_rng(0)
    q = draw(rng, (size["B"], size["H"], size["Lq"], size["D"]), dtype)
    k = draw(rng, (size["B"], size["G"], size["Lk"], size["D"]), dtype)
    v = draw(rng, (size["B"], size["G"], size["Lk"], size["Dv"]), dtype)
    out, lse, weights = tg.attention(q, k, v, return_lse=True, return_weights=True)
    assert_attention_close(out, lse, weights, attention_twins(q, k, v))


def small_integers(*shape):
    """Values that every type holds exactly and whose columns and rows all differ."""
    count = np.arange(np.prod(shape)) * 7 + np.arange(np.prod(shape)) // 11
    return (count % 11).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", ["Lq", "Lk", "Dv", "D"])
@pytest.mark.parametrize("heads", [1, 6])
def test_every_size_up_to_200(heads, axis, dtype):
    """Equal scores, so that each row is the mean of the values; nothing is left out or written twice."""
    for n in range(1, 200):
        size = {"Lq": 3, "Lk": 5, "D": 2, "Dv": 3, axis: n}
        q = np.zeros((1, heads, size["Lq"], size["D"]), numpy_dtype(dtype))
        k = small_integers(1, heads, size["Lk"], size["D"]).astype(q.dtype)
        v = small_integers(1, heads, size["Lk"], size["Dv"])
        out = tg.attention(q, k, v.astype(q.dtype), out=poisoned((1, heads, size["Lq"], size["Dv"]), q.dtype))
        mean = np.broadcast_to(v.mean(-2, keepdims=True), out.shape)
        assert np.abs(out.astype(float) - mean).max() <= 11 * epsilon(q.dtype), n


def test_no_head_size_means_the_mean_of_the_visible_values():
    q, k, v = np.empty((1, 1, 4, 0), "f4"), np.empty((1, 1, 6, 0), "f4"), np.eye(6, dtype="f4")[None, None]
    causal = tg.masks.causal(align="top_left")
    out = tg.attention(q, k, v, mask=causal)[0, 0]
    expect = np.tril(np.ones((4, 6))) / np.arange(1, 5)[:, None]
    np.testing.assert_array_equal(out, expect.astype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [1, 3, 7, 12, 100])
def test_c53_nothing_has_to_be_aligned(head_dim, dtype):
    """43 keys, an odd head size, and a bias whose rows all lie on one another."""
    rng = np.random.default_rng(head_dim)
    q, k, v = (draw(rng, (2, 3, n, head_dim), dtype) for n in (29, 43, 43))
    row = draw(rng, (43,), dtype)
    bias = np.broadcast_to(row, (2, 3, 29, 43))
    assert bias.strides[:3] == (0, 0, 0)
    out, lse = tg.attention(q, k, v, bias=bias, return_lse=True)
    assert_attention_close(out, lse, None, attention_twins(q, k, v, bias=bias))


# ---------------------------------------------------------------------------------------------------
# Against torch


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("mask", ["full", "causal_top_left", "dense_whole", "padding_lengths"])
def test_torch_in_float64_is_as_good_a_twin(mask, dtype):
    torch = pytest.importorskip("torch")
    case = AttentionCase(q_len=50, k_len=130, head_dim=32, heads=4, mask=mask, dtype=dtype)
    q, k, v = case.arrays()
    visible = np.broadcast_to(MASKS[mask].visible(case.dims), tuple(case.dims)).copy()
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(x.astype(np.float64)) for x in (q, k, v)), attn_mask=torch.from_numpy(visible)
    )
    ours = tg.attention(q, k, v, mask=MASKS[mask].build(tg.masks, case.dims))
    assert_close(ours, theirs.numpy(), [answer.out for answer in expected(case).plain])


# ---------------------------------------------------------------------------------------------------
# NumPy in, NumPy out


@pytest.mark.parametrize("dtype", DTYPES)
def test_c80_numpy_in_numpy_out_in_the_type_of_q(dtype):
    q, k, v = AttentionCase(dtype=dtype).arrays()
    before = [x.tobytes() for x in (q, k, v)]
    out = tg.attention(q, k, v)
    assert type(out) is np.ndarray
    assert out.dtype == numpy_dtype(dtype)
    assert out.flags.c_contiguous and out.flags.writeable
    assert [x.tobytes() for x in (q, k, v)] == before


@pytest.mark.isa_once
def test_c80_numpy_and_torch_do_not_mix(qkv):
    torch = pytest.importorskip("torch")
    q, k, v = qkv
    for mixed in ((torch.from_numpy(q), k, v), (q, torch.from_numpy(k), v), (q, k, torch.from_numpy(v))):
        with pytest.raises(TypeError, match="torch"):
            tg.attention(*mixed)
    with pytest.raises(TypeError, match="bias.*(torch|Tensor)"):
        tg.attention(q, k, v, bias=torch.zeros(35, 70))
    with pytest.raises(TypeError, match="mask.*(torch|Tensor)"):
        tg.attention(q, k, v, mask=torch.ones(35, 70, dtype=torch.bool))
    assert same_bits(tg.attention(q, k, v), tg.attention(*(x.copy() for x in qkv)))


@pytest.mark.parametrize("name", list(MASKS))
def test_a_mask_is_its_own_dense_form(name):
    """The structured form and the array it stands for give the same, and are made of the same pairs."""
    n = 35 if MASKS[name].self_attention else 50
    case = AttentionCase(q_len=35, k_len=n, mask=name, heads=2)
    q, k, v = case.arrays()
    mask = MASKS[name].build(tg.masks, case.dims)
    dense = mask if isinstance(mask, np.ndarray) else mask.dense(35, n)
    visible = MASKS[name].visible(Dims(2, 2, 35, n))
    np.testing.assert_array_equal(*np.broadcast_arrays(dense, visible, np.ones((2, 2, 35, n)))[:2])
    twins = expected(case)
    whole = np.broadcast_to(dense, (2, 2, 35, n))
    assert_attention_close(*tg.attention(q, k, v, mask=mask, return_lse=True), None, twins)
    assert_attention_close(*tg.attention(q, k, v, mask=whole, return_lse=True), None, twins)


def test_a_mask_per_batch_entry_carries_one_axis_or_all_the_leading_ones():
    """Lengths, kept keys and offsets of six entries: (6,), or (2, 3) as q itself."""
    q, k, v = AttentionCase(leading=(2, 3)).arrays()
    numbers = np.array([70, 0, 3, 64, 65, 1])
    keep = np.random.default_rng(0).random((6, 70)) < 0.5
    m = tg.masks
    for flat, shaped in (
        (m.padding(numbers), m.padding(numbers.reshape(2, 3))),
        (m.padding(keep=keep), m.padding(keep=keep.reshape(2, 3, 70))),
        (m.causal(offset=numbers), m.causal(offset=numbers.reshape(2, 3))),
        (m.prefix(numbers, offset=2), m.prefix(numbers.reshape(2, 3), offset=2)),
    ):
        assert same_bits(tg.attention(q, k, v, mask=flat), tg.attention(q, k, v, mask=shaped))
