"""Calls on plain tensors go past torch's dispatcher; whoever watches or changes operators still meets them."""

import pytest

torch = pytest.importorskip("torch")

import tegula.torch as tt  # noqa: E402
from tegula.torch.library import direct  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

pytestmark = pytest.mark.isa_once


def rows(*shape, **options):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), **options)


def trained(*shape):
    return rows(*shape).requires_grad_()


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


class SeenFunctions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def calls():
    q, weight = rows(1, 2, 3, 8), rows(5, 4)
    return {
        "attention_forward": lambda: tt.attention(q, q, q),
        "attention": lambda: tt.attention(q, q, q, return_lse=True)[0],
        "embedding_forward": lambda: tt.embedding(torch.tensor([1, 4]), weight),
    }


@pytest.mark.parametrize("name", list(calls()))
def test_modes_and_profilers_see_the_operators(name):
    call = calls()[name]
    plain = call()
    with Seen() as seen:
        assert torch.equal(call(), plain)
    assert f"tegula::{name}" in seen.names
    with SeenFunctions() as functions:
        assert torch.equal(call(), plain)
    assert any(name in found for found in functions.names)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert torch.equal(call(), plain)
    assert any(event.name.startswith(f"tegula::{name}") for event in profile.events())


def test_what_keeps_a_call_from_going_past_the_dispatcher():
    x = rows(2)
    assert direct() and direct(x, None, torch.nn.Parameter(x))
    assert not direct(x, torch.nn.Buffer(x).as_subclass(type("Other", (torch.Tensor,), {})))
    with torch.autocast("cpu"):
        assert not direct()
        with torch.autocast("cpu", enabled=False):
            assert direct()
    with torch.no_grad(), torch.inference_mode():
        assert direct()
    with torch.autograd.forward_ad.dual_level():
        assert not direct()
    inside = []
    torch.func.vmap(lambda y: (inside.append(direct()), y)[1])(x)
    torch.func.grad(lambda y: (inside.append(direct()), y.sum())[1])(x)
    torch.jit.trace(lambda y: (inside.append(direct()), y + 1)[1], x, check_trace=False)
    assert inside and not any(inside)


@pytest.mark.parametrize("grad", [False, True])
def test_negated_views_go_the_way_of_the_dispatcher(grad):
    q = torch._neg_view(rows(1, 2, 3, 8)).requires_grad_(grad)
    k = rows(1, 2, 4, 8)
    assert q.is_neg()
    found = tt.attention(q, k, k)
    plain = q.detach().resolve_neg().requires_grad_(grad)
    expected = tt.attention(plain, k, k)
    assert torch.equal(found, expected)
    if grad:
        (of_view,), (of_plain,) = (torch.autograd.grad(y.sum(), x) for y, x in ((found, q), (expected, plain)))
        assert torch.equal(of_view, of_plain)


def test_backward_passes_of_every_kind():
    """Recorded past the dispatcher; differentiated under transforms, modes, autocast and a second time."""
    q, k, v = trained(1, 2, 3, 8), trained(1, 2, 4, 8), trained(1, 2, 4, 8)
    grad = rows(1, 2, 3, 8)
    out = tt.attention(q, k, v)
    plain = torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
    with Seen() as seen:
        watched = torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
    assert "tegula::attention_backward" in seen.names
    with torch.autocast("cpu"):
        cast = torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
    both = torch.stack([grad, 2 * grad])
    batched = torch.autograd.grad(out, (q, k, v), both, retain_graph=True, is_grads_batched=True)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(grad, grad)
        pushed = torch.autograd.grad(out, (q, k, v), dual, retain_graph=True)
        tangents = [torch.autograd.forward_ad.unpack_dual(x).tangent for x in pushed]
    for i, expected in enumerate(plain):
        assert torch.equal(watched[i], expected) and torch.equal(cast[i], expected)
        torch.testing.assert_close(batched[i][1], 2 * expected)
        torch.testing.assert_close(tangents[i], expected)
    (first,) = torch.autograd.grad(out, q, grad, create_graph=True)
    assert torch.equal(first, plain[0]) and first.requires_grad
    (second,) = torch.autograd.grad(first.sum(), k)
    torch.autograd.gradgradcheck(
        lambda *x: tt.attention(*x), [x.detach().double().requires_grad_() for x in (q, k, v)], atol=1e-6
    )
    assert second.shape == k.shape


def test_options_and_their_gradients():
    q, k, v, bias = trained(2, 2, 3, 8), trained(2, 1, 5, 8), trained(2, 1, 5, 6), trained(2, 3, 5)
    sinks = trained(2)
    options = {"mask": torch.ones(3, 5, dtype=torch.bool).tril(1), "scale": 0.3, "softcap": 4.0}
    out, lse = tt.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True, **options)
    found = torch.autograd.grad(out.sum() + lse.sum(), (q, k, v, bias, sinks))
    with Seen():
        out, lse = tt.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True, **options)
        expected = torch.autograd.grad(out.sum() + lse.sum(), (q, k, v, bias, sinks))
    assert all(map(torch.equal, found, expected))
    (alone,) = torch.autograd.grad(tt.attention(q.detach(), k.detach(), v.detach(), bias=bias).sum(), bias)
    assert alone.shape == bias.shape
    out = tt.attention(q, k, v).sum()
    with torch.no_grad():
        q.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def shapes_in_memory():
    x = rows(2, 3, 4, 8)
    return {
        "whole": x,
        "heads inside": rows(2, 4, 3, 8).transpose(1, 2),
        "rows first": rows(4, 2, 3, 8).permute(1, 2, 0, 3),
        "columns first": rows(2, 3, 8, 4).transpose(-1, -2),
        "cut": rows(2, 3, 6, 16)[:, :, 1:5, ::2],
        "repeated": rows(1, 3, 1, 8).expand(2, 3, 4, 8),
        "repeated row": rows(2, 3, 1, 8).expand(2, 3, 4, 8),
        "one head": rows(4, 8),
        "one row": rows(2, 3, 1, 8),
        "empty": rows(2, 0, 4, 8),
        "large": rows(2, 1200, 2, 64).transpose(1, 2),
    }


@pytest.mark.parametrize("name", list(shapes_in_memory()))
def test_results_lie_in_memory_as_torchs_do(name):
    q = shapes_in_memory()[name]
    out, lse = tt.attention(q, q, q, return_lse=True)
    assert out.stride() == torch.empty_like(q).stride() and lse.is_contiguous()
    assert out.dtype == q.dtype and lse.shape == q.shape[:-1]
    leaf = q.clone().as_strided(q.shape, torch.empty_like(q).stride()).requires_grad_()
    (grad,) = torch.autograd.grad(tt.attention(leaf, leaf, leaf).sum(), leaf)
    assert grad.stride() == torch.empty_like(leaf).stride()
    v = q[..., :5]
    narrow = tt.attention(q, q, v)
    assert narrow.shape == (*q.shape[:-1], 5)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = tt.attention(*(mode.from_tensor(x) for x in (q, q, v)))
    assert narrow.stride() == fake.stride()


def test_results_are_tensors_like_others():
    x = rows(1, 2, 3, 8)
    out = tt.attention(x, x, x)
    assert not out.requires_grad and out.is_leaf and not out.is_inference() and out._version == 0
    assert out.data_ptr() % 64 == 0
    out.add_(1.0)
    assert torch.equal(out.clone(), out)
    with torch.inference_mode():
        assert tt.attention(x, x, x).is_inference()
    assert tt.attention(x, x, x).share_memory_().is_shared()


def writers():
    """Functions that write into tensors of the caller's: the tensor, and a call that does."""
    q = rows(1, 2, 3, 8)
    out, lse = tt.attention(q, q, q, return_lse=True)
    into, others = rows(1, 2, 3, 8), (rows(1, 2, 3, 8), rows(1, 2, 3, 8))
    table, ids = rows(5, 4), torch.tensor([1, 4])
    return {
        "attention": (into, lambda: tt.attention(q, q, q, out=into)),
        "attention in another layout": (into, lambda: tt.attention(q, q, q, out=into, layout="blhd")),
        "attention_backward": (into, lambda: tt.attention_backward(out, q, q, q, out, lse, grads=(into, *others))),
        "embedding": (table, lambda: tt.embedding(torch.arange(5), rows(6, 4), out=table)),
        "embedding_backward": (table, lambda: tt.embedding_backward(rows(2, 4), ids, 5, out=table)),
        "positional_encoding": (table, lambda: tt.positional_encoding(torch.arange(5), 4, out=table)),
    }


@pytest.mark.parametrize("name", list(writers()))
def test_autograd_notices_what_is_written(name):
    into, write = writers()[name]
    loss = (into * torch.ones_like(into).requires_grad_()).sum()
    write()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("name", list(writers()))
def test_results_of_inference_mode_are_written(name):
    with torch.inference_mode():
        into, write = writers()[name]
        before = into.clone()
        write()
        assert not torch.equal(into, before)
