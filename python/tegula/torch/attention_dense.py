"""Attention's derivatives as dense compositions of torch operations: memory grows with Lq x Lk.

They serve where derivatives are rare: the second derivative and forward mode. Everything here follows
from the weights p = exp(a - lse), a = softcap(scale q k^T) + alibi + bias. With the dropout factors m,
out = (p m) v; the derivative of a score is

    da = p ((grad_out v^T) m - delta),    delta = sum(grad_out out)

and out and lse count as arguments of their own: what they owe to q, k and v comes back through the
derivative of `attention`. A gradient of lse is taken from delta.

Every sum over pairs goes through `attention_pairs`: a hidden key counts for nothing, also where it
holds NaN.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from .attention_checks import sizes
from .attention_pairs import pair, weigh


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What has no derivative, as the operators take it."""

    lo: Tensor | None
    hi: Tensor | None
    dense: Tensor | None
    alibi: Tensor | None
    seed: Tensor | None
    scale: float | None
    softcap: float
    dropout_p: float

    def visible(self, q: Tensor, k: Tensor) -> Tensor:
        """bool, broadcastable to the scores (..., H, Lq, Lk)."""
        batch, heads, q_len, k_len = sizes(q, k)
        seen = torch.ones((), dtype=torch.bool)
        if self.lo is not None and self.hi is not None:
            keys = torch.arange(k_len, dtype=torch.int32)
            seen = (keys >= self.lo[..., None]) & (keys < self.hi[..., None])
            if self.lo.dim() == 4:  # two runs of keys
                seen = seen[0] | seen[1]
        if self.dense is not None:
            seen = seen & self.dense
        return seen.expand(batch, heads, q_len, k_len).reshape(*q.shape[:-1], k_len)

    def kept(self, q: Tensor, k: Tensor) -> Tensor | float:
        """What dropout multiplies the weights with: 0, or 1 / (1 - p)."""
        if self.dropout_p == 0.0 or self.seed is None:
            return 1.0
        if self.dropout_p == 1.0:
            return 0.0
        kept = torch.ops.tegula.dropout_mask.default(self.seed, self.dropout_p, *sizes(q, k))
        return kept.reshape(*q.shape[:-1], k.shape[-2]).to(compute_dtype(q)) / (1.0 - self.dropout_p)

    def factor(self, q: Tensor) -> float:
        """The scale of the products."""
        if self.scale is not None:
            return self.scale
        return 1.0 / math.sqrt(q.shape[-1]) if q.shape[-1] > 0 else 1.0


def compute_dtype(x: Tensor) -> torch.dtype:
    """float32, or float64 for float64."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class Weights:
    """p (..., H, Lq, Lk) of a call, and the arrays it was made of, per query head."""

    def __init__(self, inputs: Inputs, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, bias: Tensor | None) -> None:
        compute = compute_dtype(q)
        self.key_heads = k.shape[-3]
        self.group = q.shape[-3] // max(self.key_heads, 1)
        self.q = q.to(compute)
        self.k, self.v = (self.spread(x.to(compute)) for x in (k, v))
        self.scale = inputs.factor(q)
        self.seen = inputs.visible(q, k) & (lse != -torch.inf)[..., None]
        if bias is not None:
            self.seen = self.seen & (bias != -torch.inf)
        scores = self.scale * pair(self.q, self.k, self.seen)
        self.slope: Tensor | float = 1.0  # of softcap
        if inputs.softcap > 0.0:
            capped = (scores / inputs.softcap).tanh()
            scores, self.slope = inputs.softcap * capped, 1.0 - capped * capped
        if inputs.alibi is not None:
            q_len, k_len = scores.shape[-2:]
            distance = torch.arange(k_len) - torch.arange(q_len)[:, None] - (k_len - q_len)
            scores = scores + inputs.alibi.to(compute)[:, None, None] * distance
        if bias is not None:
            scores = scores + bias.to(compute)
        self.p = self.where_seen(self.where_seen(scores - lse[..., None]).exp())
        self.kept = inputs.kept(q, k)

    def where_seen(self, x: Tensor) -> Tensor:
        """x (..., H, Lq, Lk) with 0 at hidden pairs, whatever is there."""
        return torch.where(self.seen, x, 0.0)

    def spread(self, x: Tensor) -> Tensor:
        """(..., G, Lk, D) to (..., H, Lk, D)."""
        return x if self.group == 1 else x.repeat_interleave(self.group, -3)

    def gathered(self, grad: Tensor) -> Tensor:
        """(..., H, Lk, D) summed to (..., G, Lk, D)."""
        if self.group == 1:
            return grad
        return grad.unflatten(-3, (self.key_heads, self.group)).sum(-3)


def dense_backward(
    inputs: Inputs,
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    grad_lse: Tensor | None,
    *,
    bias_grad: bool,
    sinks_grad: bool,
) -> tuple[Tensor, ...]:
    """dq, dk, dv, and dbias and dsinks where asked for: the results of `attention_backward`."""
    if q.dim() == 2:
        dq, dk, dv, *more = dense_backward(
            inputs, grad_out[None], q[None], k[None], v[None], out[None], lse[None], bias, sinks,
            None if grad_lse is None else grad_lse[None], bias_grad=bias_grad, sinks_grad=sinks_grad,
        )  # fmt: skip
        return dq.squeeze(0), dk.squeeze(0), dv.squeeze(0), *more
    w = Weights(inputs, q, k, v, lse, bias)
    grad = grad_out.to(w.q.dtype)
    delta = (grad * out.to(w.q.dtype)).sum(-1)
    if grad_lse is not None:
        delta = delta - grad_lse
    dscore = w.p * w.where_seen(pair(grad, w.v, w.seen) * w.kept - delta[..., None])
    dproduct = dscore * w.slope * w.scale
    found = [
        weigh(dproduct, w.k, w.seen).to(q.dtype),
        w.gathered(weigh(dproduct.mT, w.q, w.seen.mT)).to(k.dtype),
        w.gathered(weigh((w.p * w.kept).mT, grad, w.seen.mT)).to(v.dtype),
    ]
    if bias_grad and bias is not None:
        found.append(dscore.sum_to_size(bias.shape).to(bias.dtype))
    if sinks_grad and sinks is not None:
        share = -sink_weights(sinks, lse) * delta
        found.append(share.sum(-1).sum_to_size(sinks.shape).to(sink_dtype(sinks)))
    return tuple(found)


def sink_dtype(sinks: Tensor) -> torch.dtype:
    """The type of the gradient of sinks: theirs, float64 for integers."""
    return sinks.dtype if sinks.is_floating_point() else torch.float64


def sink_weights(sinks: Tensor, lse: Tensor) -> Tensor:
    """(..., H, Lq): the share of the denominator that each row's sink has."""
    empty = lse == -torch.inf
    return torch.where(empty, 0.0, (sinks.to(lse.dtype)[:, None] - torch.where(empty, 0.0, lse)).exp())


def dense_jvp(
    inputs: Inputs, primals: tuple[Tensor | None, ...], tangents: tuple[Tensor | None, ...]
) -> tuple[Tensor, Tensor]:
    """The tangents of out and lse. primals: q, k, v, out, lse, bias, sinks; tangents: of q, k, v, bias, sinks."""
    q, k, v, out, lse, bias, sinks = primals
    tq, tk, tv, tbias, tsinks = tangents
    assert q is not None and k is not None and v is not None and out is not None and lse is not None
    if q.dim() == 2:
        first = [None if x is None else x[None] for x in (q, k, v, out, lse)]
        along = [None if x is None else x[None] for x in (tq, tk, tv)]
        tout, tlse = dense_jvp(inputs, (*first, bias, sinks), (*along, tbias, tsinks))
        return tout.squeeze(0), tlse.squeeze(0)
    w = Weights(inputs, q, k, v, lse, bias)
    compute = w.q.dtype
    products = torch.zeros_like(w.p)
    if tq is not None:
        products = products + pair(tq.to(compute), w.k, w.seen)
    if tk is not None:
        products = products + pair(w.q, w.spread(tk.to(compute)), w.seen)
    tscore = products * w.slope * w.scale
    if tbias is not None:
        tscore = w.where_seen(tscore + tbias.to(compute))
    tlse = (w.p * tscore).sum(-1)
    if tsinks is not None and sinks is not None:
        tlse = tlse + sink_weights(sinks, lse) * tsinks.to(compute)[:, None]
    tout = weigh(w.p * w.where_seen(tscore - tlse[..., None]) * w.kept, w.v, w.seen)
    if tv is not None:
        tout = tout + weigh(w.p * w.kept, w.spread(tv.to(compute)), w.seen)
    return tout.to(out.dtype), tlse.to(lse.dtype)
