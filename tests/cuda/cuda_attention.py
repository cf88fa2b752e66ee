"""Attention on a GPU, forward and backward, against the float64 twins that the processor's is held to."""

from __future__ import annotations

import dataclasses
import itertools

import cases
import numpy as np
import pytest
import reference
import tegula as tg
from cases import AttentionCase
from gpu_arrays import REAL, from_gpu, on_gpu
from support import DTYPES, numpy_dtype, same_bits
from tolerances import assert_attention_close, assert_gradients_close

TENSOR_CORES = ("float16", "bfloat16")


def small(case):
    """Whether a simulated GPU is through with a case soon."""
    return case.q_len * case.k_len <= 6000 and case.head_dim <= 130


def some(all_cases, every):
    """Each `every`-th case: all of them take a real GPU."""
    return list(all_cases) if REAL else list(all_cases)[::every]


CASES = [case for case in cases.ATTENTION_CASES if small(case)]


def moved(options):
    """The arrays among a call's options on the GPU."""
    return {name: on_gpu(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}


def options_of(case):
    """The case's options; a bool array as mask lies on the GPU, too."""
    return moved(case.options(tg.masks))


@pytest.mark.parametrize("case", some(CASES, 3), ids=str)
def test_forward(case):
    options = options_of(case)
    arrays = [on_gpu(x) for x in case.arrays()]
    got = tg.attention(*arrays, **options, return_lse=True, return_weights=True)
    assert_attention_close(*from_gpu(got), cases.expected(case))


@pytest.mark.parametrize("case", some(CASES[1:], 4), ids=str)
def test_backward(case):
    options = options_of(case)
    arrays = [on_gpu(x) for x in case.arrays()]
    out, lse = tg.attention(*arrays, **options, return_lse=True)
    got = tg.attention_backward(on_gpu(case.grad_out()), *arrays, out, lse, **options)
    assert_gradients_close(from_gpu(got), cases.expected_gradients(case), case.options(tg.masks))


# ---------------------------------------------------------------------------------------------------
# Head sizes, also those that a call of tensor cores pads


@pytest.mark.parametrize(("dtype", "dims"), [
    *itertools.product(TENSOR_CORES, [(0, 0), (1, 1), (20, 33), (40, 40), (64, 96), (80, 80)]),
    ("bfloat16", (128, 128)), ("float16", (160, 130)), ("bfloat16", (192, 128)), ("float16", (256, 256)),
    ("bfloat16", (300, 20)), ("float32", (300, 260)), ("float32", (130, 7)), ("float64", (64, 64)),
])  # fmt: skip
def test_head_sizes(dtype, dims):
    case = AttentionCase(19, 70, *dims, leading=(1,), dtype=dtype, mask="causal")
    test_forward(case)
    if max(dims) <= 130:
        test_backward(case)


# ---------------------------------------------------------------------------------------------------
# Determinism: a row's bits depend on its query, keys and options alone


def random_arrays(dtype, q_len, k_len, heads=2, kv_heads=1, dim=32, batch=1):
    rng = np.random.default_rng(q_len + k_len)
    shapes = (heads, q_len, dim), (kv_heads, k_len, dim), (kv_heads, k_len, dim)
    return [rng.standard_normal((batch, *shape)).astype(numpy_dtype(dtype)) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_depend_on_how_many_there_are(dtype):
    """One query is split over blocks of threads by keys, many are not; chunks of 1024 keys add up alike."""
    q, k, v = random_arrays(dtype, 70, 2200)
    options = {"return_lse": True, "mask": tg.masks.sliding(2150, align="bottom_right")}
    many = from_gpu(tg.attention(*map(on_gpu, (q, k, v)), **options))
    for rows in (1, 20):
        few = from_gpu(tg.attention(*map(on_gpu, (q[:, :, -rows:], k, v)), **options))
        assert same_bits(few[0], np.ascontiguousarray(many[0][:, :, -rows:]))
        assert same_bits(few[1], np.ascontiguousarray(many[1][:, :, -rows:]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_depend_on_their_neighbours(dtype):
    q, k, v = random_arrays(dtype, 90, 130, batch=2)
    lengths = np.array([70, 130])
    whole = from_gpu(tg.attention(*map(on_gpu, (q, k, v)), mask=tg.masks.padding(lengths)))
    k[0, :, 70:], v[0, :, 70:] = np.nan, np.inf
    q[0, 0, :50] = 1e4
    again = from_gpu(tg.attention(*map(on_gpu, (q, k, v)), mask=tg.masks.padding(lengths)))
    assert same_bits(again[0, 0, 50:], whole[0, 0, 50:])
    assert same_bits(again[1], whole[1])
    alone = [x[:1] for x in (q, k[:, :, :70], v[:, :, :70])]
    assert same_bits(from_gpu(tg.attention(*map(on_gpu, alone)))[0], again[0])


@pytest.mark.parametrize("dtype", TENSOR_CORES + ("float32",))
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}], ids=["plain", "softcap"])
def test_gradients_are_the_same_in_every_run(dtype, options, gpu):
    q, k, v = random_arrays(dtype, 150, 140, heads=4, kv_heads=2)
    grad = np.random.default_rng(0).standard_normal(q.shape).astype(q.dtype)
    found = []
    for seed in (1, 2):
        if gpu is not None:
            gpu.set(seed=seed)  # another order of blocks and threads
        arrays = [on_gpu(x) for x in (q, k, v)]
        out, lse = tg.attention(*arrays, **options, mask=tg.masks.causal(align="top_left"), return_lse=True)
        found.append(from_gpu(tg.attention_backward(
            on_gpu(grad), *arrays, out, lse, **options, mask=tg.masks.causal(align="top_left"),
        )))  # fmt: skip
    assert all(same_bits(a, b) for a, b in zip(*found, strict=True))


# ---------------------------------------------------------------------------------------------------
# Masked means absent


def hidden_keys(case, kind):
    """The case's arrays with keys, values and queries that nobody sees set to `kind`, and what is visible."""
    q, k, v = (x.copy() for x in case.arrays())
    visible = np.broadcast_to(cases.MASKS[case.mask].visible(case.dims), case.dims)
    unseen = ~visible.any((1, 2))
    k[np.broadcast_to(unseen[:, None, :, None], k.shape)] = kind
    v[np.broadcast_to(unseen[:, None, :, None], v.shape)] = kind
    return (q, k, v), visible


@pytest.mark.parametrize("kind", [np.nan, np.inf])
@pytest.mark.parametrize("mask", ["padding_lengths", "causal_and_padding", "window", "nothing"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_nobody_sees_changes_nothing(dtype, mask, kind):
    case = AttentionCase(35, 100, 16, mask=mask, dtype=dtype)
    clean, (dirty, visible) = case.arrays(), hidden_keys(case, kind)
    grad = case.grad_out()
    found = []
    for arrays in (clean, dirty):
        there = [on_gpu(x) for x in arrays]
        out, lse = tg.attention(*there, mask=cases.MASKS[mask].build(tg.masks, case.dims), return_lse=True)
        rows = visible.any(-1)[..., None]
        poisoned = np.where(np.broadcast_to(rows, grad.shape), grad, numpy_dtype(dtype).type(np.nan))
        gradients = tg.attention_backward(
            on_gpu(poisoned), *there, out, lse, mask=cases.MASKS[mask].build(tg.masks, case.dims)
        )
        found.append((*from_gpu((out, lse)), *from_gpu(gradients)))
    for a, b in zip(*found, strict=True):
        assert same_bits(a, b)
        assert not np.isnan(a.astype(np.float64)).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["k", "v"])
@pytest.mark.parametrize("kind", [np.nan, np.inf])
def test_a_key_reaches_who_sees_it(dtype, where, kind):
    """Under a causal mask key 40 is hidden from queries that share its tile with those that see it."""
    q, k, v = random_arrays(dtype, 80, 80, heads=1)
    clean = from_gpu(tg.attention(*map(on_gpu, (q, k, v)), mask=tg.masks.causal()))
    {"k": k, "v": v}[where][0, 0, 40, 3] = kind
    got = from_gpu(tg.attention(*map(on_gpu, (q, k, v)), mask=tg.masks.causal()))
    assert same_bits(got[:, :, :40], clean[:, :, :40])
    reached = ~np.isfinite(got[0, 0, 40:].astype(np.float64))
    if where == "v":
        assert reached[:, 3].all()
        assert reached.sum() == 40
    else:  # scores of NaN and inf make a row NaN, one of -inf takes no part
        wrong = np.isnan(kind) | (q[0, 0, 40:, 3].astype(np.float64) > 0)
        assert np.array_equal(reached, np.broadcast_to(wrong[:, None], reached.shape))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["q", "grad_out", "k", "v"])
def test_gradients_keep_hidden_nans_out(dtype, where):
    """Query 20 does not see the keys behind it, nor do the queries before see key 20."""
    q, k, v = random_arrays(dtype, 60, 60, heads=1)
    grad = np.random.default_rng(3).standard_normal(q.shape).astype(q.dtype)
    found = []
    for poison in (False, True):
        if poison:
            {"q": q, "k": k, "v": v, "grad_out": grad}[where][0, 0, 20, 5] = np.nan
        arrays = [on_gpu(x) for x in (q, k, v)]
        out, lse = tg.attention(*arrays, mask=tg.masks.causal(), return_lse=True)
        found.append(from_gpu(tg.attention_backward(on_gpu(grad), *arrays, out, lse, mask=tg.masks.causal())))
    (dq, dk, dv), (dq_, dk_, dv_) = found
    if where in ("q", "grad_out"):
        others = np.arange(60) != 20
        assert same_bits(dq[:, :, others], dq_[:, :, others])
        assert np.isnan(dq_[0, 0, 20].astype(np.float64)).any()
        assert same_bits(dk[:, :, 21:], dk_[:, :, 21:])
        assert same_bits(dv[:, :, 21:], dv_[:, :, 21:])
    else:
        assert same_bits(dq[:, :, :20], dq_[:, :, :20])


# ---------------------------------------------------------------------------------------------------
# Strides and results


VIEWS = {
    "blhd": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
    "columns apart": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "rows backwards": lambda x: x[:, :, ::-1].copy()[:, :, ::-1],
    "odd start": lambda x: np.concatenate([x[..., :1], x], -1)[..., 1:],
    "one head for all": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "rows apart": lambda x: np.repeat(x, 3, axis=2)[:, :, ::3],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_strides(dtype, view):
    q, k, v = (view(x) for x in random_arrays(dtype, 35, 70, heads=2, kv_heads=2, batch=2))
    plain = [np.ascontiguousarray(x) for x in (q, k, v)]
    grad = view(np.ascontiguousarray(plain[0]))
    found = []
    for arrays, g in ((plain, np.ascontiguousarray(grad)), ((q, k, v), grad)):
        there = [on_gpu(x) for x in arrays]
        out, lse = tg.attention(*there, return_lse=True)
        found.append((*from_gpu((out, lse)), *from_gpu(tg.attention_backward(on_gpu(g), *there, out, lse))))
    assert all(same_bits(*map(np.ascontiguousarray, pair)) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("dtype", TENSOR_CORES + ("float32",))
def test_given_results(dtype):
    q, k, v = random_arrays(dtype, 35, 70)
    expected = from_gpu(tg.attention(*map(on_gpu, (q, k, v))))
    out = on_gpu(np.full((*q.shape[:-1], 64), 7, q.dtype))
    assert same_bits(from_gpu(tg.attention(*map(on_gpu, (q, k, v)), out=out[..., 1::2])), expected)
    assert (from_gpu(out)[..., ::2] == 7).all()


@pytest.mark.parametrize(("q_len", "k_len", "batch"), [(0, 5, 1), (5, 0, 1), (0, 0, 1), (3, 4, 0)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_nothing_to_do(dtype, q_len, k_len, batch):
    q, k, v = (np.ones((batch, 2, n, 16), numpy_dtype(dtype)) for n in (q_len, k_len, k_len))
    arrays = [on_gpu(x) for x in (q, k, v)]
    out, lse = tg.attention(*arrays, return_lse=True)
    assert (from_gpu(out) == 0).all()
    assert (from_gpu(lse) == -np.inf).all()
    for gradient in from_gpu(tg.attention_backward(out, *arrays, out, lse)):
        assert (gradient == 0).all()


# ---------------------------------------------------------------------------------------------------
# Options


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_drops_what_it_says(dtype):
    """With values that tell keys apart, the weights that remain can be read off."""
    q = np.zeros((1, 2, 5, 32), numpy_dtype(dtype))
    k, v = np.zeros((1, 2, 32, 32), q.dtype), np.eye(32, dtype=q.dtype)[None, None].repeat(2, 1)
    got = from_gpu(tg.attention(*map(on_gpu, (q, k, v)), dropout_p=0.4, seed=11))
    assert np.array_equal(got != 0, tg.dropout_mask(11, 0.4, shape=(1, 2, 5, 32)))


def test_dropout_reads_its_seed_when_it_runs():
    q, k, v = random_arrays("bfloat16", 20, 40)
    arrays = [on_gpu(x) for x in (q, k, v)]
    native = tg.cuda.native()
    options = (None,) * 6 + (None, 0.0, 0.4)
    seed = on_gpu(np.array([-5]))
    got = native.attention(*arrays, None, *options, seed, "bhld", False, False, 0)
    expected = tg.attention(*arrays, dropout_p=0.4, seed=2**64 - 5)
    assert same_bits(from_gpu(got), from_gpu(expected))


@pytest.mark.parametrize("axes", cases.BIAS_AXES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_bias_gradients(axes, dtype):
    case = AttentionCase(20, 70, 16, bias=axes, heads=4, kv_heads=2, dtype=dtype, mask="causal")
    test_backward(case)


def test_a_bias_of_another_type():
    case = AttentionCase(20, 70, 16, dtype="bfloat16")
    bias = np.random.default_rng(0).standard_normal((20, 70)).astype(np.float32)
    bias[:, 3] = -np.inf
    q, k, v = case.arrays()
    k[:, :, 3], v[:, :, 3] = np.nan, np.nan
    out = from_gpu(tg.attention(*map(on_gpu, (q, k, v)), bias=on_gpu(bias)))
    exact = reference.attention(*(x.astype(np.float64) for x in case.arrays()), bias=bias.astype(np.float64)).out
    assert np.abs(out.astype(np.float64) - exact).max() < 0.02


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_two_parts_of_the_keys_make_the_whole(dtype):
    case = dataclasses.replace(AttentionCase(12, 64, 16), dtype=dtype)
    q, k, v = case.arrays()
    whole = from_gpu(tg.attention(*map(on_gpu, (q, k, v)), return_lse=True))
    parts = []
    for part in (slice(0, 40), slice(40, 64)):
        parts += from_gpu(tg.attention(*map(on_gpu, (q, k[:, :, part], v[:, :, part])), return_lse=True))
    merged = tg.merge_attention(*parts)
    unit = {"bfloat16": 2e-2, "float64": 1e-14}[dtype]
    assert np.abs(merged[0].astype(np.float64) - whole[0].astype(np.float64)).max() < unit


# ---------------------------------------------------------------------------------------------------
# Bad input


@pytest.mark.parametrize(("change", "error", "words"), [
    ({"k": np.zeros((1, 1, 70, 8), np.float32)}, ValueError, "k has shape .* the head sizes differ"),
    ({"v": np.zeros((1, 1, 71, 16), np.float32)}, ValueError, "v has shape .* the numbers of keys differ"),
    ({"k": np.zeros((1, 1, 70, 16), np.float64)}, TypeError, "k has dtype float64 but q has dtype float32"),
    ({"dropout_p": 0.5}, ValueError, "needs a seed"),
    ({"softcap": -1.0}, ValueError, "softcap must be positive"),
    ({"mask": np.zeros((35, 70), np.float32)}, TypeError, "mask|dense must be bool"),
    ({"alibi": [1.0]}, ValueError, r"alibi must have shape \(2,\)"),
    ({"layout": "hlbd"}, ValueError, "layout must be"),
    ({"out": np.zeros((1, 2, 35, 8), np.float32)}, ValueError, "out must have shape"),
])  # fmt: skip
def test_bad_input(change, error, words):
    arrays = {"q": np.zeros((1, 2, 35, 16), np.float32), "k": np.zeros((1, 1, 70, 16), np.float32)}
    call = moved(arrays | {"v": arrays["k"]} | change)
    with pytest.raises(error, match=words):
        tg.attention(**call)


def test_arrays_of_two_kinds_do_not_mix():
    q = np.zeros((1, 2, 35, 16), np.float32)
    with pytest.raises(TypeError, match="k"):
        tg.attention(on_gpu(q), q, q)
    with pytest.raises(TypeError, match="k"):
        tg.attention(q, on_gpu(q), on_gpu(q))
