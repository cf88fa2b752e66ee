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

from typing import NamedTuple

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
    exact_type = np.longdouble if q.dtype == np.float64 else np.float64
    exact = reference.attention(q, k, v, **options, arithmetic=exact_type, storage=exact_type)
    options |= {"arithmetic": arithmetic_of(q.dtype), "storage": q.dtype.type}
    forward, rng = np.arange(q.shape[-1]), np.random.default_rng(0)
    ways = [forward, forward[::-1], *(rng.permutation(forward) for _ in range(orders - 2))]
    if q.shape[-1] < 2:
        del ways[1:]
    plain = (reference.attention(q[..., way], k[..., way], v, **options) for way in ways)
    return Twins(exact, tuple(plain), score_size(q, k, options))


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
