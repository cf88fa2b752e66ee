"""The mask object: what every kind shares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, TypeAlias

import numpy as np

from .. import checks
from . import _native, _picture
from ._arrays import NUMPY, Rows
from ._inputs import Bools, frozen, is_tensor, length_of, opened
from ._runs import hull

Lowered: TypeAlias = "tuple[Rows, Rows, Bools | None]"


class Mask:
    """Which keys a query may see. True means "may attend".

    Made by the functions of `tegula.masks`, combined with ``&`` (what both show) and ``|`` (what either
    shows), never changed. A mask knows its rule, not its size: the lengths come with each call.

    Every mask is, per query row, one half-open interval of keys, or two: memory is proportional to the
    length, not to its square. A mask that has rows of more than two runs of keys adds a bool array.

    Examples
    --------
    >>> from tegula import masks
    >>> mask = masks.causal() & masks.padding([2, 4])
    >>> mask
    masks.causal() & masks.padding([2, 4])
    >>> mask.dense(4, 4)[0, 0].astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 0, 0]])
    """

    # The batch entries and heads it tells apart (1: the same for all), the last results of `_lower`
    # and `_lower_torch` with what they were made for, and how it was written: name, arguments, options.
    # The device of the tensors it was made of, None without any; and whether all it holds is numbers
    # and arrays: tensors that can be read became arrays.
    __slots__ = ("_batch", "_device", "_heads", "_last", "_last_torch", "_readable", "_written")
    __array_ufunc__: ClassVar[None] = None  # array & mask comes here instead of to NumPy

    _batch: int
    _heads: int
    _last: tuple[tuple[int, int, int, int], Lowered] | None
    _last_torch: tuple[Any, Any] | None
    _written: tuple[str, tuple[Any, ...], dict[str, Any]]
    _device: Any
    _readable: bool

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _begin(
        self,
        name: str,
        *arguments: Any,
        batch: int = 1,
        heads: int = 1,
        given: tuple[Any, ...] = (),
        **options: Any,
    ) -> None:
        """Set what every kind has. An option that is None was not given.

        `given`: the arguments as the caller handed them over, for the device.
        """
        device, readable = None, True
        for value in given:
            if is_tensor(value):
                device = value.device if device is None else device
                readable = readable and not is_tensor(opened(value))
        self._set(
            _written=(name, arguments, options),
            _batch=batch,
            _heads=heads,
            _device=device,
            _readable=readable,
            _last=None,
            _last_torch=None,
        )

    # -- for each kind to say -------------------------------------------------------------------

    def _rows(self, on: Any, heads: int, q_len: int, k_len: int) -> Any:
        """(lo, hi, dense) as `_lower` returns them, said in the words of `_arrays`, after the kind's checks."""
        raise NotImplementedError

    def _batch_error(self, batch: int) -> str:
        """Which argument has more batch entries than the call."""
        raise NotImplementedError

    def _sizes(self) -> tuple[int | None, int | None]:
        """(q_len, k_len) where the mask's own arrays fix them."""
        return None, None

    def _reach(self) -> int:
        """A length at which a picture shows what the mask does, where nothing fixes it."""
        return 16

    # -- for attention --------------------------------------------------------------------------

    def _lower(self, batch: int, heads: int, q_len: int, k_len: int) -> Lowered:
        """The normal form: (lo, hi, dense).

        lo, hi: int32, rank 3, broadcastable to (batch, heads, q_len), both in [0, k_len]; a row
        without keys has hi <= lo. Or rank 4, for two runs of keys, see `_runs`. dense: None, or bool
        of rank 4, broadcastable to (batch, heads, q_len, k_len); a key is visible when it lies in an
        interval AND dense says so.
        ValueError when an array that the mask holds does not fit. The last result is kept: nobody
        may write to it.
        """
        key = (batch, heads, q_len, k_len)
        last = self._last
        if last is not None and last[0] == key:
            return last[1]
        lowered: Lowered = self._fitted(NUMPY, batch, heads, q_len, k_len)
        object.__setattr__(self, "_last", (key, lowered))
        return lowered

    def _lower_torch(self, batch: int, heads: int, q_len: int, k_len: int, device: Any) -> Any:
        """What `_lower` returns, as tensors on `device` (a torch.device); torch.compile and export trace it."""
        from . import _torch

        return _torch.lower(self, batch, heads, q_len, k_len, device)

    def _fitted(self, on: Any, batch: int, heads: int, q_len: int, k_len: int) -> Any:
        if self._batch != 1 and self._batch != batch:
            raise ValueError(self._batch_error(batch))
        return self._rows(on, heads, q_len, k_len)

    # -- for everybody --------------------------------------------------------------------------

    def intervals(self, q_len: int, k_len: int) -> tuple[Any, Any]:
        """Return where the keys of each query row begin and end: [lo, hi).

        Parameters
        ----------
        q_len, k_len : int
            Number of queries and keys.

        Returns
        -------
        lo, hi : ndarray of int32, read-only
            Broadcastable to (B, H, q_len), with size 1 where the mask is the same along an axis. A row
            without any key has ``hi <= lo``. When the visible keys of a row are not consecutive, its
            interval reaches from the first to the last of them; `runs` tells two runs apart.

        Raises
        ------
        ValueError
            When lengths do not fit the mask.

        Examples
        --------
        >>> from tegula import masks
        >>> lo, hi = masks.sliding(2).intervals(4, 4)
        >>> lo, hi
        (array([[[0, 0, 1, 2]]], dtype=int32), array([[[1, 2, 3, 4]]], dtype=int32))
        """
        if self._device is not None:
            from . import _torch

            return _torch.intervals(self, q_len, k_len)
        lo, hi, _ = self._of_lengths(q_len, k_len)
        lo, hi = hull(NUMPY, lo, hi)
        return frozen(lo.view()), frozen(hi.view())

    def runs(self, q_len: int, k_len: int) -> tuple[Any, Any]:
        """Return the normal form: the runs [lo, hi) of consecutive keys that each query row sees.

        Parameters
        ----------
        q_len, k_len : int
            Number of queries and keys.

        Returns
        -------
        lo, hi : ndarray of int32, read-only
            Shape (runs, B, H, q_len), with one run, or two that follow each other, and size 1 where
            the mask is the same along an axis. A row that has no such run has ``hi <= lo``. A row that
            would need more than two shows one, from its first key to its last: what it sees between
            them only `dense` says.

        Examples
        --------
        >>> from tegula import masks
        >>> lo, hi = masks.sliding(2, sinks=1).runs(5, 5)
        >>> lo[:, 0, 0]
        array([[0, 0, 0, 0, 0],
               [1, 2, 3, 2, 3]], dtype=int32)
        >>> hi[:, 0, 0]
        array([[1, 2, 3, 1, 1],
               [1, 2, 3, 4, 5]], dtype=int32)
        """
        if self._device is not None:
            from . import _torch

            return _torch.runs(self, q_len, k_len)
        lo, hi, _ = self._of_lengths(q_len, k_len)
        if lo.ndim == 3:
            lo, hi = lo[None], hi[None]
        return frozen(lo.view()), frozen(hi.view())

    def dense(self, q_len: int, k_len: int) -> Any:
        """Return the mask as a bool array, True = may attend.

        Parameters
        ----------
        q_len, k_len : int
            Number of queries and keys.

        Returns
        -------
        ndarray of bool
            Shape (q_len, k_len), or (B or 1, H or 1, q_len, k_len) when the mask tells batch entries
            or heads apart. `tegula.masks.dense` takes both.

        Examples
        --------
        >>> from tegula import masks
        >>> masks.causal(align="bottom_right").dense(2, 4).astype(int)
        array([[1, 1, 1, 0],
               [1, 1, 1, 1]])
        """
        if self._device is not None:
            from . import _torch

            return _torch.dense(self, q_len, k_len)
        out = _native.empty(self._shape(q_len, k_len), np.bool_)
        _native.fill(out, *self._of_lengths(q_len, k_len))
        return out

    def additive(self, q_len: int, k_len: int, dtype: Any = "float32") -> Any:
        """Return the mask as floats to add to scores: 0 = may attend, -inf = may not.

        Parameters
        ----------
        q_len, k_len : int
            Number of queries and keys.
        dtype : dtype
            float64, float32, float16 or ``ml_dtypes.bfloat16``.

        Returns
        -------
        ndarray
            Shaped as `dense`.

        Examples
        --------
        >>> from tegula import masks
        >>> masks.causal().additive(2, 2)
        array([[  0., -inf],
               [  0.,   0.]], dtype=float32)
        """
        if self._device is not None:
            from . import _torch

            return _torch.additive(self, q_len, k_len, dtype)
        out = _native.empty(self._shape(q_len, k_len), checks.float_dtype(dtype))
        _native.fill(out, *self._of_lengths(q_len, k_len))
        return out

    def area(self, q_len: int, k_len: int) -> Any:
        """Return the number of visible (query, key) pairs, over the batch entries and heads of `dense`.

        Examples
        --------
        >>> from tegula import masks
        >>> masks.causal().area(4, 4), masks.padding([2, 4]).area(4, 4)
        (10, 24)
        """
        if self._device is not None:
            from . import _torch

            return _torch.area(self, q_len, k_len)
        lo, hi, dense = self._of_lengths(q_len, k_len)
        if dense is not None:
            return int(np.count_nonzero(self.dense(q_len, k_len)))
        counts = np.maximum(np.subtract(hi, lo, dtype=np.int64), 0)
        rows = self._batch * self._heads * q_len * (2 if counts.ndim == 4 else 1)
        return int(counts.sum()) * (rows // counts.size) if counts.size else 0

    def _of_lengths(self, q_len: int, k_len: int) -> Lowered:
        return self._lower(self._batch, self._heads, length_of(q_len, "q_len"), length_of(k_len, "k_len"))

    def _shape(self, q_len: int, k_len: int) -> tuple[int, ...]:
        pair = (length_of(q_len, "q_len"), length_of(k_len, "k_len"))
        return pair if self._batch == self._heads == 1 else (self._batch, self._heads, *pair)

    def __and__(self, other: Any) -> Mask:
        from ._combined import And

        return And((self, other))

    def __or__(self, other: Any) -> Mask:
        from ._combined import Or

        return Or((self, other))

    __rand__ = __and__
    __ror__ = __or__

    def __invert__(self) -> Mask:
        raise TypeError("masks have no ~: they say what may be attended to; masks.dense(~array) turns an array round")

    def __repr__(self) -> str:
        name, arguments, options = self._written
        words = [shown(value) for value in arguments]
        words += [f"{key}={shown(value)}" for key, value in options.items() if value is not None]
        return f"masks.{name}({', '.join(words)})"

    def _repr_svg_(self) -> str | None:
        return _picture.svg(self) if self._readable else None

    # Notebooks and GitHub show SVG; builders of documentation ask for HTML alone.
    _repr_html_ = _repr_svg_

    # -- objects that never change --------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a mask cannot be changed, and {name!r} of it was to be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a mask cannot be changed, and {name!r} of it was to be deleted")

    def __bool__(self) -> bool:
        raise TypeError("a mask is neither true nor false; masks combine with &, not with 'and'")

    def __copy__(self) -> Mask:
        return self

    def __deepcopy__(self, memo: Any) -> Mask:
        return self

    def __getstate__(self) -> dict[str, Any]:
        names = (name for kind in type(self).__mro__ for name in getattr(kind, "__slots__", ()))
        return {name: getattr(self, name) for name in names} | {"_last": None, "_last_torch": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._set(**state)


def common(counts: Iterable[tuple[Any, int]], what: str) -> int:
    """The one count other than 1 that all share, or ValueError with two that differ."""
    found: tuple[Any, int] | None = None
    for name, count in counts:
        if count == 1:
            continue
        if found is not None and found[1] != count:
            raise ValueError(f"{found[0]} has {found[1]} {what}, but {name} has {count}")
        found = (name, count)
    return 1 if found is None else found[1]


class Described:
    """An argument too large to keep: what a repr says of it."""

    __slots__ = ("device", "dtype", "shape")

    def __init__(self, value: Any) -> None:
        self.dtype, self.shape = value.dtype, tuple(value.shape)
        self.device = value.device if is_tensor(value) else None

    def __repr__(self) -> str:
        if self.device is None:
            return f"<{self.dtype} array of shape {self.shape}>"
        return f"<{self.dtype} tensor of shape {self.shape} on {self.device}>"


def shown(value: Any) -> str:
    """An argument as a repr shows it."""
    if isinstance(value, np.ndarray) and value.size <= 8:
        return str(value.tolist())
    return repr(Described(value) if isinstance(value, np.ndarray) or is_tensor(value) else value)
