"""The package's functions for tensors: the meaning of those for arrays, as operators of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _core, checks
from ..masks import Mask
from . import attention_kernels as kernels
from . import attention_ops as ops
from .attention_autograd import attention_call, backward_call, derivative_is_wanted, direct_attention
from .attention_checks import dtype_name, shape_text
from .attention_options import BIAS, DEFAULTS, SCALE, SINKS, Options, check_kinds, heads_first, lower, refuse_kind
from .library import direct, wrote_into

# Bound once: these are asked on every call.
_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_in_transform = torch._C._are_functorch_transforms_active


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi: Tensor | Sequence[float] | None = None,
    sinks: Tensor | Sequence[float] | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor | None = None,
    layout: str = "bhld",
    return_lse: bool = False,
    return_weights: bool = False,
    threads: int | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return softmax(softcap(scale * q k^T) + alibi + bias) v over the visible keys.

    `tegula.attention` for tensors, with gradients for q, k, v, bias and sinks. It works under
    ``torch.compile``, ``torch.export``, autocast and the transforms of ``torch.func``, and has
    second derivatives.

    Parameters
    ----------
    q : Tensor, shape (..., H, Lq, D)
        Queries: float64, float32, float16 or bfloat16, on the CPU. Any number of leading axes,
        none included; a 2-D q is one head. Any strides.
    k : Tensor, shape (..., G, Lk, D)
        Keys. G divides H: head h reads key/value head ``h // (H // G)``.
    v : Tensor, shape (..., G, Lk, Dv)
        Values.
    mask : Mask or bool Tensor, optional
        Which keys a query sees, True means "may attend": one of `tegula.masks`, or a tensor as
        `tegula.masks.dense` takes it.
    bias : Tensor of floats, optional
        Added to the scores; broadcasts to (..., H, Lq, Lk). -inf masks. Its gradient has its shape.
    scale : float, optional
        Factor of the products; 1/sqrt(D) by default.
    softcap : float, optional
        Scores x become ``softcap * tanh(x / softcap)``.
    alibi : Tensor of shape (H,), or list of floats, optional
        Slopes: adds ``slope * (j - i - (Lk - Lq))``. They get no gradient.
    sinks : Tensor of shape (H,), or list of floats, optional
        Logits that join the denominator of every row, and nothing else.
    dropout_p : float
        Probability in [0, 1] that a weight is dropped. See `tegula.dropout_mask`.
    seed : int in [0, 2**64), or Tensor of one int64, optional
        Required when ``dropout_p > 0``. A tensor holds the two's complement of such an int.
    layout : {"bhld", "blhd", "lhd"}
        Order of the axes: (..., H, L, D), (..., L, H, D), or one packed row (T, H, D).
    return_lse : bool
        Also return the log-sum-exp, which has a gradient too.
    return_weights : bool
        Also return the softmax weights, before dropout: Lq x Lk numbers a head. Without gradient.
    threads : int, optional
        At least 1; by default that of `tegula.set_num_threads`, or else torch's setting. The result
        does not depend on it.
    out : Tensor, optional
        Where the result goes: q's dtype and shape, with Dv as last axis. Without gradient.

    Returns
    -------
    out : Tensor, shape (..., H, Lq, Dv) in `layout`
        In q's dtype.
    lse : Tensor, shape (..., H, Lq)
        If `return_lse`, float32 (float64 for float64); -inf where a row has no key.
    weights : Tensor, shape (..., H, Lq, Lk)
        If `return_weights`, in q's dtype.

    Raises
    ------
    TypeError
        For arguments of another kind, dtype or device; arrays and tensors do not mix.
    ValueError
        For shapes that do not fit together and options outside their range.
    RuntimeError
        When a tensor without gradient requires grad.

    Notes
    -----
    The bits are those of `tegula.attention`, which also describes the algorithm.

    Examples
    --------
    >>> import torch, tegula as tg
    >>> q, k, v = (torch.randn(2, 8, 100, 64, requires_grad=True) for _ in range(3))
    >>> out = tg.attention(q, k, v, mask=tg.masks.causal())
    >>> out.sum().backward()
    >>> q.grad.shape
    torch.Size([2, 8, 100, 64])
    """
    if not type(q) is type(k) is type(v) is Tensor:
        check_kinds(q=q, k=k, v=v)
    if layout != "bhld":
        q, k, v = heads_first(layout, q=q, k=k, v=v)
    options: Options = ()
    if (
        mask is not None or bias is not None or scale is not None or softcap is not None or alibi is not None
        or sinks is not None or seed is not None or dropout_p != 0.0 or threads is not None
    ):  # fmt: skip
        options = lower(q, k, mask, bias, scale, softcap, alibi, sinks, dropout_p, seed, threads)
        bias, sinks = options[BIAS], options[SINKS]
    if return_lse is not False:
        return_lse = checks.flag(return_lse, "return_lse")
    if return_weights is not False:
        return_weights = checks.flag(return_weights, "return_weights")

    if out is not None:
        lse, weights = _into(out, layout, q, k, v, options, return_lse, return_weights)
        return _chosen(out, return_lse, lse, return_weights, weights)
    weights = None
    if return_weights:
        _without_gradient("return_weights=True", q, k, v, bias, sinks)
        out, lse, weights = ops.attention_weights(q, k, v, *options)
    else:
        out, lse = _out_and_lse(q, k, v, options, return_lse)
    if layout != "bhld":
        out = out.transpose(-3, -2)
    return _chosen(out, return_lse, lse, return_weights, weights) if return_lse or return_weights else out


def _out_and_lse(q: Tensor, k: Tensor, v: Tensor, options: Options, return_lse: bool) -> Any:
    """Attention of lowered options; lse may be None where nobody asks for it."""
    if direct(q, k, v, *options[:SCALE]):
        try:
            if _grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or _trained(options)):
                return direct_attention(q, k, v, options)
            found = kernels.native_attention(q, k, v, None, return_lse, False, *options)
            return found if return_lse else (found, None)
        except _core.NotPlainError:
            pass
    if _is_compiling():
        return ops.attention(q, k, v, *options)
    if _in_transform():
        return attention_call(q, k, v, *options, *DEFAULTS[len(options) :])
    if return_lse or derivative_is_wanted(q, k, v, *options[BIAS : SINKS + 1]):
        return ops.attention(q, k, v, *options)
    return ops.attention_forward(q, k, v, *options), None


def _trained(options: Options) -> bool:
    """Whether bias or sinks require a gradient; slopes that do have been refused."""
    return any(x is not None and x.requires_grad for x in options[BIAS : SINKS + 1])


def _chosen(out: Tensor, return_lse: bool, lse: Any, return_weights: bool, weights: Any) -> Any:
    """Return what was asked for: a tensor or a tuple."""
    more = (*((lse,) if return_lse else ()), *((weights,) if return_weights else ()))
    return (out, *more) if more else out


def _into(
    out: Any, layout: str, q: Tensor, k: Tensor, v: Tensor, options: Options, lse: bool, weights: bool
) -> tuple[Any, Any]:
    """Attention whose result goes into `out`, in place; lse and weights, or False for each."""
    if not isinstance(out, Tensor):
        refuse_kind("out", out)
    _without_gradient("out=", q, k, v, out, *(x for x in options if isinstance(x, Tensor)))
    if layout != "bhld":
        (out,) = heads_first(layout, out=out)
    if _is_compiling():  # a graph holds the operator, and the copy
        if weights:
            result, log_sums, shares = ops.attention_weights(q, k, v, *options)
        else:
            (result, log_sums), shares = ops.attention(q, k, v, *options), False
        if out.dtype != result.dtype:
            raise TypeError(f"out must have dtype {dtype_name(result)}, got {dtype_name(out)}")
        if out.shape != result.shape:
            raise ValueError(f"out must have shape {shape_text(result)}, got {shape_text(out)}")
        out.copy_(result)
        return log_sums, shares
    found = kernels.native_attention(q, k, v, out, lse, weights, *options)
    wrote_into(out)
    return found[1] if lse else False, found[-1] if weights else False


def _without_gradient(option: str, *tensors: Tensor | None) -> None:
    if derivative_is_wanted(*tensors):
        raise RuntimeError(f"{option} has no gradient, but a tensor requires grad; detach it, or use torch.no_grad()")


def attention_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi: Tensor | Sequence[float] | None = None,
    sinks: Tensor | Sequence[float] | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor | None = None,
    layout: str = "bhld",
    grad_lse: Tensor | None = None,
    threads: int | None = None,
    grads: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Return the gradients of `attention` with respect to q, k, v, and bias and sinks if given.

    `tegula.attention_backward` for tensors. ``out.backward()`` needs none of this; it is for loops
    that keep no graph. It is differentiable itself.

    Parameters
    ----------
    grad_out : Tensor, shape (..., H, Lq, Dv) in `layout`
        Gradient of the result, in q's dtype. Any strides, also 0.
    q, k, v : Tensor
        What `attention` was given.
    out, lse : Tensor
        What `attention` returned with ``return_lse=True``.
    mask, bias, scale, softcap, alibi, sinks, dropout_p, seed, layout
        The options that `attention` was given.
    grad_lse : Tensor, shape (..., H, Lq), optional
        Gradient of the log-sum-exp, in lse's dtype, where the loss depends on it.
    threads : int, optional
        At least 1; by default that of `tegula.set_num_threads`, or else torch's setting. The result
        does not depend on it.
    grads : tuple of three Tensors, optional
        Where dq, dk and dv go: of the shapes and the dtype of q, k and v.

    Returns
    -------
    dq, dk, dv : Tensor
        In the shapes and the dtype of q, k and v.
    dbias : Tensor
        If `bias` was given: in its shape and dtype.
    dsinks : Tensor, shape (H,)
        If `sinks` were given: in their dtype, float64 for a list or integers.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `attention`.

    Examples
    --------
    >>> import torch, tegula as tg
    >>> q, k, v = torch.randn(3, 1, 4, 10, 16)
    >>> out, lse = tg.attention(q, k, v, return_lse=True)
    >>> dq, dk, dv = tg.attention_backward(torch.ones_like(out), q, k, v, out, lse)
    >>> dq.shape
    torch.Size([1, 4, 10, 16])
    """
    check_kinds(
        q=q, k=k, v=v, grad_out=grad_out, out=out, lse=lse, **({} if grad_lse is None else {"grad_lse": grad_lse})
    )
    given = bias
    if layout != "bhld":
        q, k, v, grad_out, out = heads_first(layout, q=q, k=k, v=v, grad_out=grad_out, out=out)
    options = lower(q, k, mask, bias, scale, softcap, alibi, sinks, dropout_p, seed, threads)
    arguments = grad_out, q, k, v, out, lse, options, bias is not None, sinks is not None, grad_lse
    if grads is None:
        dq, dk, dv, dbias, dsinks = backward_call(*arguments)
    else:
        if not isinstance(grads, tuple) or len(grads) != 3:
            raise TypeError(f"grads must be a tuple of three tensors (dq, dk, dv), got {type(grads).__name__}")
        check_kinds(q=q, dq=grads[0], dk=grads[1], dv=grads[2])
        _without_gradient("grads=", *(x for x in (*arguments, *options, *grads) if isinstance(x, Tensor)))
        dq, dk, dv = grads if layout == "bhld" else heads_first(layout, dq=grads[0], dk=grads[1], dv=grads[2])
        *_, dbias, dsinks = kernels.native_backward((dq, dk, dv), *arguments)
        wrote_into(*grads)
    if layout != "bhld":
        dq, dk, dv = heads_first(layout, dq=dq, dk=dk, dv=dv)
    found = [dq, dk, dv] if grads is None else list(grads)
    if given is not None and dbias is not None:
        found.append(dbias.reshape(given.shape))
    if sinks is not None:
        found.append(dsinks)
    return tuple(found)


def merge_attention(out1: Tensor, lse1: Tensor, out2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """Join two results of the same queries over disjoint sets of keys.

    Parameters
    ----------
    out1, out2 : Tensor, shape (..., H, Lq, Dv)
        Results of `attention` in one dtype.
    lse1, lse2 : Tensor, shape (..., H, Lq)
        Their log-sum-exps, float32 (float64 for float64).

    Returns
    -------
    out, lse : Tensor
        What attention over both sets of keys gives, up to rounding. Where neither has a key: 0
        and -inf. Gradients reach all four arguments.

    Raises
    ------
    TypeError, ValueError
        When the tensors do not belong together.

    Examples
    --------
    >>> import torch, tegula as tg
    >>> q, k, v = torch.randn(3, 1, 4, 10, 16)
    >>> first = tg.attention(q, k[:, :, :6], v[:, :, :6], return_lse=True)
    >>> second = tg.attention(q, k[:, :, 6:], v[:, :, 6:], return_lse=True)
    >>> out, lse = tg.merge_attention(*first, *second)
    >>> torch.allclose(out, tg.attention(q, k, v), atol=1e-6)
    True
    """
    named = {"out1": out1, "lse1": lse1, "out2": out2, "lse2": lse2}
    check_kinds(**named)
    if out1.dtype != out2.dtype:
        raise TypeError(f"out2 has dtype {dtype_name(out2)} but out1 has dtype {dtype_name(out1)}")
    if not out1.is_floating_point():
        raise TypeError(f"dtype must be float64, float32, float16 or bfloat16, got {dtype_name(out1)}")
    compute = torch.float64 if out1.dtype == torch.float64 else torch.float32
    for name in ("lse1", "lse2"):
        if named[name].dtype != compute:
            raise TypeError(f"{name} must have dtype {dtype_name(compute)}, got {dtype_name(named[name])}")
    if out1.shape != out2.shape:
        raise ValueError(f"out2 has shape {shape_text(out2)} but out1 has shape {shape_text(out1)}")
    for name in ("lse1", "lse2"):
        if named[name].shape != out1.shape[:-1]:
            raise ValueError(f"{name} must have shape {tuple(out1.shape[:-1])}, got {shape_text(named[name])}")
    peak = torch.maximum(lse1, lse2).detach()
    point = torch.where(peak == -torch.inf, 0.0, peak)
    weight1, weight2 = (lse1 - point).exp(), (lse2 - point).exp()
    total = weight1 + weight2
    empty = total == 0
    divisor = torch.where(empty, 1.0, total)
    lse = torch.where(empty, -torch.inf, point + divisor.log())

    def share(out: Tensor, weight: Tensor) -> Tensor:
        factor = (weight / divisor)[..., None]
        # A side without keys takes no part, whatever it holds.
        return torch.where(factor == 0, 0.0, torch.where(factor == 0, 0.0, out.to(compute)) * factor)

    return (share(out1, weight1) + share(out2, weight2)).to(out1.dtype), lse
