"""Runs of keys: what the rows of several masks see together, in the words of `_arrays`.

lo and hi are int32 of rank 3, broadcastable to (B, H, Lq): each row sees the keys [lo, hi). Or of rank 4,
(2, B, H, Lq): it sees [lo[0], hi[0]) and [lo[1], hi[1]), where lo[0] <= lo[1], hi[0] <= hi[1] and
hi[0] <= lo[1]. So [lo[0], hi[1]) without [hi[0], lo[1]) says the same; a row of one run ends both where it
ends. Intersections with single runs keep all of this.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._arrays import NUMPY


def hull(on: Any, lo: Any, hi: Any) -> tuple[Any, Any]:
    """From the first to the last key of each row, rank 3."""
    if lo.ndim == 3:
        return lo, hi
    first, last = lo[0], hi[1]
    # Where the gap reaches an end, that is not the row's.
    return (
        on.where((hi[0] <= first) & (lo[1] > first), lo[1], first),
        on.where((lo[1] >= last) & (hi[0] < last), hi[0], last),
    )


def listed(lo: Any, hi: Any) -> list[tuple[Any, Any]]:
    """The runs one by one, each of rank 3."""
    return [(lo, hi)] if lo.ndim == 3 else [(lo[0], hi[0]), (lo[1], hi[1])]


def visible(on: Any, lo: Any, hi: Any, k_len: int) -> Any:
    """bool (B or 1, H or 1, Lq or 1, Lk): what the runs show."""
    key = on.arange(k_len)
    first, *more = [(key >= first[..., None]) & (key < last[..., None]) for first, last in listed(lo, hi)]
    return first | more[0] if more else first


def joined(on: Any, first: tuple[Any, Any], second: tuple[Any, Any], k_len: int) -> tuple[Any, Any]:
    """The union of two masks of single runs: at most two. Where numbers cannot be read, always two."""
    nowhere, nothing = on.constant(k_len), on.constant(0)
    (lo, hi), (other_lo, other_hi) = (
        (on.where(lo < hi, lo, nowhere), on.where(lo < hi, hi, nothing)) for lo, hi in (first, second)
    )
    before = lo <= other_lo
    begin, end = on.minimum(lo, other_lo), on.maximum(hi, other_hi)
    gap_begin, gap_end = on.where(before, hi, other_hi), on.where(before, other_lo, lo)
    apart = (gap_begin < gap_end) & (gap_end < nowhere)
    if on is NUMPY and not apart.any():
        return begin, end
    return (
        on.stack([begin, on.where(apart, gap_end, end)]),
        on.stack([on.where(apart, gap_begin, end), end]),
    )


def merged(runs: list[tuple[Any, Any]], k_len: int) -> tuple[Any, Any] | None:
    """The union of any number of single runs a row, as arrays; None when some row has more than two."""
    shape = np.broadcast_shapes(*(bound.shape for run in runs for bound in run))
    lo, hi = (np.stack([np.broadcast_to(run[n], shape) for run in runs]) for n in (0, 1))
    seen = lo < hi
    lo, hi = np.where(seen, lo, k_len), np.where(seen, hi, 0)
    order = np.argsort(lo, axis=0, kind="stable")
    lo, reach = np.take_along_axis(lo, order, 0), np.maximum.accumulate(np.take_along_axis(hi, order, 0), axis=0)
    begins = (lo[1:] > reach[:-1]) & (lo[1:] < k_len)  # behind a gap
    count = begins.sum(axis=0)
    if (count > 1).any():
        return None
    end = reach[-1]
    if not count.any():
        return lo[0].astype(np.int32), end.astype(np.int32)
    at = begins.argmax(axis=0)[None]
    gap_begin = np.where(count == 1, np.take_along_axis(reach[:-1], at, 0)[0], end)
    gap_end = np.where(count == 1, np.take_along_axis(lo[1:], at, 0)[0], end)
    return np.stack([lo[0], gap_end]).astype(np.int32), np.stack([gap_begin, end]).astype(np.int32)
