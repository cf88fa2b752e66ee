"""The twin of the gradients: against finite differences of the forward twin, and against torch in float64."""

import math

import numpy as np
import pytest
import reference
from gradients import attention_backward, summed_to
from support import draw, numpy_dtype
from tolerances import assert_gradients_close, epsilon, exact_gradients, gradient_twins, moved_by_a_rounding

pytestmark = pytest.mark.isa_once

BATCH, HEADS, Q_LEN, K_LEN, HEAD_DIM, VALUE_DIM = 2, 2, 3, 4, 3, 2
PAIRS = BATCH, HEADS, Q_LEN, K_LEN


def arrays(kv_heads=HEADS, heads=HEADS, dtype="float64"):
    """q, k, v and a gradient for the result."""
    rng = np.random.default_rng(0)
    shapes = (heads, Q_LEN, HEAD_DIM), (kv_heads, K_LEN, HEAD_DIM), (kv_heads, K_LEN, VALUE_DIM)
    q, k, v = (draw(rng, (BATCH, *shape), dtype) for shape in shapes)
    return q, k, v, draw(rng, (BATCH, heads, Q_LEN, VALUE_DIM), dtype)


def irregular():
    """A mask of no structure with an empty row and a hidden key."""
    visible = np.random.default_rng(1).random((BATCH, 1, Q_LEN, K_LEN)) < 0.7
    visible[0, :, 1], visible[1, :, :, 2] = False, False
    return visible


def some(*shape):
    return draw(np.random.default_rng(2), shape, "float64")


def with_hole(bias):
    """A bias that masks one key in every row."""
    bias[..., 1] = -np.inf
    return bias


def by_finite_differences(q, k, v, grad_out, **options):
    """The gradients of sum(grad_out * out), by central differences of the forward twin."""
    inputs = {"q": q, "k": k, "v": v} | {n: options.pop(n) for n in ("bias", "sinks") if n in options}
    step, found = 1e-5, []
    for name, x in inputs.items():
        grad = np.zeros(np.shape(x))
        for at in np.ndindex(grad.shape):
            ends = []
            for sign in (1, -1):
                moved = np.array(x)
                moved[at] += sign * step
                out = reference.attention(**(inputs | {name: moved}), **options).out
                ends.append((grad_out * out).sum())
            grad[at] = (ends[0] - ends[1]) / (2 * step)
        found.append(grad)
    return found


def given(gradients):
    """dq, dk, dv, and dbias and dsinks where there are any."""
    return [x for x in gradients[:5] if x is not None]


OPTIONS = {
    "plain": {},
    "scale": {"scale": -0.8},
    "softcap": {"softcap": 0.7},
    "alibi": {"alibi": np.array([0.5, -0.25])},
    "mask": {"visible": irregular()},
    "sinks": {"sinks": np.array([0.3, -1.0])},
    "sinks-mask": {"sinks": np.array([0.3, -1.0]), "visible": irregular()},
    "bias-scalar": {"bias": some()},
    "bias-key": {"bias": some(K_LEN)},
    "bias-query": {"bias": some(Q_LEN, 1)},
    "bias-pair": {"bias": with_hole(some(Q_LEN, K_LEN))},
    "bias-head": {"bias": some(HEADS, 1, 1)},
    "bias-batch-key": {"bias": some(BATCH, 1, 1, K_LEN)},
    "bias-batch-query": {"bias": some(BATCH, 1, Q_LEN, 1)},
    "bias-one": {"bias": some(1, 1, 1, 1)},
    "bias-whole-mask": {"bias": with_hole(some(*PAIRS)), "visible": irregular()},
    "dropout": {"keep": np.random.default_rng(3).random(PAIRS) < 0.6, "dropout_p": 0.4},
    "all": {
        "visible": irregular(), "bias": some(1, HEADS, Q_LEN, K_LEN), "scale": 0.9, "softcap": 1.2,
        "alibi": np.array([0.5, 0.25]), "sinks": np.array([0.2, 0.9]),
        "keep": np.random.default_rng(4).random(PAIRS) < 0.7, "dropout_p": 0.3,
    },
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_finite_differences(options):
    q, k, v, grad_out = arrays()
    got = given(exact_gradients(grad_out, q, k, v, **options))
    inputs = (q, k, v, *(options[n] for n in ("bias", "sinks") if n in options))
    assert [x.shape for x in got] == [np.shape(x) for x in inputs]
    numerical = by_finite_differences(q, k, v, grad_out, **options)
    for x, expect in zip(got, numerical, strict=True):
        finite = np.isfinite(expect)  # no difference can be taken at a bias of -inf
        np.testing.assert_allclose(x[finite], expect[finite], rtol=1e-6, atol=1e-8)
        assert (x[~finite] == 0).all()


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_finite_differences_with_grouped_heads(kv_heads):
    q, k, v, grad_out = arrays(kv_heads=kv_heads, heads=4)
    numerical = by_finite_differences(q, k, v, grad_out)
    for x, expect in zip(exact_gradients(grad_out, q, k, v), numerical, strict=False):
        np.testing.assert_allclose(x, expect, rtol=1e-6, atol=1e-8)


def torch_gradients(q, k, v, grad_out, *, visible=True, keep=True, bias=0.0, sinks=None, **options):
    """Autograd through the whole formula in dense tensors."""
    torch = pytest.importorskip("torch")
    leaves = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    bias_leaf = torch.tensor(bias, dtype=torch.float64, requires_grad=True)
    sinks_leaf = torch.tensor(np.full(q.shape[1], -np.inf) if sinks is None else sinks, requires_grad=True)
    scale, p = options.get("scale", 1 / math.sqrt(q.shape[-1])), options.get("dropout_p", 0.0)
    with torch.enable_grad():
        groups = q.shape[1] // k.shape[1]
        keys, values = (x.repeat_interleave(groups, 1) for x in leaves[1:])
        scores = leaves[0] @ keys.transpose(-1, -2) * scale
        if "softcap" in options:
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        if "alibi" in options:
            distance = torch.arange(K_LEN) - torch.arange(Q_LEN)[:, None] - (K_LEN - Q_LEN)
            scores = scores + torch.tensor(options["alibi"])[:, None, None] * distance
        visible = torch.tensor(np.broadcast_to(visible, scores.shape).copy())
        scores = (scores + bias_leaf).masked_fill(~visible, -1e300)
        column = sinks_leaf[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
        weights = torch.where(visible & torch.tensor(keep), weights, 0.0) / (1 - p)
        loss = (torch.tensor(grad_out) * (weights @ values)).sum()
        wanted = [*leaves, bias_leaf, sinks_leaf]
        dq, dk, dv, dbias, dsinks = (x.numpy() for x in torch.autograd.grad(loss, wanted))
    return dq, dk, dv, dbias if np.ndim(bias) or bias else None, dsinks if sinks is not None else None


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_autograd_of_torch(options, kv_heads):
    q, k, v, grad_out = arrays(kv_heads=kv_heads)
    expect = given(torch_gradients(q, k, v, grad_out, **options))
    for x, y in zip(given(exact_gradients(grad_out, q, k, v, **options)), expect, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("layout", ["blhd", "lhd"])
def test_layouts_are_transposed_views_of_one_another(layout):
    q, k, v, grad_out = (x[:1] for x in arrays())
    expect = exact_gradients(grad_out, q, k, v)
    moved = [x.swapaxes(1, 2) if layout == "blhd" else x[0].swapaxes(0, 1) for x in (q, k, v, grad_out)]
    got = exact_gradients(moved[3], *moved[:3], layout=layout)
    for x, y in zip(got[:3], expect[:3], strict=True):
        np.testing.assert_array_equal(x.swapaxes(-3, -2).reshape(y.shape), y)


def test_a_matrix_is_one_head():
    q, k, v, grad_out = (x[0, 0] for x in arrays())
    expect = exact_gradients(*(x[None, None] for x in (grad_out, q, k, v)))
    for x, y in zip(exact_gradients(grad_out, q, k, v)[:3], expect[:3], strict=True):
        np.testing.assert_array_equal(x, y[0, 0])


def test_several_leading_axes():
    q, k, v, grad_out = arrays()
    expect = exact_gradients(grad_out, q, k, v)
    got = exact_gradients(*(x[:, None] for x in (grad_out, q, k, v)))
    for x, y in zip(got[:3], expect[:3], strict=True):
        np.testing.assert_array_equal(x, y[:, None])


def test_what_is_hidden_neither_gives_nor_gets():
    q, k, v, grad_out = arrays()
    visible, bias = irregular(), some(Q_LEN, K_LEN)
    clean = exact_gradients(grad_out, q, k, v, visible=visible, bias=bias)
    k[1, :, 2], v[1, :, 2] = np.nan, np.inf  # a hidden key
    q[0, :, 1], grad_out[0, :, 1] = np.inf, np.nan  # a row without keys
    dirty = exact_gradients(grad_out, q, k, v, visible=visible, bias=bias)
    for x, y in zip(given(dirty), given(clean), strict=True):
        np.testing.assert_array_equal(x, y)
    assert (clean.dk[1, :, 2] == 0).all() and (clean.dv[1, :, 2] == 0).all() and (clean.dq[0, :, 1] == 0).all()


def test_a_sum_over_broadcast_axes():
    x = some(2, 3, 4, 5)
    for shape in ((), (5,), (4, 1), (3, 1, 1), (1, 1, 1, 1), (2, 1, 4, 5), (2, 3, 4, 5)):
        got = summed_to(x, shape)
        assert got.shape == shape
        axes = tuple(axis for axis, n in enumerate((1,) * (4 - len(shape)) + shape) if n == 1)
        np.testing.assert_allclose(got, x.sum(axes).reshape(shape))


def test_the_gradients_come_from_out_and_lse():
    """Over half of the keys, with the result of all of them, they are that half's share of the whole."""
    q, k, v, grad_out = arrays()
    out, lse, _ = reference.attention(q, k, v)
    whole = attention_backward(grad_out, q, k, v, out, lse)
    left, right = (attention_backward(grad_out, q, k[:, :, s], v[:, :, s], out, lse) for s in np.s_[:2, 2:])
    np.testing.assert_allclose(left.dq + right.dq, whole.dq)
    np.testing.assert_allclose(np.concatenate([left.dk, right.dk], 2), whole.dk)
    np.testing.assert_allclose(np.concatenate([left.dv, right.dv], 2), whole.dv)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_tolerance_knows_a_worse_delta(dtype):
    """grad_out . out that is off by 32 roundings of its type, in one row alone, has to be caught."""
    q, k, v, grad_out = arrays(dtype=dtype)
    twins = gradient_twins(grad_out, q, k, v)
    assert_gradients_close(twins.plain[0][:3], twins, {})
    out, lse, _ = reference.attention(q, k, v)
    off = 1 + 32 * epsilon(numpy_dtype(dtype)) * (np.arange(Q_LEN) == 1)[:, None]
    worse = attention_backward(grad_out, q, k, v, out * off, lse)
    with pytest.raises(AssertionError, match="dq.*off by"):
        assert_gradients_close([x.astype(q.dtype) for x in worse[:3]], twins, {})


def test_numbers_are_moved_by_one_rounding_at_most():
    rng = np.random.default_rng(0)
    x = np.append(some(1000), [np.inf, -np.inf, np.nan, 0.0])
    for dtype in ("float64", "float32"):
        y = x.astype(dtype)
        moved = moved_by_a_rounding(y, rng)
        np.testing.assert_array_equal(np.isfinite(moved), np.isfinite(y))
        steps = (moved[:1000] - y[:1000]) / np.spacing(np.abs(y[:1000]))
        assert np.abs(steps).max() <= 2  # the spacing halves below a power of two
        assert set(np.sign(steps)) == {-1, 0, 1}
