"""Masks for packed documents: a query sees the keys of its own document."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._arrays import NUMPY
from ._inputs import Integers, as_rows, borders_of, integers, is_tensor, window_of
from ._kinds import ALIGNMENTS
from ._mask import Described, Mask, common


class Inside:
    """What a query sees inside its document, counting the document's own queries and keys from 0."""

    def __init__(self, causal: Any, window: Any) -> None:
        if causal is not None and causal not in ALIGNMENTS:
            raise ValueError(
                f"causal must be None, 'bottom_right' or 'top_left', which say how the queries and "
                f"keys of one document align, got {causal!r}"
            )
        self.top_left = causal == "top_left"
        self.left, self.right = (None, None) if window is None else window_of(window)
        if causal is not None:
            self.right = 0

    def keys(self, on: Any, rank: Any, q_count: Any, k_count: Any) -> tuple[Any, Any]:
        """The keys [first, last) that query number `rank` of q_count sees, of k_count."""
        first, last = k_count * 0, k_count
        place = rank if self.top_left else rank + (k_count - q_count)
        if self.left is not None:
            first = on.maximum(place - self.left, first)
        if self.right is not None:
            last = on.minimum(place + (self.right + 1), k_count)
        return first, last


class Packed(Mask):
    """Documents that lie one after the other, given by their borders."""

    __slots__ = ("_borders", "_inside", "_k_borders", "_names")

    _borders: Any  # (documents + 1,)
    _k_borders: Any  # likewise, or None: the same
    _inside: Inside
    _names: tuple[str, str]

    def __init__(
        self,
        cu_seqlens: Any,
        cu_seqlens_k: Any,
        causal: Any,
        window: Any,
        names: tuple[str, str] = ("cu_seqlens", "cu_seqlens_k"),
    ) -> None:
        """`names`: how errors call the borders."""
        q = borders_of(cu_seqlens, names[0])
        k = None if cu_seqlens_k is None else borders_of(cu_seqlens_k, names[1])
        if k is not None and k.shape != q.shape:
            raise ValueError(
                f"{names[0]} has shape {tuple(q.shape)} and {names[1]} has shape {tuple(k.shape)}: "
                "both must hold the same number of documents"
            )
        given = (cu_seqlens, cu_seqlens_k)
        self._begin("documents", given=given, cu_seqlens=q, cu_seqlens_k=k, causal=causal, window=window)
        self._set(_borders=q, _k_borders=k, _inside=Inside(causal, window), _names=names)

    def _rows(self, on: Any, heads: int, q_len: int, k_len: int) -> Any:
        q_name, k_name = self._names
        q = k = on.borders(self._borders, q_name, q_len, "q_len")
        if self._k_borders is None:
            on.borders(self._borders, q_name, k_len, "k_len")
        else:
            k = on.borders(self._k_borders, k_name, k_len, "k_len")
        document = on.documents_at(q, q_len)
        begin, k_begin = q[document], k[document]
        rank = on.arange(q_len) - begin
        first, last = self._inside.keys(on, rank, q[document + 1] - begin, k[document + 1] - k_begin)
        # A row without keys has lo = k_len and hi = 0.
        seen = first < last
        lo, hi = on.where(seen, k_begin + first, k_len), on.where(seen, k_begin + last, 0)
        return on.bounds(lo[None], k_len), on.bounds(hi[None], k_len), None

    def _sizes(self) -> tuple[int | None, int | None]:
        k = self._borders if self._k_borders is None else self._k_borders
        return int(self._borders[-1]), int(k[-1])


class Places(NamedTuple):
    """The document of each query, the stretch [first, last) that it sees of its document's keys, and
    the document of each key and its number there. Shapes (B, Lq) and (B, Lk).
    """

    document: Any
    first: Any
    last: Any
    k_document: Any
    k_rank: Any


class Documents(Mask):
    """Documents given by an id for each place, in any order.

    With the keys of each document listed in their order, a query sees a stretch of one list. That
    stretch is an interval of keys when its first and last key are as far apart as it is long.
    """

    __slots__ = ("_hi", "_k_shape", "_lo", "_places", "_q_shape")

    _q_shape: tuple[int, ...]
    _k_shape: tuple[int, ...]
    _lo: Any  # (B, Lq)
    _hi: Any
    _places: Places | None  # of masks that are not intervals

    def __init__(self, q: Any, k: Any, causal: Any, window: Any) -> None:
        q_ids = ids_of(q, "q")
        k_ids = q_ids if k is None else ids_of(k, "k")
        q_rows, k_rows = as_rows(q_ids), as_rows(k_ids)
        batch = common([("q", q_rows.shape[0]), ("k", k_rows.shape[0])], "batch entries")
        described = [summary(ids) for ids in ((q_ids,) if k is None else (q_ids, k_ids))]
        self._begin("documents", *described, causal=causal, window=window, batch=batch, given=(q, k))
        inside = Inside(causal, window)
        if is_tensor(q_ids) or is_tensor(k_ids):
            from . import _torch

            found: Any = _torch.places_of(q_rows, k_rows, inside)
        else:
            found = places_of(q_rows, k_rows, inside)
        lo, hi, places = found
        self._set(_q_shape=tuple(q_ids.shape), _k_shape=tuple(k_ids.shape), _lo=lo, _hi=hi, _places=places)

    def _rows(self, on: Any, heads: int, q_len: int, k_len: int) -> Any:
        for name, shape, axis, length in (("q", self._q_shape, "q_len", q_len), ("k", self._k_shape, "k_len", k_len)):
            if shape[-1] != length:
                raise ValueError(
                    f"document ids {name} have shape {shape}, but the last axis must be {axis} = {length}; "
                    "borders of documents go to cu_seqlens="
                )
        lo, hi = on.bounds(on.array(self._lo), k_len), on.bounds(on.array(self._hi), k_len)
        if self._places is None:
            return lo, hi, None
        q_document, first, last, k_document, rank = map(on.array, self._places)
        rank = rank[:, None]
        pairs = q_document[:, :, None] == k_document[:, None]
        pairs &= rank >= first[:, :, None]
        pairs &= rank < last[:, :, None]
        return lo, hi, pairs[:, None]

    def _batch_error(self, batch: int) -> str:
        name, shape = ("q", self._q_shape) if math.prod(self._q_shape[:-1]) not in (1, batch) else ("k", self._k_shape)
        return f"document ids {name} have shape {shape}, expected one row for each of {batch} batch entries"

    def _sizes(self) -> tuple[int | None, int | None]:
        return self._q_shape[-1], self._k_shape[-1]


def ids_of(value: Any, name: str) -> Any:
    """Ids of shape (..., L)."""
    ids = integers(value, name)
    if ids.ndim == 0:
        raise ValueError(f"{name} must have shape (..., L), got a single integer")
    return ids


def summary(ids: Any) -> Any:
    """What a repr is made of."""
    return ids.copy() if isinstance(ids, np.ndarray) and ids.size <= 8 else Described(ids)


def places_of(q: npt.NDArray[Any], k: npt.NDArray[Any], inside: Inside) -> tuple[Integers, Integers, Places | None]:
    """The interval of each query, and where the intervals do not say all, the places."""
    q_doc, k_doc, count = document_numbers(q, k)
    k_order, k_count, k_begin = listed(k_doc, count)
    first, last = inside.keys(NUMPY, ranks(q_doc, count), listed(q_doc, count)[1][q_doc], k_count[q_doc])
    seen = first < last
    k_len = k.shape[1]
    lo, hi = np.full(q_doc.shape, k_len), np.zeros(q_doc.shape, np.int64)
    lo[seen] = k_order[(k_begin[q_doc] + first)[seen]] % k_len
    hi[seen] = k_order[(k_begin[q_doc] + last - 1)[seen]] % k_len + 1
    if bool(((hi - lo == last - first) | ~seen).all()):
        return lo, hi, None
    return lo, hi, Places(q_doc, first, last, k_doc, ranks(k_doc, count))


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


def ranks(doc: Integers, count: int) -> Integers:
    """How many places of the same document lie before each place."""
    order, counts, begin = listed(doc, count)
    rank = np.empty(doc.size, np.int64)
    rank[order] = np.arange(doc.size) - np.repeat(begin, counts)
    return rank.reshape(doc.shape)


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
        (While torch traces, ids always make one; `cu_seqlens` never do.)
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
