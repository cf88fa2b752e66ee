"""What attention's operators run: the native modules' kernels, on tensors and lowered options.

Arguments are those of the operators, in their order; see `attention_ops`. Nothing here knows of autograd.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attention_checks import check_options, sizes
from .attention_dense import sink_dtype
from .attention_options import BIAS, DEFAULTS, SINKS
from .dropout import seed_number
from .library import native


def attention_forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Tensor:
    out: Tensor = native_attention(q, k, v, None, False, False, *options)
    return out


def attention(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    out, lse = native_attention(q, k, v, None, True, False, *options)
    return out, lse


def attention_weights(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor]:
    out, lse, weights = native_attention(q, k, v, None, True, True, *options)
    return out, lse, weights


def native_attention(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, lse: Tensor | bool, weights: Tensor | bool, *options: Any
) -> Any:
    """Attention's results, in the tensors given for them; None and True ask for fresh ones, False for none."""
    lowered, threads = native_options(q, k, *options) if options else NO_OPTIONS
    return native(q).attention(
        q, k, v, out, *lowered, "bhld", lse, weights, threads or -torch.get_num_threads(),
    )  # fmt: skip


NO_OPTIONS: tuple[tuple[Any, ...], int] = ((None, None, None, None, None, None, None, 0.0, 0.0, 0), 0)


def native_options(
    q: Tensor,
    k: Tensor,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    dense: Tensor | None = None,
    bias: Tensor | None = None,
    alibi: Tensor | None = None,
    sinks: Tensor | None = None,
    seed: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    threads: int = 0,
) -> tuple[tuple[Any, ...], int]:
    """The options as the native module takes them, and threads."""
    number: Any = 0
    if seed is not None or softcap != 0.0 or dropout_p != 0.0:
        check_options(seed, softcap, dropout_p)
        number = seed_number(seed, q)
    if bias is not None:
        _, heads, q_len, k_len = sizes(q, k)
        bias = _expand(bias, (*tuple(q.shape)[:-3], heads, q_len, k_len))
    if alibi is not None:
        alibi = alibi.double().contiguous()
    if sinks is not None:
        sinks = sinks.double().contiguous()
    return (lo, hi, dense, bias, alibi, sinks, scale, softcap, dropout_p, number), threads


def _expand(bias: Tensor, shape: tuple[int, ...]) -> Tensor:
    try:
        return bias.expand(shape)
    except RuntimeError:
        raise ValueError(f"bias has shape {tuple(bias.shape)}, which does not broadcast to {shape}") from None


def attention_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    options, more = others[: len(DEFAULTS)], others[len(DEFAULTS) :]
    dq, dk, dv, dbias, dsinks = native_backward(NO_GRADIENTS, grad_out, q, k, v, out, lse, options, *more)
    return dq, dk, dv, q.new_empty((0,)) if dbias is None else dbias, q.new_empty((0,)) if dsinks is None else dsinks


NO_GRADIENTS = (None, None, None)


def native_backward(
    into: tuple[Tensor | None, Tensor | None, Tensor | None],
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    options: tuple[Any, ...],
    bias_grad: bool = False,
    sinks_grad: bool = False,
    grad_lse: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """dq, dk and dv, fresh or in the tensors given for them, and dbias and dsinks where they are asked for."""
    lowered, threads = native_options(q, k, *options) if options else NO_OPTIONS
    dbias = dsinks = wide_dbias = None
    if bias_grad:
        bias = options[BIAS]
        dbias = bias.new_zeros(bias.shape)
        wide_dbias = dbias.expand(lowered[BIAS].shape)
    dq, dk, dv, sums = native(q).attention_backward(
        grad_out, q, k, v, out, lse, *lowered, "bhld", *into, wide_dbias, grad_lse,
        threads or -torch.get_num_threads(),
    )  # fmt: skip
    if sinks_grad:
        sinks = options[SINKS]
        dsinks = sinks.new_empty(sinks.shape, dtype=sink_dtype(sinks))
        dsinks.copy_(sums)
    return dq, dk, dv, dbias, dsinks
