"""The slow, readable twin of the gradients of attention: the specification the backward kernels are held to.

It goes on where `reference.py` ends, by the same rules: one query row at a time, over the keys that this
row sees and no others. A hidden key influences nothing and gets nothing; a row without keys is passed
over, whatever it and its `grad_out` hold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import reference
from reference import summed


class Gradients(NamedTuple):
    dq: np.ndarray  # each in the shape of what it is the gradient of
    dk: np.ndarray
    dv: np.ndarray
    dbias: np.ndarray | None  # None without bias
    dsinks: np.ndarray | None  # None without sinks
    dscores: np.ndarray  # (B, H, Lq, Lk): what dbias is the sum of


def attention_backward(
    grad_out,
    q,
    k,
    v,
    out,
    lse,
    *,
    visible=None,
    bias=None,
    scale=None,
    softcap=None,
    alibi=None,
    sinks=None,
    keep=None,
    dropout_p=0.0,
    layout="bhld",
    arithmetic=np.float64,
    storage=np.float64,
):
    """The gradients of sum(grad_out * out), row by row.

    Arguments are those of `reference.attention`, with what it returned for them: `out` and `lse`. With the
    scores s and what dropout multiplies a weight by, m = 0 or 1 / (1 - dropout_p), a row does

        p       = exp(s - lse)
        dv[j]  += m p grad_out
        ds      = p (m (grad_out . v[j]) - delta),  delta = grad_out . out
        dbias  += ds
        dq     += (ds/dqk) k[j],  dk[j] += (ds/dqk) q
        dsinks -= exp(sink - lse) delta

    where ds/dqk is ds times the slope of the score: scale, and what the soft cap leaves of it. Numbers are
    computed in `arithmetic`; p and ds, before they meet a row, and dq, dk, dv are stored in `storage`.
    """
    rows = reference.Rows(q, k, v, visible, bias, scale, softcap, alibi, keep, dropout_p, layout, arithmetic)
    grad_out_rows, out_rows = (reference.heads_first(x, layout).astype(arithmetic) for x in (grad_out, out))
    lse = np.reshape(lse, rows.pairs[:3]).astype(arithmetic)

    dq, dk, dv = (np.zeros(x.shape, arithmetic) for x in (rows.q, rows.k, rows.v))
    dscores = np.zeros(rows.pairs, arithmetic)
    dsinks = np.zeros(rows.pairs[1], arithmetic)
    for row in np.ndindex(rows.pairs[:3]):
        keys, scores, slope = rows.scores(row)
        if keys.size == 0:
            continue
        head, grad = rows.kv_head(row), grad_out_rows[row]
        delta = summed((grad * out_rows[row])[::-1])  # another order than below: they need not cancel out to the bit
        weights, factor = np.exp(scores - lse[row]), rows.factor(row, keys)

        dropped = (factor * weights).astype(storage).astype(arithmetic)
        dv[head][keys] += dropped[:, None] * grad

        of_weights = factor * summed(rows.v[head][keys].T * grad[:, None])
        dscores[row][keys] = weights * (of_weights - delta)
        of_products = (dscores[row][keys] * slope).astype(storage).astype(arithmetic)
        dq[row] = summed(of_products[:, None] * rows.k[head][keys])
        dk[head][keys] += of_products[:, None] * rows.q[row]
        if sinks is not None:
            dsinks[row[1]] -= np.exp(arithmetic(sinks[row[1]]) - lse[row]) * delta

    dq, dk, dv = (
        restored(grad, np.shape(x), layout).astype(storage) for grad, x in zip((dq, dk, dv), (q, k, v), strict=True)
    )
    dbias = None if bias is None else summed_to(dscores, np.shape(bias))
    return Gradients(dq, dk, dv, dbias, None if sinks is None else dsinks, dscores)


def restored(x, shape, layout):
    """(B, H, L, D) -> the shape and layout that an argument came in; the inverse of `heads_first`."""
    if len(shape) > 2 and layout != "bhld":
        x = x.swapaxes(-3, -2)
    return x.reshape(shape)


def summed_to(x, shape):
    """The sum of `x` over every axis along which an array of `shape` was broadcast to x's shape."""
    ours = (1,) * (x.ndim - len(shape)) + tuple(shape)
    for axis, (many, n) in enumerate(zip(x.shape, ours, strict=True)):
        if many != n:
            x = np.expand_dims(summed(np.moveaxis(x, axis, 0)), axis)
    return x.reshape(shape)
