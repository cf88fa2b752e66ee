"""Attention's operators: schemas, kernels and fake kernels.

In every operator q is (..., H, Lq, D), k (..., G, Lk, D), v (..., G, Lk, Dv); B is the product of the
leading axes. lo, hi: int32, broadcastable to (B, H, Lq), or to (2, B, H, Lq) for two runs of keys; dense:
bool, broadcastable to (B, H, Lq, Lk); bias: broadcastable to (..., H, Lq, Lk); alibi, sinks: (H,); seed:
one int64, the two's complement of a seed in [0, 2**64), needed for dropout_p > 0. softcap 0 is none;
threads 0 is the setting. out (..., H, Lq, Dv) has the order of q's axes in memory, lse (..., H, Lq) is
float32 (float64 for float64). grad_out is like out, grad_lse, which may be missing, like lse.

======================  =========================================================================
attention               out and lse; the gradients of both
attention_forward       out; where nothing asks for a gradient
attention_weights       out, lse and the softmax weights (..., H, Lq, Lk); no gradient
attention_backward      dq, dk, dv, dbias, dsinks; the last two are empty unless asked for
dropout_mask            bool (B, H, Lq, Lk): the pairs that dropout keeps
======================  =========================================================================
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _core
from . import attention_kernels as kernels
from .attention_autograd import attention_autograd, backward_autograd, refuse_gradient
from .attention_checks import check_attention, check_backward, check_options
from .attention_dense import sink_dtype
from .attention_options import BIAS, DEFAULTS, SINKS
from .attention_vmap import attention_vmap, backward_vmap
from .dropout import seed_number
from .library import define, native

_OPTIONS = (
    "Tensor? lo=None, Tensor? hi=None, Tensor? dense=None, Tensor? bias=None, Tensor? alibi=None, "
    "Tensor? sinks=None, Tensor? seed=None, float? scale=None, float softcap=0.0, float dropout_p=0.0, "
    "int threads=0"
)


# ---------------------------------------------------------------------------------------------------
# Fresh results, as the native module makes them


def new_out(q: Tensor, v: Tensor) -> Tensor:
    """(..., H, Lq, Dv), its axes in the order of q's."""
    if q.shape[-1] == v.shape[-1]:
        return torch.empty_like(q)
    shape = (*q.shape[:-1], v.shape[-1])
    if q.dim() > 2 and q.stride(-3) < q.stride(-2):
        *lead, heads, rows, columns = shape
        return q.new_empty((*lead, rows, heads, columns)).transpose(-3, -2)
    return q.new_empty(shape)


def new_lse(q: Tensor) -> Tensor:
    return q.new_empty(q.shape[:-1], dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


def new_weights(q: Tensor, k: Tensor) -> Tensor:
    return q.new_empty((*q.shape[:-1], *k.shape[-2:-1]))


# ---------------------------------------------------------------------------------------------------
# Kernels


def _forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Tensor:
    refuse_gradient("attention_forward", q, k, v, *options[3:6])  # bias, alibi, sinks
    return kernels.attention_forward(q, k, v, *options)


def _weights(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor]:
    refuse_gradient("attention_weights", q, k, v, *options[3:6])
    return kernels.attention_weights(q, k, v, *options)


def _check(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> None:
    *tensors, _, softcap, dropout_p, _ = options or DEFAULTS
    check_attention(q, k, v, *tensors)
    check_options(tensors[-1], softcap, dropout_p)


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Tensor:
    _check(q, k, v, *options)
    return new_out(q, v)


def _fake_attention(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    _check(q, k, v, *options)
    return new_out(q, v), new_lse(q)


def _fake_weights(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor]:
    _check(q, k, v, *options)
    return new_out(q, v), new_lse(q), new_weights(q, k)


def _fake_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    *options, bias_grad, sinks_grad, grad_lse = others
    _check(q, k, v, *options)
    check_backward(grad_out, q, v, out, lse, grad_lse)
    bias, sinks = options[BIAS], options[SINKS]
    return (
        torch.empty_like(q),
        torch.empty_like(k),
        torch.empty_like(v),
        bias.new_empty(bias.shape) if bias_grad and bias is not None else q.new_empty((0,)),
        sinks.new_empty(sinks.shape, dtype=sink_dtype(sinks))
        if sinks_grad and sinks is not None
        else q.new_empty((0,)),
    )


def _dropout_mask(seed: Tensor, dropout_p: float, batch: int, heads: int, q_len: int, k_len: int) -> Tensor:
    check_options(seed, 0.0, dropout_p)
    shape = (batch, heads, q_len, k_len)
    if seed.is_cuda:
        kept = seed.new_empty(shape, dtype=torch.bool)
        native(seed).dropout_mask(kept, seed, dropout_p)
        return kept
    return torch.from_numpy(_core.dropout_mask(seed_number(seed, seed), dropout_p, shape, -torch.get_num_threads()))


def _fake_dropout_mask(seed: Tensor, dropout_p: float, batch: int, heads: int, q_len: int, k_len: int) -> Tensor:
    check_options(seed, 0.0, dropout_p)
    return seed.new_empty((batch, heads, q_len, k_len), dtype=torch.bool)


dropout_mask = define(
    "dropout_mask",
    "(Tensor seed, float dropout_p, SymInt batch, SymInt heads, SymInt q_len, SymInt k_len) -> Tensor",
    kernel=_dropout_mask,
    fake=_fake_dropout_mask,
)
attention_forward = define(
    "attention_forward",
    f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> Tensor",
    kernel=_forward,
    fake=_fake_forward,
    low_precision=(0, 1, 2),
)
attention = define(
    "attention",
    f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)",
    kernel=kernels.attention,
    fake=_fake_attention,
    autograd=attention_autograd,
    vmap=attention_vmap,
    low_precision=(0, 1, 2),
)
attention_weights = define(
    "attention_weights",
    f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    kernel=_weights,
    fake=_fake_weights,
    low_precision=(0, 1, 2),
)
attention_backward = define(
    "attention_backward",
    f"(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_OPTIONS}, "
    "bool bias_grad=False, bool sinks_grad=False, Tensor? grad_lse=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    kernel=kernels.attention_backward,
    fake=_fake_backward,
    autograd=backward_autograd,
    vmap=backward_vmap,
)
