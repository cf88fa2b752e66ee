"""Float64 references for parts of a result, and the error that is right for its precision.

A benchmark of a wrong result is worthless, and a float64 reference of a whole large case takes
longer than the benchmark. So some rows are recomputed, spread over batch, heads and length.

The tolerance is not a chosen number: the same rows are also computed plainly in the precision under
test, and a kernel may err twice as much as that. Few rows can be right by luck, so the roundings
that nobody avoids come on top: of the result, of the scores, and of a sum over the keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from job import Check, eps

ROWS = 48  # per sampled head
BLOCK = 512  # rows whose scores are held at once

# (batch, head, rows) -> bool (rows, Lk), True where the query may see the key
Visible = Callable[[int, int, np.ndarray], np.ndarray]


def plain_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    visible: np.ndarray,
    storage: np.dtype[Any] | None = None,
) -> np.ndarray:
    """softmax(q k^T / sqrt(D)) v over the visible keys, for some rows of one head.

    q (R, D), k (Lk, D), v (Lk, Dv), visible (R, Lk) -> (R, Dv) float64. With `storage`, as a plain
    kernel of that type computes it: float32 arithmetic, weights and result rounded to the type.
    """
    real = np.float64 if storage is None else np.float32
    wide_q, wide_k, wide_v = (np.asarray(a).astype(real) for a in (q, k, v))
    scores = np.where(visible, scaled_scores(wide_q, wide_k), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1, keepdims=True)
    if storage is not None:
        weights = weights.astype(storage).astype(real)
    out = weights @ wide_v / total
    rounded: np.ndarray = out if storage is None else out.astype(storage)
    return rounded.astype(np.float64)


def scaled_scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """q (R, D), k (Lk, D) -> q k^T / sqrt(D) (R, Lk)."""
    scores: np.ndarray = q @ k.T * q.dtype.type(1 / math.sqrt(q.shape[-1]))
    return scores


def sampled(count: int, most: int, rng: np.random.Generator) -> np.ndarray:
    """At most `most` ascending numbers below `count`: both ends, the rest at random."""
    if count <= most:
        return np.arange(count)
    third = most // 3
    middle = rng.choice(np.arange(third, count - third), most - 2 * third, replace=False)
    return np.concatenate([np.arange(third), np.sort(middle), np.arange(count - third, count)])


def attention_check(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    visible: Visible,
    lengths: np.ndarray | None = None,
) -> Callable[[np.ndarray], Check]:
    """A check for results (B, H, Lq, Dv) of q (B, H, Lq, D), k (B, G, Lk, D), v (B, G, Lk, Dv).

    `lengths` (B,) says how many rows of each batch entry are real; others are not looked at.
    """
    batch, heads, q_len, _ = q.shape
    group = heads // k.shape[1]
    rng = np.random.default_rng(7)
    picked = []
    tolerance = 0.0
    corners = {(0, 0), (batch // 2, heads // 2), (batch - 1, heads - 1)}
    for b, h in sorted(corners):
        rows = sampled(q_len if lengths is None else int(lengths[b]), ROWS, rng)
        head = (q[b, h, rows], k[b, h // group], v[b, h // group], visible(b, h, rows))
        exact = plain_attention(*head)
        twin = plain_attention(*head, storage=q.dtype)
        picked.append((b, h, rows, exact))
        scores = scaled_scores(head[0].astype(np.float32), head[1].astype(np.float32))
        steps = float(np.abs(scores).max()) + math.sqrt(k.shape[-2])  # of float32, a random walk
        rounding = eps(q.dtype) / 2 + eps(np.dtype(np.float32)) * steps
        roundings = rounding * float(np.abs(exact).max())
        tolerance = max(tolerance, 2 * float(np.abs(twin - exact).max()) + roundings)

    def check(out: np.ndarray) -> Check:
        if not all_written(out, lengths):
            return Check(math.nan, tolerance)
        error = 0.0
        for b, h, rows, exact in picked:
            error = max(error, float(np.abs(out[b, h, rows].astype(np.float64) - exact).max()))
        return Check(error, tolerance)

    return check


def plain_gradients(
    head: Sequence[np.ndarray],
    visible: Callable[[np.ndarray], np.ndarray],
    sample: np.ndarray,
    storage: np.dtype[Any] | None = None,
) -> np.ndarray:
    """Gradients of some rows of one head: grad_out, q, k, v (L, D) each -> dq, dk, dv (3, S, D) float64.

    `visible` turns query numbers (R,) into bool (R, L); `sample` (S,) are the rows. With `storage`, as a
    plain kernel of that type computes them: float32 arithmetic; weights, their gradients and results rounded.
    """
    real = np.float64 if storage is None else np.float32

    def stored(a: np.ndarray) -> np.ndarray:
        return a if storage is None else a.astype(storage).astype(real)

    grad_out, q, k, v = (np.asarray(a).astype(real) for a in head)
    scale = real(1 / math.sqrt(q.shape[-1]))
    dq, dk, dv = (np.zeros((len(sample), a.shape[-1]), real) for a in (q, k, v))
    for start in range(0, len(q), BLOCK):  # nobody holds (L, L) numbers
        rows = np.arange(start, min(start + BLOCK, len(q)))
        scores = np.where(visible(rows), scaled_scores(q[rows], k), -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        delta = (grad_out[rows] * stored(weights @ v)).sum(axis=-1, keepdims=True)
        of_scores = stored(weights * (grad_out[rows] @ v.T - delta))
        dk += of_scores[:, sample].T @ q[rows] * scale
        dv += stored(weights[:, sample]).T @ grad_out[rows]
        mine = np.isin(sample, rows)
        dq[mine] = of_scores[sample[mine] - start] @ k * scale
    return np.stack([stored(a) for a in (dq, dk, dv)]).astype(np.float64)


def gradient_check(
    grad_out: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, visible: Callable[[np.ndarray], np.ndarray]
) -> Callable[[np.ndarray], Check]:
    """A check for dq, dk and dv in one array (3, B, H, L, D), of inputs (B, H, L, D)."""
    batch, heads, length, _ = q.shape
    rng = np.random.default_rng(7)
    picked, tolerance = [], np.zeros(3)
    corners = {(0, 0), (batch // 2, heads // 2), (batch - 1, heads - 1)}
    for b, h in sorted(corners):
        sample = sampled(length, ROWS, rng)
        head = [a[b, h] for a in (grad_out, q, k, v)]
        exact = plain_gradients(head, visible, sample)
        twin = plain_gradients(head, visible, sample, storage=q.dtype)
        picked.append((b, h, sample, exact))
        steps = math.sqrt(length)  # of float32, a random walk
        rounding = eps(q.dtype) / 2 + eps(np.dtype(np.float32)) * steps
        allowed = 2 * np.abs(twin - exact).max(axis=(1, 2)) + rounding * np.abs(exact).max(axis=(1, 2))
        tolerance = np.maximum(tolerance, allowed)

    def check(grads: np.ndarray) -> Check:
        """The error of each gradient in units of what is right for it."""
        if not all_written(grads, None):
            return Check(math.nan, 1.0)
        error = 0.0
        for b, h, sample, exact in picked:
            away = np.abs(grads[:, b, h, sample].astype(np.float64) - exact).max(axis=(1, 2))
            error = max(error, float((away / tolerance).max()))
        return Check(error, 1.0)

    return check


def all_written(out: np.ndarray, lengths: np.ndarray | None) -> bool:
    """Outputs are NaN before the call, so a NaN is an element that nobody computed."""
    if lengths is None:
        return bool(np.isfinite(out).all())
    return all(np.isfinite(out[b, :, :n]).all() for b, n in enumerate(lengths))


def sinusoids(positions: np.ndarray, dim: int) -> np.ndarray:
    """(...,) -> (..., dim) float64: sin, cos, sin, cos ... of position * 10000^(-2i/dim)."""
    frequencies = 10000.0 ** (-np.arange(0, dim, 2) / dim)
    phase = np.asarray(positions, np.float64)[..., None] * frequencies
    pairs = np.stack([np.sin(phase), np.cos(phase)], axis=-1)
    return pairs.reshape(*np.shape(positions), -1)[..., :dim]


def embedding_check(
    ids: np.ndarray, weight: np.ndarray, scale: float, kept: np.ndarray | None = None, dropout_p: float = 0.0
) -> Callable[[np.ndarray], Check]:
    """A check for results (B, L, D) of weight[ids] * scale + sinusoidal positions 0..L-1.

    `kept` (B, L, D) says what dropout leaves; what is left is divided by 1 - dropout_p.
    """
    rng = np.random.default_rng(7)
    b = rng.integers(0, ids.shape[0], 512)
    i = rng.integers(0, ids.shape[1], 512)
    rows, table = weight[ids[b, i]], sinusoids(i, weight.shape[1])
    exact = rows.astype(np.float64) * scale + table
    plain = rows.astype(np.float32) * np.float32(scale) + table.astype(np.float32)
    if kept is not None:
        factor = np.where(kept[b, i], 1 / (1 - dropout_p), 0.0)
        exact, plain = exact * factor, plain * factor.astype(np.float32)
    twin = plain.astype(weight.dtype).astype(np.float64)
    tolerance = 2 * float(np.abs(twin - exact).max())
    tolerance += eps(weight.dtype) / 2 * float(np.abs(exact).max())

    def check(out: np.ndarray) -> Check:
        if not all_written(out, None):
            return Check(math.nan, tolerance)
        return Check(float(np.abs(out[b, i].astype(np.float64) - exact).max()), tolerance)

    return check


def embedding_gradient_check(ids: np.ndarray, grad: np.ndarray, rows: int) -> Callable[[np.ndarray], Check]:
    """A check for the table's gradient (rows, D) of ids (B, L) and grad (B, L, D)."""
    sample = sampled(rows, 512, np.random.default_rng(7))
    flat, places = grad.reshape(-1, grad.shape[-1]), ids.ravel()
    exact = np.zeros((len(sample), grad.shape[-1]))
    plain = np.zeros(exact.shape, np.float32)
    for i, row in enumerate(sample):
        for place in np.flatnonzero(places == row):
            exact[i] += flat[place].astype(np.float64)
            plain[i] += flat[place].astype(np.float32)
    twin = plain.astype(grad.dtype).astype(np.float64)
    tolerance = 2 * float(np.abs(twin - exact).max()) + eps(grad.dtype) / 2 * float(np.abs(exact).max())

    def check(table: np.ndarray) -> Check:
        if not all_written(table, None):
            return Check(math.nan, tolerance)
        return Check(float(np.abs(table[sample].astype(np.float64) - exact).max()), tolerance)

    return check


def equality_check(expected: np.ndarray) -> Callable[[np.ndarray], Check]:
    """A check for results that have no rounding."""

    def check(out: np.ndarray) -> Check:
        same = out.shape == expected.shape and np.array_equal(out, expected)
        return Check(0.0 if same else math.inf, 0.0)

    return check


def closeness_check(exact: np.ndarray, tolerance: float) -> Callable[[np.ndarray], Check]:
    """A check against a float64 array with a known error bound."""

    def check(out: np.ndarray) -> Check:
        return Check(float(np.abs(out.astype(np.float64) - exact).max()), tolerance)

    return check
