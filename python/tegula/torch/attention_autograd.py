"""Gradients of attention's operators, for autograd, forward-mode differentiation and `torch.func`.

The derivative of `attention` is `attention_backward`, a native operator too. The derivative of that
one, and the forward-mode derivatives, are dense compositions of torch's own operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import _core
from . import attention_kernels as kernels
from .attention_dense import Inputs, dense_backward, dense_jvp
from .attention_options import BIAS, DEFAULTS, SCALE, SINKS, Options
from .attention_vmap import attention_vmap, backward_vmap
from .library import direct

# Bound once: these are asked on every call.
_grad_enabled = torch.is_grad_enabled
_jit_state = torch._C._get_tracing_state
_forward_ad = torch.autograd.forward_ad

_NO_SLOPES = "alibi requires grad, but attention computes no gradient for it; pass alibi.detach()"
_NO_SLOPES_TANGENT = "alibi has a tangent, but attention computes no derivative for it"

Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class AttentionFunction(torch.autograd.Function):
    """Arguments and results of the operator `attention`."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            result: tuple[Tensor, Tensor] = torch.ops.tegula.attention.default(*args)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.scale, ctx.softcap, ctx.dropout_p, ctx.threads = inputs
        if ctx.needs_input_grad[7]:
            raise RuntimeError(_NO_SLOPES)
        ctx.save_for_backward(*tensors, *output)
        ctx.save_for_forward(*tensors, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, lo, hi, dense, bias, alibi, sinks, seed, out, lse = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if grad_out is None:
            grad_out = out.new_zeros(()).expand(out.shape)
        dq, dk, dv, dbias, dsinks = backward_call(
            grad_out, q, k, v, out, lse,
            (lo, hi, dense, bias, alibi, sinks, seed, ctx.scale, ctx.softcap, ctx.dropout_p, ctx.threads),
            needs[6], needs[8], grad_lse,
        )  # fmt: skip
        return (
            dq if needs[0] else None,
            dk if needs[1] else None,
            dv if needs[2] else None,
            *(None,) * 3,
            dbias if needs[6] else None,
            None,
            dsinks if needs[8] else None,
            *(None,) * 5,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor]:
        q, k, v, lo, hi, dense, bias, alibi, sinks, seed, out, lse = ctx.saved_tensors
        if tangents[7] is not None:
            raise RuntimeError(_NO_SLOPES_TANGENT)
        inputs = Inputs(lo, hi, dense, alibi, seed, ctx.scale, ctx.softcap, ctx.dropout_p)
        return dense_jvp(inputs, (q, k, v, out, lse, bias, sinks), (*tangents[:3], tangents[6], tangents[8]))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        return attention_vmap(attention_call, info, in_dims, *args)


class DirectAttention(torch.autograd.Function):
    """`AttentionFunction` for what `direct` says: a training step in the fewest steps of Python.

    Arguments: q, k, v, bias, sinks, and the operator's options (or none), bias and sinks among them.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Any, sinks: Any, options: Any
    ) -> tuple[Tensor, Tensor]:
        out, lse = kernels.attention(q, k, v, *options)
        ctx.save_for_backward(q, k, v, out, lse, *options[:7])
        ctx.options = options[7:]
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, out, lse, *tensors = ctx.saved_tensors
        options = *tensors, *ctx.options
        bias_grad, sinks_grad = ctx.needs_input_grad[3:5] if options else (False, False)
        if grad_out is None:
            grad_out = out.new_zeros(()).expand(out.shape)
        dq, dk, dv, dbias, dsinks = backward_call(grad_out, q, k, v, out, lse, options, bias_grad, sinks_grad, grad_lse)
        return dq, dk, dv, dbias if bias_grad else None, dsinks if sinks_grad else None, None


class BackwardFunction(torch.autograd.Function):
    """Arguments and results of the operator `attention_backward`."""

    @staticmethod
    def forward(*args: Any) -> Gradients:
        with torch._C._AutoDispatchBelowAutograd():
            result: Gradients = torch.ops.tegula.attention_backward.default(*args)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Gradients) -> None:
        *tensors, scale, softcap, dropout_p, _, ctx.bias_grad, ctx.sinks_grad, grad_lse = inputs
        if ctx.needs_input_grad[10]:
            raise RuntimeError(_NO_SLOPES)
        ctx.options = scale, softcap, dropout_p
        ctx.save_for_backward(*tensors, grad_lse)
        ctx.save_for_forward(*tensors, grad_lse)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(x for x, wanted in ((output[3], ctx.bias_grad), (output[4], ctx.sinks_grad)) if not wanted)
        )

    @staticmethod
    def _parts(ctx: Any) -> tuple[Callable[..., tuple[Tensor, ...]], list[int], list[Tensor]]:
        """The composition as a function of the tensors at some places of the arguments."""
        grad_out, q, k, v, out, lse, lo, hi, dense, bias, alibi, sinks, seed, grad_lse = ctx.saved_tensors
        inputs = Inputs(lo, hi, dense, alibi, seed, *ctx.options)
        given = {0: grad_out, 1: q, 2: k, 3: v, 4: out, 5: lse, 9: bias, 11: sinks, 19: grad_lse}
        places = [place for place, x in given.items() if x is not None]

        def function(*tensors: Tensor) -> tuple[Tensor, ...]:
            values = dict.fromkeys(given) | dict(zip(places, tensors, strict=True))
            return dense_backward(inputs, *values.values(), bias_grad=ctx.bias_grad, sinks_grad=ctx.sinks_grad)

        return function, places, [given[place] for place in places]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        function, places, tensors = BackwardFunction._parts(ctx)
        values, pull = torch.func.vjp(function, *tensors)
        wanted = grads[:3] + grads[3:4] * ctx.bias_grad + grads[4:5] * ctx.sinks_grad
        along = tuple(torch.zeros_like(x) if g is None else g for x, g in zip(values, wanted, strict=True))
        found = dict(zip(places, pull(along), strict=True))
        return tuple(found.get(place) if needed else None for place, needed in enumerate(ctx.needs_input_grad))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        if tangents[10] is not None:
            raise RuntimeError(_NO_SLOPES_TANGENT)
        function, places, tensors = BackwardFunction._parts(ctx)
        given = [tangents[place] for place in places]
        along = tuple(torch.zeros_like(x) if t is None else t for x, t in zip(tensors, given, strict=True))
        # J t is the derivative of u -> u J: forward-mode differentiation itself cannot be nested.
        values, pull = torch.func.vjp(function, *tensors)
        _, push = torch.func.vjp(pull, tuple(torch.zeros_like(x) for x in values))
        (found,) = push(along)
        rest = iter(found[3:])
        return (*found[:3], next(rest) if ctx.bias_grad else None, next(rest) if ctx.sinks_grad else None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        return backward_vmap(backward_operator, info, in_dims, *args)


# Function.apply inspects signatures on every call; the C++ function below it does not need to.
_record_attention = super(torch.autograd.Function, AttentionFunction).apply
_record_direct = super(torch.autograd.Function, DirectAttention).apply
_record_backward = super(torch.autograd.Function, BackwardFunction).apply


def direct_attention(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """Attention on plain tensors, recorded for the gradient; see `DirectAttention`."""
    found: tuple[Tensor, Tensor] = _record_direct(q, k, v, *(options[BIAS : SINKS + 1 : 2] or (None, None)), options)
    return found


def attention_call(*args: Any) -> Any:
    """The operator `attention`, inside the transforms of `torch.func` too."""
    if torch._C._are_functorch_transforms_active():
        return AttentionFunction.apply(*args)
    return torch.ops.tegula.attention.default(*args)


def backward_call(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    options: Options,
    bias_grad: bool,
    sinks_grad: bool,
    grad_lse: Tensor | None,
) -> Any:
    """The operator `attention_backward`; dbias and dsinks may be None where they are not asked for."""
    if not _grad_enabled() and direct(grad_out, q, k, v, out, lse, grad_lse, *options[:SCALE]):
        try:
            return kernels.native_backward(
                kernels.NO_GRADIENTS, grad_out, q, k, v, out, lse, options, bias_grad, sinks_grad, grad_lse
            )
        except _core.NotPlainError:
            pass
    return backward_operator(grad_out, q, k, v, out, lse, *(options or DEFAULTS), bias_grad, sinks_grad, grad_lse)


def backward_operator(*args: Any) -> Any:
    """The operator `attention_backward`, inside the transforms of `torch.func` too."""
    if torch._C._are_functorch_transforms_active():
        return BackwardFunction.apply(*args)
    if torch.compiler.is_compiling():  # compiled autograd
        return torch.ops.tegula.attention_backward.default(*args)
    return backward_autograd(*args)  # where the operator would come first


def derivative_is_wanted(*tensors: Tensor | None) -> bool:
    """Whether autograd, or forward-mode differentiation, follows one of the tensors, or may, in a `torch.jit` trace."""
    if _jit_state() is not None:
        return True
    if _grad_enabled():
        for x in tensors:
            if x is not None and x.requires_grad:
                return True
    if _forward_ad._current_level < 0:
        return False
    # Inside the transforms of torch.func only their own levels know who has a tangent.
    if torch._C._are_functorch_transforms_active():
        return True
    return any(x is not None and _forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def refuse_gradient(name: str, *tensors: Tensor | None) -> None:
    """RuntimeError when somebody would wait in vain for a gradient."""
    if derivative_is_wanted(*tensors):
        raise RuntimeError(f"tegula::{name} computes no gradients, but one of its tensors requires grad")


def attention_autograd(*args: Any) -> Any:
    """The kernel of `attention` on the key Autograd."""
    q, k, v, _, _, _, bias, alibi, sinks, *_ = args
    if derivative_is_wanted(q, k, v, bias, alibi, sinks):
        return _record_attention(*args)
    return AttentionFunction.forward(*args)


def backward_autograd(*args: Any) -> Any:
    """The kernel of `attention_backward` on the key Autograd."""
    grad_out, q, k, v, out, lse, _, _, _, bias, alibi, sinks, *_, grad_lse = args
    if derivative_is_wanted(grad_out, q, k, v, out, lse, bias, alibi, sinks, grad_lse):
        return _record_backward(*args)
    return BackwardFunction.forward(*args)
