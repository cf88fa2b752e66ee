"""The few words in which masks say their intervals, once for NumPy and for torch.

A kind writes its rule as ``on.ramp(...)``, ``on.where(...)``: `NUMPY` below answers with arrays and
checks the values, `_torch.Torch` with tensors. Where values cannot be read, because a call is being
traced or the tensors are on another device, bounds are clamped instead of checked.
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ._inputs import Integers, check_borders, check_lengths

Rows: TypeAlias = "npt.NDArray[np.int32]"


@functools.lru_cache(maxsize=64)
def constant(value: int) -> Rows:
    return np.array([[[value]]], np.int32)


class NumPy:
    """Bounds as int32 arrays of rank 3, broadcastable to (B, H, Lq)."""

    constant = staticmethod(constant)
    where = staticmethod(np.where)
    maximum = staticmethod(np.maximum)
    minimum = staticmethod(np.minimum)
    arange = staticmethod(np.arange)
    take = staticmethod(np.take)

    @staticmethod
    def stack(bounds: list[Rows]) -> Rows:
        """(n, B, H, Lq), of n arrays that broadcast to (B, H, Lq)."""
        return np.stack(np.broadcast_arrays(*bounds))

    @staticmethod
    def lowered(mask: Any, batch: int, heads: int, q_len: int, k_len: int) -> Any:
        """A part of an intersection."""
        return mask._lower(batch, heads, q_len, k_len)

    @staticmethod
    def array(held: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """An array that the mask holds."""
        return held

    @staticmethod
    def ramp(first: int | Integers, q_len: int, k_len: int) -> Rows:
        """first, first + 1, ... along the rows, kept in [0, k_len]; one ramp per batch entry."""
        wide: Any = np.int64 if q_len + k_len >= 2**31 else np.int32
        if isinstance(first, int):
            first = min(max(first, -q_len), k_len)
            rows = np.arange(first, first + q_len, dtype=wide).reshape(1, 1, q_len)
            if first < 0:
                np.maximum(rows, 0, out=rows)
            if first + q_len - 1 > k_len:
                np.minimum(rows, k_len, out=rows)
        else:
            starts = np.minimum(np.maximum(first, -q_len), k_len).astype(wide).reshape(-1, 1, 1)
            rows = starts + np.arange(q_len, dtype=wide)
            np.maximum(rows, 0, out=rows)
            np.minimum(rows, k_len, out=rows)
        return rows.astype(np.int32, copy=False)

    @staticmethod
    def lengths(held: Integers, name: str, longest: int, axis: str) -> Rows:
        """(B, 1, 1): one length per batch entry, in [0, longest]."""
        check_lengths(held, name, longest, axis)
        return held.reshape(-1, 1, 1).astype(np.int32)

    @staticmethod
    def borders(held: Integers, name: str, length: int, axis: str) -> Integers:
        """Where documents begin and end, and at least one place behind that."""
        check_borders(held, name, length, axis)
        return held

    @staticmethod
    def documents_at(borders: Integers, length: int) -> Integers:
        """(length,): the number of the document at each place."""
        return np.repeat(np.arange(borders.size - 1), np.diff(borders))

    @staticmethod
    def bounds(values: Integers, k_len: int) -> Rows:
        """(B, Lq) int64 as bounds: kept in [0, k_len]."""
        return np.clip(values, 0, k_len).astype(np.int32)[:, None]


NUMPY = NumPy()
