"""Masks given as bool arrays, which become intervals wherever their rows are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _native
from ._inputs import Bools, bools, described, is_tensor, no_mask, opened
from ._mask import Described, Mask

SHAPES = "(Lq, Lk), (B, 1, Lq, Lk), (1, H, Lq, Lk) or (B, H, Lq, Lk)"


class Dense(Mask):
    """What a bool array says. Keeps the array only when some row is not one run of keys."""

    __slots__ = ("_array", "_hi", "_lo", "_shape_given")

    _array: Any  # (B, H, Lq, Lk), or None
    _lo: Any  # (B, H, Lq)
    _hi: Any
    _shape_given: tuple[int, ...]

    def __init__(self, array: Any, *, copy: bool = True) -> None:
        given, array = array, opened(array)
        shape = tuple(array.shape)
        if len(shape) not in (2, 4):
            hint = (
                "; one mask for each batch entry is array[:, None], for each head array[None]"
                if len(shape) == 3
                else ""
            )
            raise ValueError(
                f"a bool mask must have shape {SHAPES}, got {shape}{hint}; "
                "which keys are real is masks.padding(keep=...)"
            )
        batch, heads = (1, 1) if len(shape) == 2 else shape[:2]
        self._begin("dense", Described(given), batch=batch, heads=heads, given=(given,))
        array = array.reshape(batch, heads, *shape[-2:])
        if not is_tensor(array):
            array = once_along_stride_0(array)
        elif copy:
            array = array.clone()
        lo, hi, irregular = _native.scan(array)
        if not irregular:
            array = None
        elif copy and not is_tensor(array):
            array = array.copy()
        self._set(_shape_given=shape, _lo=lo, _hi=hi, _array=array)

    def _rows(self, on: Any, heads: int, q_len: int, k_len: int) -> Any:
        if self._shape_given[-2:] != (q_len, k_len):
            raise ValueError(
                f"mask has shape {self._shape_given}, but its last two axes must be "
                f"(q_len, k_len) = ({q_len}, {k_len}); which keys are real, an array of shape "
                "(B, Lk), is masks.padding(keep=...)"
            )
        if self._heads not in (1, heads):
            raise ValueError(f"mask has shape {self._shape_given}, but axis 1 must be 1 or the {heads} query heads")
        return on.array(self._lo), on.array(self._hi), None if self._array is None else on.array(self._array)

    def _batch_error(self, batch: int) -> str:
        return f"mask has shape {self._shape_given}, but axis 0 must be 1 or the {batch} batch entries"

    def _sizes(self) -> tuple[int | None, int | None]:
        return self._shape_given[-2], self._shape_given[-1]


def once_along_stride_0(array: Bools) -> Bools:
    """(B, H, Lq, Lk), an axis along which nothing changes cut to size 1; never the last one."""
    cut = tuple(
        slice(0, 1) if stride == 0 and size > 1 else slice(None)
        for size, stride in zip(array.shape[:-1], array.strides, strict=False)
    )
    return array[cut]


def check_is_bool(value: Any) -> Any:
    """`value` when it is a bool array; TypeError, saying what to do, when it is anything else."""
    if is_tensor(value):
        from . import _torch

        return _torch.mask_bools(value)
    if not isinstance(value, np.ndarray):
        raise TypeError(f"mask must be a mask of tegula.masks or a bool array, got {no_mask(value)}")
    if value.dtype.kind == "b":
        return value
    kind = described(value, value)
    if value.dtype.kind == "f" or value.dtype.name.startswith("bfloat16"):
        raise TypeError(f"mask must be bool, True = may attend, got {kind}; numbers to add to the scores go to bias=")
    if value.dtype.kind in "iu":
        raise TypeError(
            f"mask must be bool, True = may attend, got {kind}; if 1 means may attend, .astype(bool) makes it one"
        )
    raise TypeError(f"mask must be bool, True = may attend, got {kind}")


def as_mask(value: Any) -> Mask:
    """Return a mask: a mask object as it is, a bool array as `dense` of it, for use in one call.

    Parameters
    ----------
    value : Mask or bool ndarray
        The array is looked at, not copied.

    Raises
    ------
    TypeError
        For anything else: floats belong into ``bias=``, integers need ``.astype(bool)``.
    ValueError
        For a bool array of another shape than `dense` takes.

    Examples
    --------
    >>> import numpy as np
    >>> from tegula import masks
    >>> masks.as_mask(np.ones((2, 3), bool))
    masks.dense(<bool array of shape (2, 3)>)
    """
    if isinstance(value, Mask):
        if value._device is not None:
            raise TypeError(f"mask {value!r} is made of torch tensors, and works with tensors only")
        return value
    return Dense(check_is_bool(value), copy=False)


def dense(array: npt.ArrayLike) -> Mask:
    """Return the mask that a bool array spells out. True means "may attend".

    Parameters
    ----------
    array : bool array
        Shape (Lq, Lk), (B, 1, Lq, Lk), (1, H, Lq, Lk) or (B, H, Lq, Lk); no others. Any strides; an
        axis of stride 0 (``numpy.broadcast_to``) is looked at once. Which keys are real, an array of
        shape (B, Lk), belongs into `padding`: where B happens to be Lq, its shape cannot tell.

    Returns
    -------
    Mask
        When the visible keys of every row are consecutive, the mask keeps only where they begin and
        end. Otherwise it keeps a copy of the array too.

    Raises
    ------
    TypeError
        When the array is not bool.
    ValueError
        For any other shape.

    Examples
    --------
    >>> import numpy as np
    >>> from tegula import masks
    >>> masks.dense(np.tri(4, dtype=bool)).intervals(4, 4)[1]
    array([[[1, 2, 3, 4]]], dtype=int32)
    """
    if isinstance(array, np.ndarray) or is_tensor(array):
        return Dense(check_is_bool(array))
    return Dense(bools(array, "array"))
