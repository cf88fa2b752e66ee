"""How far a result may be from the float64 twin: twice as far as a plain computation of its own type is.

The plain computation is the same twin run in the type at hand: float32 arithmetic in float32, and for
16-bit types float32 arithmetic whose weights and results are rounded to 16 bits. Its largest error over
the whole array is what honest rounding costs on these very numbers.

One run of it can be lucky, where a single row decides (two keys that nearly tie at a score of 10,000) or
where there are few numbers at all. So it runs several times, each time summing the head size in another
order: no order is righter than the others, and the worst of them counts. On top comes one unit of
rounding at the size of the result.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import gradients
import numpy as np
import reference


class Twins(NamedTuple):
    """The exact answer, and the answers of plain computations in the type at hand."""

    exact: reference.Attention
    plain: tuple[reference.Attention, ...]
    score_size: float  # largest sum of |q| |k| * |scale|: what the roundings of a score are relative to


def arithmetic_of(dtype):
    """The type that sums and softmax are computed in."""
    return np.float64 if dtype == np.float64 else np.float32


def epsilon(dtype):
    """Distance from 1 to the next number; half of it is the largest relative error of a rounding."""
    bits = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[np.dtype(dtype).name]
    return 2.0**-bits


def attention_twins(q, k, v, *, orders=8, **options):
    """`reference.attention` exactly, and plainly in q's type with the head size summed in `orders` ways.

    The exact answer to float64 inputs needs more than float64.
    """
    exact = reference.attention(q, k, v, **options, **exactly(q.dtype))
    options |= plainly(q.dtype)
    ways = orders_of(q.shape[-1], orders)
    plain = (reference.attention(q[..., way], k[..., way], v, **options) for way in ways)
    return Twins(exact, tuple(plain), score_size(q, k, options))


def exactly(dtype):
    """The types of the exact answer to inputs of `dtype`."""
    exact_type = np.longdouble if dtype == np.float64 else np.float64
    return {"arithmetic": exact_type, "storage": exact_type}


def plainly(dtype):
    """The types of a plain computation in `dtype`."""
    return {"arithmetic": arithmetic_of(dtype), "storage": np.dtype(dtype).type}


def orders_of(size, count):
    """Orders in which an axis of `size` can be summed."""
    forward, rng = np.arange(size), np.random.default_rng(0)
    return [forward, forward[::-1], *(rng.permutation(forward) for _ in range(count - 2))][: 1 if size < 2 else count]


def score_size(q, k, options):
    """The largest score that the sizes of q and k allow."""
    layout, scale = options.get("layout", "bhld"), options.get("scale")
    if 0 in q.shape or 0 in k.shape:
        return 0.0
    if scale is None:
        scale = q.shape[-1] ** -0.5
    sizes = (np.abs(np.asarray(x).astype(np.float64)) for x in (q, k))
    q, k = (reference.heads_first(x, layout) for x in sizes)
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    return float(np.max(q @ k.swapaxes(-1, -2))) * abs(scale)


def assert_close(got, exact, plain, name="result", unit=0.0):
    """`got` is as near to `exact` as `plain` is, times two; infinities and NaN stand where they should.

    `plain` is one array or several. `unit` is a size below which rounding does not shrink any more.
    """
    plains = [plain] if isinstance(plain, np.ndarray) else plain
    assert got.shape == exact.shape, f"{name}: shape {got.shape}, expected {exact.shape}"
    assert got.dtype == plains[0].dtype, f"{name}: dtype {got.dtype}, expected {plains[0].dtype}"
    wide, plains = np.asarray(got).astype(exact.dtype), [x.astype(exact.dtype) for x in plains]
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(wide[~finite], exact[~finite], err_msg=f"{name}: not finite")
    if not finite.any():
        return
    allowed = 2 * max(np.max(np.abs(x[finite] - exact[finite])) for x in plains)
    allowed += epsilon(got.dtype) * max(unit, np.max(np.abs(exact[finite])))
    error = np.zeros(exact.shape)
    error[finite] = np.abs(wide[finite] - exact[finite])
    worst = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
    assert error[worst] <= allowed, (
        f"{name}{list(map(int, worst))} is {wide[worst]:.9g}, expected {exact[worst]:.9g}, "
        f"off by {error[worst]:.3g}, allowed {allowed:.3g}"
    )


def assert_attention_close(out, lse, weights, twins):
    """All three results against the twins; one that was not asked for is None.

    An error of the log-sum-exp is a relative error of every weight, so its unit is at least 1; and where one
    score makes it, that score's own size.
    """
    lse_unit = max(1.0, twins.score_size)
    for name, got, unit in (("out", out, 0.0), ("lse", lse, lse_unit), ("weights", weights, 0.0)):
        if got is not None:
            plain = [getattr(answer, name) for answer in twins.plain]
            assert_close(got, getattr(twins.exact, name), plain, name, unit)


# ---------------------------------------------------------------------------------------------------
# Gradients


class GradientTwins(NamedTuple):
    """The exact gradients, and those of plain computations in the type at hand."""

    exact: gradients.Gradients
    plain: tuple[gradients.Gradients, ...]
    walks: dict[str, float]  # by gradient: how far the roundings of its terms walk, in roundings


def gradient_twins(grad_out, q, k, v, *, orders=4, **options):
    """`gradients.attention_backward` exactly, and `orders` times plainly, each time summed in other orders.

    A plain computation starts from `out` and `lse` of its own plain forward. These may be off by a rounding
    in either direction without being wrong, so they are moved by one: where a row sees a single key, say,
    the terms of its gradient cancel out exactly, and nothing else would show what rounding costs there.
    """
    forward = reference.attention(q, k, v, **options, **exactly(q.dtype))
    exact = gradients.attention_backward(grad_out, q, k, v, *forward[:2], **options, **exactly(q.dtype))
    walks = random_walks(grad_out, q, k, forward.weights, exact, options)
    options |= plainly(q.dtype)
    lse_unit = max(1.0, score_size(q, k, options))
    plain, rng = [], np.random.default_rng(0)
    ways, value_ways = (itertools.cycle(orders_of(x.shape[-1], orders)) for x in (q, v))
    for way, value_way in itertools.islice(zip(ways, value_ways, strict=False), orders):
        arrays = q[..., way], k[..., way], v[..., value_way]
        out, lse, _ = reference.attention(*arrays, **options)
        out, lse = moved_by_a_rounding(out, rng), moved_by_a_rounding(lse, rng, unit=lse_unit)
        answer = gradients.attention_backward(grad_out[..., value_way], *arrays, out, lse, **options)
        back, value_back = np.argsort(way), np.argsort(value_way)
        dq, dk, dv = answer.dq[..., back], answer.dk[..., back], answer.dv[..., value_back]
        plain.append(answer._replace(dq=dq, dk=dk, dv=dv))
    return GradientTwins(exact, tuple(plain), walks)


def random_walks(grad_out, q, k, weights, exact, options):
    """The root of the sum of the squares of the terms, the largest of each gradient.

    Every term is rounded in either direction, so their sum is off by that many roundings. Where terms cancel
    out this is more than the sum itself; a few numbers of a plain computation can be lucky then.
    """
    layout, scale = options.get("layout", "bhld"), options.get("scale")
    scale = q.shape[-1] ** -0.5 if scale is None and q.shape[-1] else scale or 0.0
    wide = [reference.heads_first(np.asarray(x).astype(np.float64), layout) for x in (grad_out, q, k)]
    grad_out, q, k = (x**2 for x in wide)
    dscores = exact.dscores.astype(np.float64)
    weights, of_scores = weights.reshape(dscores.shape).astype(np.float64) ** 2, dscores**2
    batch, heads, _, _ = dscores.shape
    groups = batch, k.shape[1], heads // max(k.shape[1], 1)

    def summed_by_group(x):
        return x.reshape(*groups, *x.shape[2:]).sum(2)

    squares = {
        "dq": scale**2 * (of_scores @ np.repeat(k, groups[2], axis=1)),
        "dk": scale**2 * summed_by_group(of_scores.swapaxes(-1, -2) @ q),
        "dv": summed_by_group(weights.swapaxes(-1, -2) @ grad_out),
        "dsinks": (dscores.sum(-1) ** 2).sum((0, 2)),  # what a row's scores get is taken from its sink
    }
    if exact.dbias is not None:
        squares["dbias"] = gradients.summed_to(of_scores, exact.dbias.shape)
    return {name: float(np.sqrt(np.max(x, initial=0.0))) for name, x in squares.items()}


def exact_gradients(grad_out, q, k, v, **options):
    """The gradients of the exact forward."""
    options |= exactly(q.dtype)
    out, lse, _ = reference.attention(q, k, v, **options)
    return gradients.attention_backward(grad_out, q, k, v, out, lse, **options)


def moved_by_a_rounding(x, rng, unit=0.0):
    """Every number a rounding up, down, or where it was."""
    wide = x.astype(arithmetic_of(x.dtype))
    steps = epsilon(wide.dtype) * rng.integers(-1, 2, x.shape).astype(wide.dtype)
    with np.errstate(invalid="ignore"):
        moved = wide + steps * np.maximum(np.abs(wide), wide.dtype.type(unit))
    return np.where(np.isfinite(wide), moved, wide).astype(x.dtype)


def assert_gradients_close(got, twins, options):
    """What attention_backward returned against the twins; `options` are those of the call.

    The gradients of biases and sinks come in types of their own; the roundings of their terms are still those
    of q's type, which `out` was rounded to.
    """
    dq, dk, dv, dbias, dsinks, _ = twins.exact
    expected = {"dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsinks": dsinks}
    expected = {name: x for name, x in expected.items() if x is not None}
    types = {"dbias": getattr(options.get("bias"), "dtype", None), "dsinks": got[-1].dtype}
    assert len(got) == len(expected), f"{len(got)} gradients, expected {list(expected)}"
    for (name, exact), x in zip(expected.items(), got, strict=True):
        plain = [getattr(answer, name) for answer in twins.plain]
        plain = [y.astype(types.get(name, y.dtype)) for y in plain]
        unit = twins.walks[name] * epsilon(got[0].dtype) / epsilon(x.dtype)
        assert_close(x, exact, plain, name, unit)
