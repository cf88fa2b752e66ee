"""Gradients through torch: first and second derivatives, forward mode, and what has none."""

import itertools

import pytest
import tegula as tg
from torch_support import leaf

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.isa_once

OPTIONS = {
    "plain": {},
    "mask": dict(mask=tg.masks.causal(align="bottom_right") & tg.masks.padding([2, 4])),
    "softcap": dict(softcap=1.5, scale=0.7),
    "alibi": dict(alibi=[0.1, 0.3]),
    "dropout": dict(dropout_p=0.3, seed=2**64 - 7),
    "all": dict(mask=tg.masks.sliding(2, align="bottom_right"), softcap=2.0, alibi=[0.1, 0.3], dropout_p=0.2, seed=3),
}
BIASES = {"none": None, "key": (4,), "query": (3, 1), "heads": (2, 1, 4), "batch": (2, 1, 1, 4), "whole": (2, 2, 3, 4)}


def drawn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def call(options, bias, sinks):
    """A function of q, k, v, and bias and sinks if there are some, with its inputs."""
    inputs = [drawn(2, 2, 3, 2), drawn(2, 1, 4, 2, seed=1), drawn(2, 1, 4, 3, seed=2)]
    inputs += [] if BIASES[bias] is None else [drawn(*BIASES[bias], seed=3)]
    inputs += [drawn(2, seed=4)] if sinks else []

    def function(q, k, v, *learned):
        learned = list(learned)
        more = {} if BIASES[bias] is None else {"bias": learned.pop(0)}
        more |= {"sinks": learned.pop(0)} if sinks else {}
        return tg.attention(q, k, v, **options, **more, return_lse=True)

    return function, inputs


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("bias", ["none", "heads"])
def test_gradcheck(options, bias, sinks):
    """Reverse mode, forward mode and both under vmap, for the output and the log-sum-exp."""
    function, inputs = call(options, bias, sinks)
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("bias", ["none", "heads"])
def test_c67_gradgradcheck(options, bias, sinks):
    function, inputs = call(options, bias, sinks)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("bias", [name for name in BIASES if name != "none"])
def test_c65_the_gradient_of_a_bias_has_its_shape(bias):
    function, inputs = call({}, bias, sinks=False)
    assert torch.autograd.gradcheck(function, inputs)
    function(*inputs)[0].sum().backward()
    assert inputs[3].grad.shape == BIASES[bias]


def test_c65_a_bias_of_four_axes_belongs_to_the_product_of_the_leading_ones():
    q = drawn(2, 3, 4, 5, 8)
    bias = drawn(6, 4, 5, 5)
    grad = torch.randn(q.shape, dtype=q.dtype)
    (found,) = torch.autograd.grad(tg.attention(q, q, q, bias=bias), bias, grad)
    flat = q.flatten(0, 1)
    (expect,) = torch.autograd.grad(tg.attention(flat, flat, flat, bias=bias), bias, grad.flatten(0, 1))
    assert torch.equal(found, expect)


def test_c67_a_gradient_penalty_trains():
    q, k, v = (drawn(1, 2, 6, 4, seed=i) for i in range(3))
    (grad,) = torch.autograd.grad(tg.attention(q, k, v).square().sum(), q, create_graph=True)
    grad.square().sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() and (x.grad != 0).any() for x in (q, k, v))


def test_the_second_derivative_sees_no_hidden_key():
    """NaN at keys that padding hides reaches no derivative of any order."""
    q, k, v = (drawn(2, 2, 6, 4, seed=i).detach() for i in range(3))
    k[:, :, 4:], v[:, :, 4:] = torch.nan, torch.nan
    q, k, v = map(leaf, (q, k, v))
    mask = tg.masks.padding([4, 4])
    grads = torch.autograd.grad(tg.attention(q, k, v, mask=mask).square().sum(), (q, k, v), create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in grads), (q, k, v))
    for x in (*grads, *second):
        assert x.isfinite().all()
    for x in (*grads[1:], *second[1:]):
        assert (x[:, :, 4:] == 0).all()


def test_rows_without_keys_have_gradients_of_zero():
    q, k, v = (drawn(2, 2, 6, 4, seed=i) for i in range(3))
    out, lse = tg.attention(q, k, v, mask=tg.masks.padding([0, 6]), return_lse=True)
    grads = torch.autograd.grad(out.square().sum() + lse[1].sum(), (q, k, v), create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in grads), (q, k, v))
    for x in (*grads, *second):
        assert (x[0] == 0).all() and x.isfinite().all()


def test_only_what_is_asked_for_is_computed():
    q, k, v = (drawn(1, 2, 6, 4, seed=i) for i in range(3))
    whole = torch.autograd.grad(tg.attention(q, k, v).square().sum(), (q, k, v))
    for wanted in itertools.product((False, True), repeat=3):
        if not any(wanted):
            continue
        given = [x.detach().requires_grad_(w) for x, w in zip((q, k, v), wanted, strict=True)]
        tg.attention(*given).square().sum().backward()
        for x, w, expect in zip(given, wanted, whole, strict=True):
            assert (x.grad is None) if not w else torch.equal(x.grad, expect)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_log_sum_exp_has_gradients_in_every_type(dtype):
    q, k = (drawn(1, 2, 6, 8, dtype=dtype, seed=i) for i in range(2))
    _, lse = tg.attention(q, k, k, return_lse=True)
    found = torch.autograd.grad(lse.sum(), (q, k))
    wide = [leaf(x.double()) for x in (q, k)]
    expect = torch.autograd.grad(tg.attention(*wide, wide[1], return_lse=True)[1].sum(), wide)
    for x, y in zip(found, expect, strict=True):
        assert x.dtype == dtype
        assert (x.double() - y).abs().max() <= 4 * torch.finfo(dtype).eps * y.abs().max()


# ---------------------------------------------------------------------------------------------------
# What has no gradient says so


def test_slopes_have_no_gradient():
    q = drawn(1, 2, 6, 4)
    slopes = drawn(2)
    with pytest.raises(RuntimeError, match="alibi requires grad"):
        tg.attention(q.detach(), q.detach(), q.detach(), alibi=slopes)
    with torch.no_grad():
        tg.attention(q, q, q, alibi=slopes)
    with pytest.raises(RuntimeError, match="alibi"):
        torch.ops.tegula.attention(q, q, q, alibi=slopes)
    with pytest.raises(RuntimeError, match="alibi"):
        torch.func.grad(lambda slopes: tg.attention(q, q, q, alibi=slopes).sum())(slopes.detach())


def test_a_scale_that_learns_is_refused():
    q = drawn(1, 2, 6, 4)
    for name in ("scale", "softcap"):
        with pytest.raises(TypeError, match=f"{name}.*Tensor"):
            tg.attention(q, q, q, **{name: torch.ones((), requires_grad=True)})


@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "sinks"])
def test_ways_without_gradient_refuse_what_requires_grad(name):
    given = {
        "q": drawn(1, 2, 6, 4),
        "k": drawn(1, 2, 6, 4),
        "v": drawn(1, 2, 6, 4),
        "bias": drawn(6),
        "sinks": drawn(2),
    }
    given = {n: x if n == name else x.detach() for n, x in given.items()}
    with pytest.raises(RuntimeError, match="return_weights=True has no gradient"):
        tg.attention(**given, return_weights=True)
    out = torch.full((1, 2, 6, 4), 42.0, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="out= has no gradient"):
        tg.attention(**given, out=out)
    assert (out == 42).all()
    for op in (torch.ops.tegula.attention_forward, torch.ops.tegula.attention_weights):
        with pytest.raises(RuntimeError, match="computes no gradients"):
            op(**given)
    with torch.no_grad():
        tg.attention(**given, return_weights=True, out=out)
    assert torch.equal(out, tg.attention(**{n: x.detach() for n, x in given.items()}))


def test_outputs_that_require_grad_are_refused():
    q = drawn(1, 2, 6, 4).detach()
    with pytest.raises(RuntimeError, match="out= has no gradient"):
        tg.attention(q, q, q, out=torch.empty_like(q).requires_grad_())
    out, lse = tg.attention(q, q, q, return_lse=True)
    with pytest.raises(RuntimeError, match="grads= has no gradient"):
        tg.attention_backward(out, q, q, q, out, lse, grads=tuple(torch.empty_like(q).requires_grad_() for _ in "qkv"))


def test_a_mask_changed_before_the_backward_pass_is_noticed():
    q = drawn(1, 1, 6, 4)
    visible = (torch.arange(6) % 2 == 0).repeat(6, 1)  # three runs of keys a row
    out = tg.attention(q, q, q, mask=visible)
    visible.logical_not_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
