"""Masks that are rules on numbers: full, causal, window, sliding, chunked, prefix, global tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt

from ..checks import flag
from ._inputs import count_of, lengths_of, offset_of, reach_of
from ._mask import Mask, common
from ._runs import joined

ALIGNMENTS = ("bottom_right", "top_left")


class Aligned(Mask):
    """A mask that compares query numbers with key numbers, and so must know how they align."""

    __slots__ = ("_align", "_offset")

    _align: str | None
    _offset: Any  # None, an int, or integers with one entry per batch entry

    def _set_alignment(self, align: str | None, offset: Any) -> int:
        """Check both; return the number of batch entries that the offset tells apart."""
        if align is not None and align not in ALIGNMENTS:
            raise ValueError(f"align must be 'bottom_right' or 'top_left', got {align!r}")
        if align is not None and offset is not None:
            raise ValueError(f"align={align!r} and offset={offset!r} exclude each other")
        self._set(_align=align, _offset=None if offset is None else offset_of(offset))
        return math.prod(getattr(self._offset, "shape", ()))

    def _shift(self, q_len: int, k_len: int) -> Any:
        """Query i stands where key i + shift does."""
        if self._offset is not None:
            return self._offset
        if self._align == "bottom_right":
            return k_len - q_len
        if self._align is None and q_len != k_len:
            raise ValueError(
                f"{self!r} with q_len {q_len} and k_len {k_len}: the lengths differ, so name the "
                'alignment: align="bottom_right" (the last query sees the last key), '
                'align="top_left" (the first query sees the first key), or offset='
            )
        return 0

    def _batch_error(self, batch: int) -> str:
        return f"offset has shape {tuple(self._offset.shape)}, expected one entry for each of {batch} batch entries"


class Full(Mask):
    """Every key."""

    __slots__ = ()

    def __init__(self) -> None:
        self._begin("full")

    def _rows(self, on: Any, heads: int, q_len: int, k_len: int) -> Any:
        return on.constant(0), on.constant(k_len), None


class Window(Aligned):
    """i + shift - left <= j <= i + shift + right; None is unlimited. Causal is a window: (None, 0).

    Of the keys up to its right end, a row sees the first `sinks` too.
    """

    __slots__ = ("_left", "_right", "_sinks")

    _left: int | None
    _right: int | None
    _sinks: int

    def __init__(
        self,
        left: int | None,
        right: int | None,
        align: str | None,
        offset: Any,
        name: str,
        *arguments: int | None,
        sinks: int = 0,
    ) -> None:
        batch = self._set_alignment(align, offset)
        options = {"align": align, "offset": self._offset, "sinks": sinks or None}
        self._begin(name, *arguments, **options, batch=batch, given=(offset,))
        self._set(_left=left, _right=right, _sinks=sinks)

    def _rows(self, on: Any, heads: int, q_len: int, k_len: int) -> Any:
        shift = self._shift(q_len, k_len)
        left, right = self._left, self._right
        lo = on.constant(0) if left is None else on.ramp(shift - left, q_len, k_len)
        hi = on.constant(k_len) if right is None else on.ramp(shift + right + 1, q_len, k_len)
        if self._sinks:
            sinks = on.constant(0), on.minimum(hi, on.constant(min(self._sinks, k_len)))
            lo, hi = joined(on, sinks, (lo, hi), k_len)
        return lo, hi, None


class Chunked(Aligned):
    """Positions in chunks of `size`: a query sees the keys of its own."""

    __slots__ = ("_size",)

    _size: int

    def __init__(self, size: int, align: str | None, offset: Any) -> None:
        batch = self._set_alignment(align, offset)
        self._begin("chunked", size, align=align, offset=self._offset, batch=batch, given=(offset,))
        self._set(_size=size)

    def _rows(self, on: Any, heads: int, q_len: int, k_len: int) -> Any:
        shift = self._shift(q_len, k_len)
        if not isinstance(self._offset, (int, type(None))):
            shift = on.array(shift).reshape(-1, 1)
        places = on.arange(q_len)[None] + shift
        begin = places // self._size * self._size
        return on.bounds(begin, k_len), on.bounds(begin + self._size, k_len), None


class Prefix(Aligned):
    """The first keys, and causally the others."""

    __slots__ = ("_lengths",)

    _lengths: Any  # (B,) or fewer axes

    def __init__(self, lengths: Any, align: str | None, offset: Any) -> None:
        batch = self._set_alignment(align, offset)
        self._set(_lengths=lengths_of(lengths, "lengths"))
        batch = common([("lengths", math.prod(self._lengths.shape)), ("offset", batch)], "batch entries")
        self._begin("prefix", self._lengths, align=align, offset=self._offset, batch=batch, given=(lengths, offset))

    def _rows(self, on: Any, heads: int, q_len: int, k_len: int) -> Any:
        prefix = on.lengths(self._lengths, "lengths", k_len, "k_len")
        causal = on.ramp(self._shift(q_len, k_len) + 1, q_len, k_len)
        return on.constant(0), on.maximum(causal, prefix), None

    def _reach(self) -> int:
        return max(super()._reach(), int(self._lengths.max(initial=0)))

    def _batch_error(self, batch: int) -> str:
        if math.prod(self._lengths.shape) in (1, batch):
            return super()._batch_error(batch)
        return f"lengths has shape {tuple(self._lengths.shape)}, expected one entry for each of {batch} batch entries"


class GlobalTokens(Aligned):
    """The first keys for every query, and every key for the queries that stand there."""

    __slots__ = ("_count", "_queries")

    _count: Any  # (B,) or fewer axes
    _queries: bool

    def __init__(self, count: Any, queries: bool, align: str | None, offset: Any) -> None:
        batch = self._set_alignment(align, offset)
        self._set(_count=lengths_of(count, "count"), _queries=flag(queries, "queries"))
        batch = common([("count", math.prod(self._count.shape)), ("offset", batch)], "batch entries")
        options = {"queries": None if queries else False, "align": align, "offset": self._offset}
        self._begin("global_tokens", self._count, **options, batch=batch, given=(count, offset))

    def _rows(self, on: Any, heads: int, q_len: int, k_len: int) -> Any:
        count = on.lengths(self._count, "count", k_len, "k_len")
        if not self._queries:
            return on.constant(0), count, None
        place = on.ramp(self._shift(q_len, k_len) + 1, q_len, k_len)  # counted from 1
        return on.constant(0), on.where((place > 0) & (place <= count), on.constant(k_len), count), None

    def _reach(self) -> int:
        return max(super()._reach(), 2 * int(self._count.max(initial=0)))

    def _batch_error(self, batch: int) -> str:
        if math.prod(self._count.shape) in (1, batch):
            return super()._batch_error(batch)
        return f"count has shape {tuple(self._count.shape)}, expected one entry for each of {batch} batch entries"


# Masks without arguments are the same object each time, which keeps its last result.
FULL = Full()
CAUSAL = Window(None, 0, None, None, "causal")


def full() -> Mask:
    """Return the mask under which every query sees every key.

    Examples
    --------
    >>> from tegula import masks
    >>> masks.full().dense(1, 3)
    array([[ True,  True,  True]])
    """
    return FULL


def causal(align: str | None = None, offset: npt.ArrayLike | None = None) -> Mask:
    """Return the causal mask: query i sees key j when ``j <= i + shift``.

    Parameters
    ----------
    align : {"bottom_right", "top_left"}, optional
        "bottom_right": shift = k_len - q_len, so that the last query sees every key, as in decoding
        with a cache. "top_left": shift = 0.
    offset : int or integer array of shape (B,), optional
        The shift itself, for example the length of each sequence's cache.
        With q_len != k_len one of the two must be named.

    Returns
    -------
    Mask
        True = may attend. Rows that see no key (as the first ones do when "bottom_right" has more
        queries than keys) are allowed.

    Raises
    ------
    ValueError
        For an unknown `align`, or both arguments; at the call, when the lengths differ and neither is
        given.

    Examples
    --------
    >>> from tegula import masks
    >>> masks.causal().dense(3, 3).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]])
    >>> masks.causal(offset=[0, 2]).dense(1, 4).astype(int)[:, 0]
    array([[[1, 0, 0, 0]],
    <BLANKLINE>
           [[1, 1, 1, 0]]])
    """
    if align is None and offset is None:
        return CAUSAL
    return Window(None, 0, align, offset, "causal")


def window(
    left: int | None,
    right: int | None,
    align: str | None = None,
    offset: npt.ArrayLike | None = None,
) -> Mask:
    """Return the mask of a window around each query: ``i+shift-left <= j <= i+shift+right``.

    Parameters
    ----------
    left, right : int or None
        How many keys before and behind its own position a query sees, itself not counted: 0 is
        itself only, None is unlimited. Negative numbers raise.
    align, offset
        As in `causal`.

    Returns
    -------
    Mask
        True = may attend.

    Raises
    ------
    ValueError
        For a negative count, and as in `causal`.
    TypeError
        For a count that is no integer.

    Examples
    --------
    >>> from tegula import masks
    >>> masks.window(2, 1).dense(8, 8).sum(axis=1)
    array([2, 3, 4, 4, 4, 4, 4, 3])
    """
    counts = reach_of(left, "left"), reach_of(right, "right")
    return Window(*counts, align, offset, "window", *counts)


def sliding(size: int, align: str | None = None, offset: npt.ArrayLike | None = None, *, sinks: int = 0) -> Mask:
    """Return the causal sliding window: a query sees the last `size` keys, itself included.

    The same as ``causal() & window(size - 1, 0)``.

    Parameters
    ----------
    size : int
        At least 1.
    align, offset
        As in `causal`.
    sinks : int, optional
        Attention sinks (StreamingLLM, arXiv:2309.17453): the first `sinks` keys stay visible to every
        query from their own position on, however far the window has moved. Two runs of keys a row: the
        keys between them cost nothing. They are the first of the row: of packed documents only the first
        has them. (Sinks that are learned logits are an argument of `tegula.attention`.)

    Returns
    -------
    Mask
        True = may attend.

    Raises
    ------
    ValueError
        For a size below 1, a negative number of sinks, and as in `causal`.

    Examples
    --------
    >>> from tegula import masks
    >>> masks.sliding(2).dense(3, 3).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    >>> masks.sliding(2, sinks=1).dense(5, 5).astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [1, 1, 1, 0, 0],
           [1, 0, 1, 1, 0],
           [1, 0, 0, 1, 1]])
    """
    if size is None:
        raise TypeError("size must be an integer, got None; causal() has no limit")
    count = count_of(size, "size", least=1)
    if sinks is None:
        raise TypeError("sinks must be an integer, got None; 0 is none")
    return Window(count - 1, 0, align, offset, "sliding", count, sinks=count_of(sinks, "sinks"))


def chunked(size: int, align: str | None = None, offset: npt.ArrayLike | None = None) -> Mask:
    """Return the mask of block-local attention: a query sees the keys of its own chunk.

    Positions 0 .. size - 1 are the first chunk, and so on. With ``& causal()``, it sees those up to its own.

    Parameters
    ----------
    size : int
        Positions in a chunk, at least 1.
    align, offset
        As in `causal`; with an offset, chunks are those of the keys' positions.

    Returns
    -------
    Mask
        True = may attend.

    Raises
    ------
    ValueError
        For a size below 1, and as in `causal`.

    Examples
    --------
    >>> from tegula import masks
    >>> (masks.chunked(2) & masks.causal()).dense(5, 5).astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [0, 0, 1, 0, 0],
           [0, 0, 1, 1, 0],
           [0, 0, 0, 0, 1]])
    """
    if size is None:
        raise TypeError("size must be an integer, got None; full() has no chunks")
    count = count_of(size, "size", least=1)
    return Chunked(count, align, offset)


def prefix(lengths: npt.ArrayLike, align: str | None = None, offset: npt.ArrayLike | None = None) -> Mask:
    """Return the prefix-LM mask: everybody sees the prefix, and causally what follows it.

    Parameters
    ----------
    lengths : int or integer array of shape (B,)
        Keys ``j < lengths[b]`` are visible to every query of batch entry b.
    align, offset
        As in `causal`, for the keys behind the prefix.

    Returns
    -------
    Mask
        True = may attend.

    Raises
    ------
    ValueError
        For a length outside [0, k_len], and as in `causal`.

    Examples
    --------
    >>> from tegula import masks
    >>> masks.prefix(2).dense(4, 4).astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    return Prefix(lengths, align, offset)


def global_tokens(
    count: npt.ArrayLike,
    align: str | None = None,
    offset: npt.ArrayLike | None = None,
    *,
    queries: bool = True,
) -> Mask:
    """Return the mask of global tokens: every query sees the first keys, and they see every key.

    Together with a window, it is the mask of Longformer (arXiv:2004.05150) and of the like:
    ``window(256, 256) | global_tokens(4)``, with two runs of keys a row.

    Parameters
    ----------
    count : int or integer array of shape (B,)
        Tokens ``j < count[b]`` of batch entry b are global.
    align, offset
        As in `causal`: query i is the token i + shift.
    queries : bool, optional
        False: only the keys are global, and no alignment is needed.

    Returns
    -------
    Mask
        True = may attend.

    Raises
    ------
    ValueError
        For a count outside [0, k_len], and as in `causal`.

    Examples
    --------
    >>> from tegula import masks
    >>> (masks.window(1, 1) | masks.global_tokens(1)).dense(5, 5).astype(int)
    array([[1, 1, 1, 1, 1],
           [1, 1, 1, 0, 0],
           [1, 1, 1, 1, 0],
           [1, 0, 1, 1, 1],
           [1, 0, 0, 1, 1]])
    """
    return GlobalTokens(count, queries, align, offset)
