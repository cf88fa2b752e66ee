"""The gradient of the log-sum-exp: a loss may depend on it, alone or beside the output."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import tegula as tg

SHAPE = (2, 2, 9, 8)


def drawn(dtype=np.float64):
    rng = np.random.default_rng(0)
    q, k, v, grad_out = (rng.standard_normal(SHAPE).astype(dtype) for _ in range(4))
    return q, k, v, grad_out, rng.standard_normal(SHAPE[:3]), rng.standard_normal(SHAPE[1])


def slope(loss, x, step=1e-6):
    """Central differences of a loss with respect to every entry of x."""
    found = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        high, low = x.copy(), x.copy()
        high[at] += step
        low[at] -= step
        found[at] = (loss(high) - loss(low)) / (2 * step)
    return found


def twin_loss(grad_out, grad_lse, visible):
    """The number whose gradients are asked for; rows that see nothing have no part in it."""

    def loss(q, k, v, sinks):
        found = reference.attention(q, k, v, visible=visible, sinks=sinks)
        lse = np.where(np.isneginf(found.lse), 0.0, found.lse)
        return float((found.out * grad_out).sum() + (lse * grad_lse).sum())

    return loss


@pytest.mark.parametrize("with_out", [True, False], ids=["out and lse", "lse alone"])
@pytest.mark.parametrize("with_sinks", [True, False], ids=["sinks", "no sinks"])
def test_finite_differences(with_out, with_sinks):
    q, k, v, grad_out, grad_lse, sinks = drawn()
    grad_out = grad_out if with_out else np.zeros_like(grad_out)
    sinks = sinks if with_sinks else None
    mask = tg.masks.causal("top_left") & tg.masks.padding([6, 0])
    out, lse = tg.attention(q, k, v, mask=mask, sinks=sinks, return_lse=True)
    found = tg.attention_backward(grad_out, q, k, v, out, lse, mask=mask, sinks=sinks, grad_lse=grad_lse)
    loss = twin_loss(grad_out, grad_lse, mask.dense(9, 9))
    wanted = [
        slope(lambda x: loss(x, k, v, sinks), q),
        slope(lambda x: loss(q, x, v, sinks), k),
        slope(lambda x: loss(q, k, x, sinks), v),
    ]
    if with_sinks:
        wanted.append(slope(lambda x: loss(q, k, v, x), sinks))
    for gradient, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(gradient, expected, atol=1e-7)


def test_large_gradients_survive_half_precision():
    """grad_lse is float32 whatever q is, and never rounded to 16 bits."""
    q, k, v, _, grad_lse, _ = drawn(np.float16)
    large = (1e6 * grad_lse).astype(np.float32)
    k = (k * 1e-3).astype(np.float16)
    out, lse = tg.attention(q, k, v, return_lse=True)
    dq, _, _ = tg.attention_backward(np.zeros_like(out), q, k, v, out, lse, grad_lse=large)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    out, lse = tg.attention(*wide, return_lse=True)
    wanted, _, _ = tg.attention_backward(np.zeros_like(out), *wide, out, lse, grad_lse=large.astype(np.float64))
    np.testing.assert_allclose(dq, wanted, rtol=2e-3, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.isa_once
def test_wrong_arrays_are_named():
    q, k, v, grad_out, grad_lse, _ = drawn()
    out, lse = tg.attention(q, k, v, return_lse=True)
    with pytest.raises(ValueError, match="grad_lse has shape"):
        tg.attention_backward(grad_out, q, k, v, out, lse, grad_lse=grad_lse[:1])
    with pytest.raises(TypeError, match="grad_lse has dtype float32"):
        tg.attention_backward(grad_out, q, k, v, out, lse, grad_lse=grad_lse.astype(np.float32))
