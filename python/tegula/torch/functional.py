"""The package's functions for tensors: the meaning of those for arrays, as operators of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .. import checks
from ..masks import Mask
from ..masks._torch import as_mask, lower
from ..runtime import checked_threads
from . import attention_ops as ops
from .attention_autograd import attention_call, derivative_is_wanted
from .attention_checks import check_broadcasts, dtype_name, sizes

Tensor = torch.Tensor
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
        At least 1; torch's setting by default. The result does not depend on it.
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
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        _refuse_kinds(q=q, k=k, v=v)
    if layout != "bhld":
        q, k, v = _heads_first(layout, q, k, v)
    options = ()
    if (
        mask is not None or bias is not None or scale is not None or softcap is not None or alibi is not None
        or sinks is not None or seed is not None or dropout_p != 0.0 or threads is not None
    ):  # fmt: skip
        options = _lower(q, k, mask, bias, scale, softcap, alibi, sinks, dropout_p, seed, threads)
        bias, sinks = options[3], options[5]
    if return_lse is not False:
        return_lse = checks.flag(return_lse, "return_lse")
    if return_weights is not False:
        return_weights = checks.flag(return_weights, "return_weights")

    weights = None
    if out is not None:
        out, lse, weights = _into(out, layout, q, k, v, options, return_lse, return_weights)
    elif return_weights:
        _without_gradient("return_weights=True", q, k, v, bias, sinks)
        out, lse, weights = ops.attention_weights(q, k, v, *options)
    elif _is_compiling():
        out, lse = ops.attention(q, k, v, *options)
    elif _in_transform():
        out, lse = attention_call(q, k, v, *options, *_DEFAULTS[len(options) :])
    elif return_lse or derivative_is_wanted(q, k, v, bias, sinks):
        out, lse = ops.attention(q, k, v, *options)
    elif options:
        out = ops.attention_forward(q, k, v, *options)
    else:
        out = ops.attention_plain(q, k, v)
    if layout != "bhld":
        out = out.transpose(-3, -2)
    if not (return_lse or return_weights):
        return out
    return (out, *((lse,) if return_lse else ()), *((weights,) if return_weights else ()))


# The operators' arguments behind q, k and v.
_DEFAULTS = (None, None, None, None, None, None, None, None, 0.0, 0.0, 0)


def _heads_first(layout: Any, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """q, k and v as (..., H, L, D)."""
    if layout not in ("blhd", "lhd"):
        raise ValueError(f"layout must be 'bhld', 'blhd' or 'lhd', got {layout!r}")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() < 3 or (layout == "lhd" and x.dim() != 3):
            count = "exactly 3" if layout == "lhd" else "at least 3"
            raise ValueError(f"{name} has shape {tuple(x.shape)}; layout {layout!r} needs {count} axes")
    return [x.transpose(-3, -2) for x in (q, k, v)]


def _lower(
    q: Tensor,
    k: Tensor,
    mask: Any,
    bias: Any,
    scale: Any,
    softcap: Any,
    alibi: Any,
    sinks: Any,
    dropout_p: Any,
    seed: Any,
    threads: Any,
) -> tuple[Any, ...]:
    """The options as the operators take them: lo, hi, dense, bias, alibi, sinks, seed and the numbers."""
    lo = hi = dense = None
    batch, heads, q_len, k_len = sizes(q, k)
    if mask is not None:
        lo, hi, dense = _lower_mask(mask, batch, heads, q_len, k_len, q.device)
    if bias is not None:
        bias = _lower_bias(bias, q.shape[:-3], (heads, q_len, k_len))
    if scale is not None:
        scale = checks.real(scale, "scale")
    if softcap is None:
        softcap = 0.0
    else:
        softcap = checks.real(softcap, "softcap")
        if softcap <= 0:
            raise ValueError(f"softcap must be positive, got {softcap}; None switches it off")
    if alibi is not None:
        alibi = _per_head(alibi, "alibi", heads, q.device)
        if alibi.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("alibi requires grad, but attention computes no gradient for it; pass alibi.detach()")
        if not _is_compiling() and not _in_transform() and not (alibi.abs() <= torch.finfo(torch.float32).max).all():
            raise ValueError(f"alibi must be finite in float32, got {alibi.tolist()}")
    if sinks is not None:
        sinks = _per_head(sinks, "sinks", heads, q.device)
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1:
            raise TypeError(
                f"seed must be an int or one int64, got a {dtype_name(seed)} tensor of shape {tuple(seed.shape)}"
            )
        dropout_p, _ = checks.dropout(dropout_p, 0)
    elif seed is not None or dropout_p != 0.0:
        dropout_p, number = checks.dropout(dropout_p, seed)
        seed = torch.tensor([number - 2**64 if number >= 2**63 else number]) if dropout_p > 0.0 else None
    if dropout_p == 0.0:
        seed = None
    threads = 0 if threads is None else checked_threads(threads)
    return lo, hi, dense, bias, alibi, sinks, seed, scale, softcap, dropout_p, threads


def _lower_mask(
    mask: Any, batch: int, heads: int, q_len: int, k_len: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """A mask object, or a bool tensor, whose rows become intervals where they are."""
    if not isinstance(mask, (Mask, Tensor)):
        _refuse_kinds(mask=mask)
    lo, hi, dense = lower(as_mask(mask), batch, heads, q_len, k_len, device)
    if dense is not None and isinstance(mask, Tensor):
        # The caller's own tensor: autograd notices when it is changed before the backward pass.
        dense = mask if mask.dim() == 4 else mask[None, None]
    return lo, hi, dense


def _lower_bias(bias: Any, lead: tuple[int, ...], rows: tuple[int, int, int]) -> Tensor:
    """`bias` so that it broadcasts to lead + (H, Lq, Lk). Four axes are also (B, H, Lq, Lk)."""
    if not isinstance(bias, Tensor):
        _refuse_kinds(bias=bias)
    if bias.dtype == torch.bool:
        raise TypeError("bias must be a float tensor, got bool; a bool tensor belongs in mask=")
    if bias.dim() == 4 and len(lead) != 1:
        if bias.shape[0] == 1:
            bias = bias[0]
        elif bias.shape[0] == torch.Size(lead).numel():
            bias = bias.unflatten(0, lead) if lead else bias[0]
    check_broadcasts(bias, (*lead, *rows))
    return bias


def _per_head(values: Any, name: str, heads: int, device: torch.device) -> Tensor:
    """Slopes or sinks as a tensor (H,)."""
    if isinstance(values, (list, tuple)):
        values = torch.tensor([checks.real(value, name) for value in values], dtype=torch.float64, device=device)
    if not isinstance(values, Tensor):
        _refuse_kinds(**{name: values})
    if values.dtype == torch.bool or values.is_complex():
        raise TypeError(f"{name} must be a tensor of floats, got dtype {dtype_name(values)}")
    if tuple(values.shape) != (heads,):
        raise ValueError(f"{name} must have shape ({heads},), one entry a head, got {tuple(values.shape)}")
    result: Tensor = values
    return result


def _into(
    out: Any, layout: str, q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...], lse: bool, weights: bool
) -> tuple[Tensor, Any, Any]:
    """Attention whose result goes into `out`, in place."""
    if not isinstance(out, Tensor):
        _refuse_kinds(out=out)
    given = [x for x in options if isinstance(x, Tensor)]
    _without_gradient("out=", q, k, v, out, *given)
    if layout != "bhld":
        out = out.transpose(-3, -2)
    log_sums = ops.new_lse(q) if lse else False
    shares = ops.new_weights(q, k) if weights else False
    ops.native_attention(q, k, v, out, log_sums, shares, *options)
    return out, log_sums, shares


def _without_gradient(option: str, *tensors: Tensor | None) -> None:
    if derivative_is_wanted(*tensors):
        raise RuntimeError(f"{option} has no gradient, but a tensor requires grad; detach it, or use torch.no_grad()")


def _refuse_kinds(**named: Any) -> None:
    """TypeError for the first argument that is no tensor."""
    for name, value in named.items():
        if isinstance(value, Tensor):
            continue
        if isinstance(value, np.ndarray):
            kind = f"a {value.dtype} array of shape {value.shape}"
            raise TypeError(
                f"{name} must be a torch tensor, got {kind}: one call takes NumPy arrays or torch tensors, not both"
            )
        kind = type(value).__qualname__ if type(value).__module__ == "builtins" else f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(f"{name} must be a torch tensor, got {kind}")
