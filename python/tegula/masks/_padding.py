"""Masks that hide padding, and positions that skip it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _native
from ._inputs import as_rows, bools, borders_of, is_tensor, lengths_of, opened
from ._mask import Mask, common


class Real:
    """Which places of an axis are real, per batch entry: lengths (B,) or a bool array (B, L)."""

    __slots__ = ("batch", "bools", "lengths", "name", "shape")

    def __init__(self, value: Any, name: str, keep: bool) -> None:
        self.name = name
        self.lengths: Any = None
        self.bools: Any = None
        if keep:
            array = bools(value, name)
            if array.ndim == 0:
                raise ValueError(f"{name} must have shape (B, L), got a single bool")
            self.shape = tuple(array.shape)
            rows = as_rows(array)
            self.bools = rows.clone() if is_tensor(rows) else rows.copy()
            self.batch = rows.shape[0]
        else:
            if name == "lengths" and isinstance(value, np.ndarray) and value.dtype.kind == "b":
                raise TypeError("lengths must be integers, got bools; which tokens are real goes to keep=")
            self.lengths = lengths_of(value, name)
            self.shape = tuple(self.lengths.shape)
            self.batch = math.prod(self.shape)

    def check(self, length: int, axis: str) -> None:
        """ValueError unless a bool array fits an axis of this length."""
        if self.bools is not None and self.shape[-1] != length:
            raise ValueError(f"{self.name} has shape {self.shape}, but its last axis must be {axis} = {length}")

    def batch_error(self, batch: int) -> str:
        return f"{self.name} has shape {self.shape}, expected one entry for each of {batch} batch entries"

    def places(self, on: Any, length: int, axis: str) -> Any:
        """(B, 1, L): True where real."""
        self.check(length, axis)
        if self.bools is not None:
            return on.array(self.bools)[:, None]
        return on.arange(length) < on.lengths(self.lengths, self.name, length, axis)

    @property
    def given(self) -> Any:
        return self.lengths if self.lengths is not None else self.bools.reshape(self.shape)


class Padding(Mask):
    """Real keys, for real queries."""

    __slots__ = ("_hi", "_irregular", "_keys", "_lo", "_queries")

    _keys: Real | None
    _queries: Real | None
    # Of bools, the interval from the first to the last real key of each batch entry, (B, 1, 1).
    _lo: Any
    _hi: Any
    _irregular: bool

    def __init__(self, lengths: Any, keep: Any, queries: Any) -> None:
        if lengths is not None and keep is not None:
            raise ValueError("lengths and keep exclude each other")
        if lengths is None and keep is None and queries is None:
            raise ValueError("padding needs lengths, keep or queries")
        keys = real_queries = None
        if lengths is not None:
            keys = Real(lengths, "lengths", keep=False)
        elif keep is not None:
            keys = Real(keep, "keep", keep=True)
        if queries is not None:
            real_queries = Real(queries, "queries", keep=holds_bools(queries))
        held = [r for r in (keys, real_queries) if r is not None]
        self._begin(
            "padding",
            *(r.given for r in held if r.name == "lengths"),
            batch=common([(r.name, r.batch) for r in held], "batch entries"),
            given=(lengths, keep, queries),
            keep=None if keep is None else held[0].given,
            queries=None if queries is None else held[-1].given,
        )
        lo, hi, irregular = None, None, False
        if keys is not None and keys.bools is not None:
            lo, hi, irregular = _native.scan(keys.bools[:, None, None])
        self._set(_keys=keys, _queries=real_queries, _lo=lo, _hi=hi, _irregular=irregular)

    def _rows(self, on: Any, heads: int, q_len: int, k_len: int) -> Any:
        lo, hi, dense = on.constant(0), on.constant(k_len), None
        if self._keys is not None:
            self._keys.check(k_len, "k_len")
            if self._keys.lengths is not None:
                hi = on.lengths(self._keys.lengths, "lengths", k_len, "k_len")
            else:
                lo, hi = on.array(self._lo), on.array(self._hi)
                dense = on.array(self._keys.bools)[:, None, None] if self._irregular else None
        if self._queries is not None:
            real = self._queries.places(on, q_len, "q_len")
            # A row without keys has lo = k_len and hi = 0, which widens no neighbour's tile.
            lo = on.where(real, lo, on.constant(k_len))
            hi = on.where(real, hi, on.constant(0))
        return lo, hi, dense

    def _batch_error(self, batch: int) -> str:
        held = (r for r in (self._keys, self._queries) if r is not None)
        return next(r.batch_error(batch) for r in held if r.batch not in (1, batch))

    def _sizes(self) -> tuple[int | None, int | None]:
        q, k = (None if r is None or r.bools is None else r.shape[-1] for r in (self._queries, self._keys))
        return q, k

    def _reach(self) -> int:
        lengths = (r.lengths for r in (self._queries, self._keys) if r is not None)
        return max((int(n.max(initial=0)) for n in lengths if n is not None), default=super()._reach())


def holds_bools(value: Any) -> bool:
    value = opened(value)
    if is_tensor(value):
        return str(value.dtype) == "torch.bool"
    return np.asarray(value).dtype.kind == "b"


def padding(
    lengths: npt.ArrayLike | None = None,
    *,
    keep: npt.ArrayLike | None = None,
    queries: npt.ArrayLike | None = None,
) -> Mask:
    """Return the mask that hides padding keys, and with `queries` padding queries.

    Parameters
    ----------
    lengths : int or integer array of shape (B,), optional
        Keys ``j < lengths[b]`` are real: padding on the right.
    keep : bool array of shape (B, Lk), optional
        True = the key is real, for padding anywhere; for example ``ids != pad_id``. Where the real
        keys of each row are consecutive, as with padding on the left, the mask stays an interval.
    queries : integer array of shape (B,) or bool array of shape (B, Lq), optional
        Likewise for the queries: those that are not real see no key, and their result is 0.
        Left out, every query is real.

    Returns
    -------
    Mask
        True = may attend. Several leading axes count as one, in C order.

    Raises
    ------
    ValueError
        For a negative length, and at the call for one beyond the axis or an array that does not fit.
    TypeError
        For lengths that are bool or float, and `keep` that is not bool.

    Examples
    --------
    >>> from tegula import masks
    >>> masks.padding([2, 4], queries=[2, 4]).dense(4, 4)[0, 0].astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 0, 0],
           [0, 0, 0, 0]])
    """
    return Padding(lengths, keep, queries)


def positions(*, cu_seqlens: npt.ArrayLike | None = None, keep: npt.ArrayLike | None = None) -> Any:
    """Return the position of each token in its own document, or behind its own left padding.

    For the ``positions`` of `tegula.embedding` and `tegula.positional_encoding`.

    Parameters
    ----------
    cu_seqlens : integer array of shape (documents + 1,), optional
        Where documents begin and end in a packed row: the first is 0, the last the length T.
    keep : bool array of shape (..., L), optional
        True = the token is real.

    Returns
    -------
    ndarray (or tensor, where one is given) of int64
        Shape (T,): 0, 1, ... from each document's beginning. Or the shape of `keep`: the number of
        real tokens before, so that the first real one has position 0; padding before it has 0 too,
        and padding behind a token repeats its position.

    Raises
    ------
    ValueError
        Unless exactly one argument is given, and for borders that do not start at 0 or decrease.
    TypeError
        For borders that are not integers, and `keep` that is not bool.

    Examples
    --------
    >>> from tegula import masks
    >>> masks.positions(cu_seqlens=[0, 3, 3, 5])
    array([0, 1, 2, 0, 1])
    >>> masks.positions(keep=[[False, False, True, True]])
    array([[0, 0, 0, 1]])
    """
    if (cu_seqlens is None) == (keep is None):
        raise ValueError("positions needs either cu_seqlens or keep")
    if is_tensor(keep if cu_seqlens is None else cu_seqlens):
        from . import _torch

        return _torch.positions(cu_seqlens, keep)
    if cu_seqlens is not None:
        borders = borders_of(cu_seqlens, "cu_seqlens")
        counts = np.diff(borders)
        return np.arange(borders[-1]) - np.repeat(borders[:-1], counts)
    real = bools(keep, "keep")
    if real.ndim == 0:
        raise ValueError("keep must have at least one axis, got a single bool")
    return np.maximum(np.cumsum(real, axis=-1, dtype=np.int64) - 1, 0)
