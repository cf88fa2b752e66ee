"""Masks for packed documents: a query sees the keys of its own document."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ._inputs import (
    Bools,
    Integers,
    as_rows,
    borders_of,
    check_borders,
    frozen,
    integers,
    window_of,
)
from ._kinds import ALIGNMENTS
from ._mask import Described, Lowered, Mask, Rows, common, shown


class Inside:
    """What a query sees inside its document, counting the document's own queries and keys from 0."""

    def __init__(self, causal: Any, window: Any) -> None:
        if causal is not None and causal not in ALIGNMENTS:
            raise ValueError(
                f"causal must be None, 'bottom_right' or 'top_left', which say how the queries and "
                f"keys of one document align, got {causal!r}"
            )
        self.everything = causal is None and window is None
        self.top_left = causal == "top_left"
        self.left, self.right = (None, None) if window is None else window_of(window)
        if causal is not None:
            self.right = 0

    def keys(self, rank: Integers, q_count: Integers, k_count: Integers) -> tuple[Integers, Integers]:
        """The keys [first, last) that query number `rank` of q_count sees, of k_count."""
        first, last = np.zeros_like(k_count), k_count
        if self.everything:
            return first, last
        place = rank if self.top_left else rank + (k_count - q_count)
        if self.left is not None:
            first = np.maximum(place - self.left, 0)
        if self.right is not None:
            last = np.minimum(place + self.right + 1, k_count)
        return first, last


class Packed(Mask):
    """Documents that lie one after the other, given by their borders."""

    __slots__ = ("_borders", "_hi", "_k_borders", "_lo")

    _borders: Integers
    _k_borders: Integers | None
    _lo: Rows
    _hi: Rows

    def __init__(self, cu_seqlens: Any, cu_seqlens_k: Any, causal: Any, window: Any) -> None:
        q = k = borders_of(cu_seqlens, "cu_seqlens")
        if cu_seqlens_k is not None:
            k = borders_of(cu_seqlens_k, "cu_seqlens_k")
            if k.size != q.size:
                raise ValueError(
                    f"cu_seqlens has shape {q.shape} and cu_seqlens_k has shape {k.shape}: "
                    "both must hold the same number of documents"
                )
        q_counts, k_counts = np.diff(q), np.diff(k)
        rank = np.arange(q[-1]) - np.repeat(q[:-1], q_counts)
        first, last = Inside(causal, window).keys(rank, np.repeat(q_counts, q_counts), np.repeat(k_counts, q_counts))
        start = np.repeat(k[:-1], q_counts)
        # A row without keys: lo = the end, hi = 0.
        empty = last <= first
        k_given = None if cu_seqlens_k is None else k
        self._begin("documents", cu_seqlens=q, cu_seqlens_k=k_given, causal=causal, window=window)
        self._set(
            _borders=q,
            _k_borders=k_given,
            _lo=row_bounds(np.where(empty, k[-1], start + first)[None]),
            _hi=row_bounds(np.where(empty, 0, start + last)[None]),
        )

    def _rows(self, batch: int, heads: int, q_len: int, k_len: int) -> Lowered:
        check_borders(self._borders, "cu_seqlens", q_len, "q_len")
        if self._k_borders is None:
            check_borders(self._borders, "cu_seqlens", k_len, "k_len")
        else:
            check_borders(self._k_borders, "cu_seqlens_k", k_len, "k_len")
        return self._lo, self._hi, None

    def _sizes(self) -> tuple[int | None, int | None]:
        k = self._borders if self._k_borders is None else self._k_borders
        return int(self._borders[-1]), int(k[-1])


class Documents(Mask):
    """Documents given by an id for each place, in any order.

    With the keys of each document listed in their order, a query sees a stretch of one list. That
    stretch is an interval of keys when its first and last key are as far apart as it is long.
    """

    __slots__ = ("_first", "_hi", "_k_doc", "_k_shape", "_last_key", "_lo", "_q_doc", "_q_shape")

    _lo: Rows
    _hi: Rows
    _q_shape: tuple[int, ...]
    _k_shape: tuple[int, ...]
    # For masks that are not intervals only: the document of each place, and the stretch that each
    # query sees of its document's keys. Shapes (B, Lq) and (B, Lk).
    _q_doc: Integers | None
    _k_doc: Integers | None
    _first: Integers | None
    _last_key: Integers | None

    def __init__(self, q: Any, k: Any, causal: Any, window: Any) -> None:
        q_ids = ids_of(q, "q")
        k_ids = q_ids if k is None else ids_of(k, "k")
        q_rows, k_rows = as_rows(q_ids), as_rows(k_ids)
        batch = common([("q", len(q_rows)), ("k", len(k_rows))], "batch entries")
        given = [Described(shown(ids)) for ids in ((q_ids,) if k is None else (q_ids, k_ids))]
        self._begin("documents", *given, causal=causal, window=window, batch=batch)
        q_doc, k_doc, count = document_numbers(q_rows, k_rows)
        k_order, k_count, k_begin = listed(k_doc, count)
        q_order, q_count, q_begin = listed(q_doc, count)
        rank = np.empty(q_doc.size, np.int64)
        rank[q_order] = np.arange(q_doc.size) - np.repeat(q_begin, q_count)
        doc = q_doc.ravel()
        first, last = Inside(causal, window).keys(rank, q_count[doc], k_count[doc])
        seen = first < last
        k_len = k_rows.shape[1]
        lo, hi = np.full(doc.size, k_len), np.zeros(doc.size, np.int64)
        lo[seen] = k_order[(k_begin[doc] + first)[seen]] % k_len
        hi[seen] = k_order[(k_begin[doc] + last - 1)[seen]] % k_len + 1
        structured = bool(((hi - lo == last - first) | ~seen).all())
        self._set(
            _q_shape=q_ids.shape,
            _k_shape=k_ids.shape,
            _lo=row_bounds(lo.reshape(q_doc.shape)),
            _hi=row_bounds(hi.reshape(q_doc.shape)),
            _q_doc=None if structured else frozen(q_doc),
            _k_doc=None if structured else frozen(k_doc),
            _first=None if structured else frozen(first.reshape(q_doc.shape)),
            _last_key=None if structured else frozen(last.reshape(q_doc.shape)),
        )

    def _rows(self, batch: int, heads: int, q_len: int, k_len: int) -> Lowered:
        if self._q_shape[-1] != q_len or self._k_shape[-1] != k_len:
            name, shape, axis, length = (
                ("q", self._q_shape, "q_len", q_len)
                if self._q_shape[-1] != q_len
                else ("k", self._k_shape, "k_len", k_len)
            )
            raise ValueError(f"document ids {name} have shape {shape}, but the last axis must be {axis} = {length}")
        return self._lo, self._hi, self._pairs()

    def _pairs(self) -> Bools | None:
        """(B, 1, Lq, Lk), or None for intervals."""
        q_doc, k_doc, first, last = self._q_doc, self._k_doc, self._first, self._last_key
        if q_doc is None or k_doc is None or first is None or last is None:
            return None
        order, count, begin = listed(k_doc, int(k_doc.max()) + 1)
        rank = np.empty(k_doc.size, np.int64)
        rank[order] = np.arange(k_doc.size) - np.repeat(begin, count)
        ranks = rank.reshape(k_doc.shape)[:, None]
        pairs: Bools = q_doc[:, :, None] == k_doc[:, None]
        pairs &= ranks >= first[:, :, None]
        pairs &= ranks < last[:, :, None]
        return frozen(pairs[:, None])

    def _batch_error(self, batch: int) -> str:
        name, shape = ("q", self._q_shape) if math.prod(self._q_shape[:-1]) not in (1, batch) else ("k", self._k_shape)
        return f"document ids {name} have shape {shape}, expected one row for each of {batch} batch entries"

    def _sizes(self) -> tuple[int | None, int | None]:
        return self._q_shape[-1], self._k_shape[-1]


def ids_of(value: Any, name: str) -> npt.NDArray[Any]:
    """Ids of shape (..., L)."""
    ids = integers(value, name)
    if ids.ndim == 0:
        raise ValueError(f"{name} must have shape (..., L), got a single integer")
    return ids


def row_bounds(values: Integers) -> Rows:
    """(B, Lq) bounds as rank 3."""
    return frozen(values.astype(np.int32)[:, None])


def document_numbers(q: npt.NDArray[Any], k: npt.NDArray[Any]) -> tuple[Integers, Integers, int]:
    """Ids as numbers 0, 1, ... that differ between batch entries too, and how many there are."""
    batch = max(len(q), len(k)) if len(q) and len(k) else 0
    q, k = (np.broadcast_to(a, (batch, a.shape[1])) for a in (q, k))
    flat = [q.ravel()] if k is q else [q.ravel(), k.ravel()]
    if np.result_type(*flat).kind == "f":  # uint64 beside a signed type: no common integer
        flat = [a.astype(object) for a in flat]
    numbers = np.unique(np.concatenate(flat), return_inverse=True)[1].ravel()
    q_doc = numbers[: q.size].reshape(q.shape)
    k_doc = q_doc if len(flat) == 1 else numbers[q.size :].reshape(k.shape)
    if batch > 1:
        entry = np.arange(batch)[:, None] * (int(numbers.max(initial=0)) + 1)
        flat = [(q_doc + entry).ravel(), (k_doc + entry).ravel()]
        numbers = np.unique(np.concatenate(flat), return_inverse=True)[1].ravel()
        q_doc, k_doc = numbers[: q.size].reshape(q.shape), numbers[q.size :].reshape(k.shape)
    return q_doc, k_doc, int(numbers.max(initial=-1)) + 1


def listed(doc: Integers, count: int) -> tuple[Integers, Integers, Integers]:
    """Places document by document, how many each document has, and where its list begins."""
    order = np.argsort(doc, axis=None, kind="stable")
    counts = np.bincount(doc.ravel(), minlength=count)
    return order, counts, np.cumsum(counts) - counts


def documents(
    q: npt.ArrayLike | None = None,
    k: npt.ArrayLike | None = None,
    *,
    cu_seqlens: npt.ArrayLike | None = None,
    cu_seqlens_k: npt.ArrayLike | None = None,
    causal: str | None = None,
    window: tuple[int | None, int | None] | None = None,
) -> Mask:
    """Return the mask of packed documents: a query sees the keys of its own document.

    Parameters
    ----------
    q : integer array of shape (..., Lq), optional
        The document of each query. Ids need not be sorted; where the keys of each document are
        consecutive the mask stays an interval, otherwise it makes a bool array when it is used.
    k : integer array of shape (..., Lk), optional
        The document of each key; left out, as `q`.
    cu_seqlens : integer array of shape (documents + 1,), optional
        Instead of ids, where documents begin and end: first 0, never decreasing, last equal to the
        row's length exactly. Documents may be empty.
    cu_seqlens_k : integer array of the same shape, optional
        Likewise for the keys; left out, as `cu_seqlens`.
    causal : {"bottom_right", "top_left"}, optional
        Causal inside each document. The alignment is that of each document's own queries and keys,
        which ``& causal()`` cannot express where their numbers differ.
    window : (left, right), optional
        A window inside each document, counted as in `tegula.masks.window`. It aligns as `causal`
        says, and bottom right without it.

    Returns
    -------
    Mask
        True = may attend. Queries whose document has no keys see none.

    Raises
    ------
    ValueError
        For borders that break the rules above, unknown alignments, negative windows, and at the call
        for ids that do not fit the lengths.
    TypeError
        For ids or borders that are not integers.

    Examples
    --------
    >>> from tegula import masks
    >>> masks.documents(cu_seqlens=[0, 1, 3], causal="bottom_right").dense(3, 3).astype(int)
    array([[1, 0, 0],
           [0, 1, 0],
           [0, 1, 1]])
    >>> masks.documents([7, 7, 5]).dense(3, 3).astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [0, 0, 1]])
    """
    if (q is None) == (cu_seqlens is None):
        raise ValueError("documents needs either ids or cu_seqlens")
    if q is None:
        if k is not None:
            raise ValueError("k holds ids and cu_seqlens holds borders: they exclude each other")
        return Packed(cu_seqlens, cu_seqlens_k, causal, window)
    if cu_seqlens_k is not None:
        raise ValueError("q holds ids and cu_seqlens_k holds borders: they exclude each other")
    return Documents(q, k, causal, window)
