"""Masks given by their normal form: the runs of keys of each query."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._mask import Described, Mask


class Intervals(Mask):
    """Query i of batch entry b sees the keys lo[b, i] <= j < hi[b, i].

    lo, hi: int32 arrays (B or 1, 1, Lq), with bounds in [0, k_len]; a row without keys has hi <= lo. Or
    (2, B or 1, 1, Lq), for two runs of keys, see `_runs`.
    """

    __slots__ = ("_hi", "_hides_nothing", "_k_len", "_lo")

    _lo: Any
    _hi: Any
    _k_len: int
    _hides_nothing: bool | None  # found out once

    def __init__(self, lo: Any, hi: Any, k_len: int) -> None:
        self._begin("intervals", Described(lo), Described(hi), batch=lo.shape[-3], given=(lo, hi))
        self._set(_lo=lo, _hi=hi, _k_len=k_len, _hides_nothing=None)

    def _rows(self, on: Any, heads: int, q_len: int, k_len: int) -> Any:
        if (q_len, k_len) != self._sizes():
            raise ValueError(f"mask is of (q_len, k_len) = {self._sizes()}, but the call is of ({q_len}, {k_len})")
        return on.array(self._lo), on.array(self._hi), None

    def _batch_error(self, batch: int) -> str:
        return f"mask has {self._batch} batch entries, expected 1 or {batch}"

    def _sizes(self) -> tuple[int | None, int | None]:
        return self._lo.shape[-1], self._k_len

    def hides_nothing(self) -> bool:
        if self._hides_nothing is None:
            lo, hi = self._lo, self._hi
            self._set(_hides_nothing=lo.ndim == 3 and not lo.any() and bool((hi == self._k_len).all()))
        return bool(self._hides_nothing)

    def part(self, batch: slice, queries: slice, keys: slice) -> Intervals:
        """The mask of some batch entries, queries and keys: slices of step 1."""
        entries = batch if self._batch > 1 else slice(0, 1)
        first, last, _ = keys.indices(self._k_len)
        lo, hi = (np.clip(x[..., entries, :, queries] - first, 0, last - first) for x in (self._lo, self._hi))
        return Intervals(lo, hi, last - first)
