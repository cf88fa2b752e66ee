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
from .attention_autograd import attention_autograd, backward_autograd, refuse_gradient
from .attention_checks import check_attention, check_backward, check_options, sizes
from .attention_dense import sink_dtype
from .attention_options import BIAS, DEFAULTS, SINKS
from .attention_vmap import attention_vmap, backward_vmap
from .dropout import seed_number
from .library import define
from .results import empty, empty_like

_OPTIONS = (
    "Tensor? lo=None, Tensor? hi=None, Tensor? dense=None, Tensor? bias=None, Tensor? alibi=None, "
    "Tensor? sinks=None, Tensor? seed=None, float? scale=None, float softcap=0.0, float dropout_p=0.0, "
    "int threads=0"
)


def new_out(q: Tensor, v: Tensor) -> Tensor:
    """(..., H, Lq, Dv), its axes in the order of q's."""
    if q.dim() == 0 or v.dim() == 0:
        return torch.empty_like(q)  # the native module says what is wrong
    if q.shape[-1] == v.shape[-1]:
        return empty_like(q)
    shape = (*q.shape[:-1], v.shape[-1])
    if q.dim() > 2 and q.stride(-3) < q.stride(-2):
        *lead, heads, rows, columns = shape
        return empty(q, (*lead, rows, heads, columns)).transpose(-3, -2)
    return empty(q, shape)


def new_lse(q: Tensor) -> Tensor:
    return q.new_empty(q.shape[:-1], dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


def new_weights(q: Tensor, k: Tensor) -> Tensor:
    return empty(q, (*q.shape[:-1], *k.shape[-2:-1]))


def native_options(
    q: Tensor,
    k: Tensor,
    bias: Tensor | None,
    alibi: Tensor | None,
    sinks: Tensor | None,
    seed: Tensor | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, int]:
    """bias, alibi, sinks and seed as the native module takes them."""
    if bias is not None:
        _, heads, q_len, k_len = sizes(q, k)
        bias = _expand(bias, (*q.shape[:-3], heads, q_len, k_len))
    return (
        bias,
        None if alibi is None else alibi.double(),
        None if sinks is None else sinks.double(),
        seed_number(seed),
    )


def _expand(bias: Tensor, shape: tuple[int, ...]) -> Tensor:
    try:
        return bias.expand(shape)
    except RuntimeError:
        raise ValueError(f"bias has shape {tuple(bias.shape)}, which does not broadcast to {shape}") from None


def native_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | bool,
    weights: Tensor | bool,
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
) -> None:
    """Write attention's results into the tensors given for them; False asks for none."""
    check_options(seed, softcap, dropout_p)
    number = 0
    if bias is not None or alibi is not None or sinks is not None or seed is not None:
        bias, alibi, sinks, number = native_options(q, k, bias, alibi, sinks, seed)
    _core.attention(
        q, k, v, out, lo, hi, dense, bias, alibi, sinks, scale, softcap, dropout_p, number, "bhld", lse, weights,
        threads or -torch.get_num_threads(),
    )  # fmt: skip


def _forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Tensor:
    refuse_gradient("attention_forward", q, k, v, *options[3:6])  # bias, alibi, sinks
    out = new_out(q, v)
    native_attention(q, k, v, out, False, False, *options)
    return out


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`_forward` without options, in as few steps of Python as it takes."""
    if q.requires_grad or k.requires_grad or v.requires_grad:
        refuse_gradient("attention_forward", q, k, v)
    out = empty_like(q) if q.shape == v.shape else new_out(q, v)
    _core.attention(
        q, k, v, out, None, None, None, None, None, None, None, 0.0, 0.0, 0, "bhld", False, False,
        -torch.get_num_threads(),
    )  # fmt: skip
    return out


def _attention(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    out, lse = new_out(q, v), new_lse(q)
    native_attention(q, k, v, out, lse, False, *options)
    return out, lse


def _weights(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor]:
    refuse_gradient("attention_weights", q, k, v, *options[3:6])
    out, lse, weights = new_out(q, v), new_lse(q), new_weights(q, k)
    native_attention(q, k, v, out, lse, weights, *options)
    return out, lse, weights


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


# ---------------------------------------------------------------------------------------------------
# Backward


def native_backward(
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
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
    bias_grad: bool = False,
    sinks_grad: bool = False,
    grad_lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Write into dq, dk and dv, and return dbias and dsinks, empty unless asked for."""
    check_options(seed, softcap, dropout_p)
    dbias, dsinks = _new_option_gradients(q, bias, sinks, bias_grad, sinks_grad)
    wide, slopes, logits, number = native_options(q, k, bias, alibi, sinks, seed)
    wide_dbias = None if wide is None or not bias_grad else dbias.expand(wide.shape)
    *_, sums = _core.attention_backward(
        grad_out, q, k, v, out, lse, lo, hi, dense, wide, slopes, logits, scale, softcap, dropout_p, number, "bhld",
        dq, dk, dv, wide_dbias, grad_lse, threads or -torch.get_num_threads(),
    )  # fmt: skip
    if sinks is not None and sinks_grad:
        dsinks.copy_(torch.from_numpy(sums))
    return dbias, dsinks


def _new_option_gradients(
    q: Tensor, bias: Tensor | None, sinks: Tensor | None, bias_grad: bool, sinks_grad: bool
) -> tuple[Tensor, Tensor]:
    return (
        q.new_empty((0,)) if bias is None or not bias_grad else bias.new_zeros(bias.shape),
        q.new_empty((0,)) if sinks is None or not sinks_grad else sinks.new_empty(sinks.shape, dtype=sink_dtype(sinks)),
    )


def _backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv = empty_like(q), empty_like(k), empty_like(v)
    return dq, dk, dv, *native_backward(dq, dk, dv, grad_out, q, k, v, *others)


def _fake_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    *options, bias_grad, sinks_grad, grad_lse = others
    _check(q, k, v, *options)
    check_backward(grad_out, q, v, out, lse, grad_lse)
    dq, dk, dv = empty_like(q), empty_like(k), empty_like(v)
    return dq, dk, dv, *_new_option_gradients(q, options[BIAS], options[SINKS], bias_grad, sinks_grad)


def _dropout_mask(seed: Tensor, dropout_p: float, batch: int, heads: int, q_len: int, k_len: int) -> Tensor:
    check_options(seed, 0.0, dropout_p)
    shape = (batch, heads, q_len, k_len)
    return torch.from_numpy(_core.dropout_mask(seed_number(seed), dropout_p, shape, -torch.get_num_threads()))


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
attention_plain = define(  # without options: the dispatcher's time goes by the number of arguments
    "attention_forward.plain",
    "(Tensor q, Tensor k, Tensor v) -> Tensor",
    kernel=_plain,
    fake=_fake_forward,
    low_precision=(0, 1, 2),
)
attention = define(
    "attention",
    f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)",
    kernel=_attention,
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
    kernel=_backward,
    fake=_fake_backward,
    autograd=backward_autograd,
    vmap=backward_vmap,
)
