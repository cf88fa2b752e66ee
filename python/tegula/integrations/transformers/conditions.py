"""Conditions on a query and a key, and the runs of keys that fulfil them.

`Condition.within(lo, hi)` restricts runs [lo, hi) of keys, one for each batch entry and query, to the
keys that fulfil the condition: they are the union of the runs that it returns. It raises `Unstructured`
where they are not a few runs. Everything is O(L log L): a condition holds one number per key and one per
query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...masks._runs import merged

Rows = npt.NDArray[np.int64]  # (B or 1, Lq)
Runs: TypeAlias = "list[tuple[Rows, Rows]]"


class Unstructured(Exception):
    """The keys that a query sees are more than two runs, or cannot be told without a matrix."""


class Condition:
    def within(self, lo: Rows, hi: Rows, k_len: int) -> Runs:
        raise NotImplementedError

    def solve(self, q_len: int, k_len: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """All keys that each query sees: lo and hi, int32 (B or 1, 1, Lq), or (2, B or 1, 1, Lq) for two runs."""
        runs = self.within(np.zeros((1, q_len), np.int64), np.full((1, q_len), k_len), k_len)
        lo, hi = runs[0] if len(runs) == 1 else joined(runs, k_len)
        shape = np.broadcast_shapes(lo.shape, hi.shape, (1, q_len))
        if lo.ndim == 2:
            seen = lo < hi
            lo, hi = np.where(seen, lo, 0), np.where(seen, hi, 0)
        first, last = (np.broadcast_to(x, shape)[..., None, :].astype(np.int32) for x in (lo, hi))
        return first, last


def joined(runs: Runs, k_len: int) -> tuple[Any, Any]:
    """The union of several runs a query: one run, or two along a first axis."""
    found = merged(runs, k_len)
    if found is None:
        raise Unstructured("more than two runs of keys")
    return found


class Compare(Condition):
    """keys[j] <= queries[i], or >=. Integer arrays (B or 1, Lk or 1) and (B or 1, Lq or 1)."""

    def __init__(self, keys: Rows, sign: str, queries: Rows) -> None:
        self.keys, self.sign, self.queries = keys, sign, queries

    def within(self, lo: Rows, hi: Rows, k_len: int) -> Runs:
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

    def _cut(self, lo: Rows, hi: Rows, bound: Rows) -> Runs:
        """Runs up to the bounds, or from them on."""
        return [(lo, np.minimum(hi, bound)) if self.sign == "<=" else (np.maximum(lo, bound), hi)]

    def _by_pieces(self, keys: Rows, steps: Rows, lo: Rows, hi: Rows) -> Runs:
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

    def within(self, lo: Rows, hi: Rows, k_len: int) -> Runs:
        if self.keep.all():
            return [(lo, hi)]
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
        return [(first, last)]


class Queries(Condition):
    """Some queries see keys: a bool array (B or 1, Lq or 1)."""

    def __init__(self, keep: npt.NDArray[np.bool_]) -> None:
        self.keep = keep

    def within(self, lo: Rows, hi: Rows, k_len: int) -> Runs:
        return [(lo, hi) if self.keep.all() else (lo, np.where(self.keep, hi, 0))]


class AllOf(Condition):
    """What fulfils every one of several conditions."""

    def __init__(self, parts: Sequence[Condition]) -> None:
        self.parts: list[Condition] = []
        for part in parts:
            self.parts.extend(part.parts if isinstance(part, AllOf) else [part])

    def within(self, lo: Rows, hi: Rows, k_len: int) -> Runs:
        # Positions that start again with each document are ordered only once the documents are apart:
        # what fails is tried again after the others.
        runs, waiting = [(lo, hi)], self.parts
        while waiting:
            failed = []
            for part in waiting:
                try:
                    runs = [found for run in runs for found in part.within(*run, k_len)]
                except Unstructured as error:
                    failed.append(part)
                    reason = error
            if len(failed) == len(waiting):
                raise reason
            waiting = failed
        return runs


class AnyOf(Condition):
    """What fulfils one of several conditions."""

    def __init__(self, parts: Sequence[Condition]) -> None:
        self.parts = parts

    def within(self, lo: Rows, hi: Rows, k_len: int) -> Runs:
        runs = [run for part in self.parts for run in part.within(lo, hi, k_len)]
        lo, hi = joined(runs, k_len)
        return [(lo, hi)] if lo.ndim == 2 else [(lo[0], hi[0]), (lo[1], hi[1])]
