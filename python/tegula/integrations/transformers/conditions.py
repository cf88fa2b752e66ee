"""Conditions on a query and a key, and the runs of keys that fulfil them.

`Condition.within(lo, hi)` restricts runs [lo, hi) of keys, one for each batch entry and query, to the
keys that fulfil the condition. It raises `Unstructured` where these are not one run. Everything is
O(L log L): a condition holds one number per key and one per query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]  # (B or 1, Lq)


class Unstructured(Exception):
    """The keys that a query sees are not one run, or cannot be told without a matrix."""


class Condition:
    def within(self, lo: Rows, hi: Rows, k_len: int) -> tuple[Rows, Rows]:
        raise NotImplementedError

    def solve(self, q_len: int, k_len: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """All keys that each query sees: lo and hi, int32 (B or 1, 1, Lq)."""
        lo, hi = self.within(np.zeros((1, q_len), np.int64), np.full((1, q_len), k_len), k_len)
        shape = np.broadcast_shapes(lo.shape, hi.shape, (1, q_len))
        seen = lo < hi
        first, last = (np.broadcast_to(np.where(seen, x, 0), shape)[:, None].astype(np.int32) for x in (lo, hi))
        return first, last


class Compare(Condition):
    """keys[j] <= queries[i], or >=. Integer arrays (B or 1, Lk or 1) and (B or 1, Lq or 1)."""

    def __init__(self, keys: Rows, sign: str, queries: Rows) -> None:
        self.keys, self.sign, self.queries = keys, sign, queries

    def within(self, lo: Rows, hi: Rows, k_len: int) -> tuple[Rows, Rows]:
        keys = np.broadcast_to(self.keys, (self.keys.shape[0], k_len))
        steps = np.diff(keys)
        if (steps == 1).all():  # the commonest: the places themselves
            last = self.queries - keys[:, :1] + (self.sign == "<=")
            bound = np.clip(last, 0, k_len)
            return self._cut(lo, hi, bound)
        if (steps >= 0).all():
            bound = places(keys, self.queries, "right" if self.sign == "<=" else "left")
            return self._cut(lo, hi, bound)
        return self._by_pieces(keys, steps, lo, hi)

    def _cut(self, lo: Rows, hi: Rows, bound: Rows) -> tuple[Rows, Rows]:
        """Runs up to the bounds, or from them on."""
        return (lo, np.minimum(hi, bound)) if self.sign == "<=" else (np.maximum(lo, bound), hi)

    def _by_pieces(self, keys: Rows, steps: Rows, lo: Rows, hi: Rows) -> tuple[Rows, Rows]:
        """Numbers that fall now and then, as positions that start again do: runs inside one piece are ordered."""
        batch = max(len(keys), len(lo), len(hi), len(self.queries))
        keys, lo, hi, queries = (
            np.broadcast_to(x, (batch, x.shape[1] if x is keys else max(lo.shape[1], hi.shape[1])))
            for x in (keys, lo, hi, self.queries)
        )
        piece = np.zeros(keys.shape, np.int64)
        piece[:, 1:] = np.cumsum(np.broadcast_to(steps, (batch, steps.shape[1])) < 0, axis=1)
        seen = lo < hi
        first = np.take_along_axis(piece, np.where(seen, lo, 0), 1)
        last = np.take_along_axis(piece, np.where(seen, hi - 1, 0), 1)
        if (first != last)[seen].any():
            raise Unstructured("numbers of keys that fall inside a run")
        # Pieces one above the other make one ordered list.
        least, most = int(keys.min()), int(keys.max())
        height = most - least + 3
        ordered = piece * height + (keys - least + 1)
        wanted = first * height + np.clip(queries - least + 1, 0, height - 1)
        bound = places(ordered, wanted, "right" if self.sign == "<=" else "left")
        return self._cut(lo, hi, bound)


def places(ordered: Rows, wanted: Rows, side: Any) -> Rows:
    """`numpy.searchsorted`, row by row."""
    if len(ordered) == 1:
        return np.searchsorted(ordered[0], wanted, side)
    wanted = np.broadcast_to(wanted, (len(ordered), wanted.shape[1]))
    return np.stack([np.searchsorted(a, v, side) for a, v in zip(ordered, wanted, strict=True)])


class Keys(Condition):
    """Some keys are visible, to every query: a bool array (B or 1, Lk or 1)."""

    def __init__(self, keep: npt.NDArray[np.bool_]) -> None:
        self.keep = keep

    def within(self, lo: Rows, hi: Rows, k_len: int) -> tuple[Rows, Rows]:
        if self.keep.all():
            return lo, hi
        batch = max(len(self.keep), len(lo), len(hi))
        keep = np.broadcast_to(self.keep, (batch, k_len))
        lo, hi = (np.broadcast_to(x, (batch, x.shape[1])) for x in (lo, hi))
        edge = k_len + 1
        count = np.zeros((batch, edge), np.int64)
        count[:, 1:] = np.cumsum(keep, axis=1)
        place = np.arange(k_len)
        following = np.full((batch, edge), k_len)  # the first visible key from here on
        following[:, :k_len] = np.minimum.accumulate(np.where(keep, place, k_len)[:, ::-1], axis=1)[:, ::-1]
        before = np.zeros((batch, edge), np.int64)  # one behind the last visible key before here
        before[:, 1:] = np.maximum.accumulate(np.where(keep, place + 1, 0), axis=1)
        first = np.take_along_axis(following, np.minimum(lo, k_len), 1)
        last = np.take_along_axis(before, np.maximum(hi, 0), 1)
        seen = (first < last) & (lo < hi)
        first, last = np.where(seen, first, 0), np.where(seen, last, 0)
        visible = np.take_along_axis(count, last, 1) - np.take_along_axis(count, first, 1)
        if (visible != last - first).any():
            raise Unstructured("hidden keys between visible ones")
        return first, last


class Queries(Condition):
    """Some queries see keys: a bool array (B or 1, Lq or 1)."""

    def __init__(self, keep: npt.NDArray[np.bool_]) -> None:
        self.keep = keep

    def within(self, lo: Rows, hi: Rows, k_len: int) -> tuple[Rows, Rows]:
        return (lo, hi) if self.keep.all() else (lo, np.where(self.keep, hi, 0))


class AllOf(Condition):
    """What fulfils every one of several conditions."""

    def __init__(self, parts: Sequence[Condition]) -> None:
        self.parts: list[Condition] = []
        for part in parts:
            self.parts.extend(part.parts if isinstance(part, AllOf) else [part])

    def within(self, lo: Rows, hi: Rows, k_len: int) -> tuple[Rows, Rows]:
        # Positions that start again with each document are ordered only once the documents are apart:
        # what fails is tried again after the others.
        waiting = self.parts
        while waiting:
            failed = []
            for part in waiting:
                try:
                    lo, hi = part.within(lo, hi, k_len)
                except Unstructured as error:
                    failed.append(part)
                    reason = error
            if len(failed) == len(waiting):
                raise reason
            waiting = failed
        return lo, hi


class AnyOf(Condition):
    """What fulfils one of several conditions, where that is one run."""

    def __init__(self, parts: Sequence[Condition]) -> None:
        self.parts = parts

    def within(self, lo: Rows, hi: Rows, k_len: int) -> tuple[Rows, Rows]:
        first, last = self.parts[0].within(lo, hi, k_len)
        for part in self.parts[1:]:
            other_first, other_last = part.within(lo, hi, k_len)
            none, other_none = first >= last, other_first >= other_last
            apart = (np.maximum(first, other_first) > np.minimum(last, other_last)) & ~none & ~other_none
            if apart.any():
                raise Unstructured("two runs with a gap between them")
            joined = np.minimum(first, other_first), np.maximum(last, other_last)
            first, last = (
                np.where(none, theirs, np.where(other_none, ours, both))
                for ours, theirs, both in zip((first, last), (other_first, other_last), joined, strict=True)
            )
        return first, last
