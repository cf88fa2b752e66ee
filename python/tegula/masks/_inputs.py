"""What callers hand to a mask, checked and brought to one form: arrays of our own."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# Every axis is shorter, because intervals are int32.
LONGEST = 2**31 - 1
# Farther shifts are mistakes; within them no sum leaves int64.
FARTHEST = 2**40


def opened(value: Any) -> Any:
    """`value` for NumPy to read: of a tensor on the CPU, its array.

    A tensor whose numbers cannot be read stays one: on another device, or while a call is traced
    (then lists and numbers become tensors too). Torch is only looked for where it is loaded.
    """
    torch = sys.modules.get("torch")
    if torch is None or not (isinstance(value, torch.Tensor) or torch.compiler.is_compiling()):
        return value
    from . import _torch

    return _torch.opened(value)


def is_tensor(value: Any) -> bool:
    """Whether `opened` left a tensor."""
    return hasattr(value, "__torch_function__")


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`array`, from now on read-only."""
    array.setflags(write=False)
    return array


def as_rows(array: Any) -> Any:
    """(..., L) -> (B, L): several leading axes count as one."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def no_mask(value: Any) -> str:
    """What was given for a mask, in words; a mask's maker may only lack its parentheses."""
    kind = type(value).__name__
    if kind == "function":
        return f"function {value.__name__}, which has to be called"
    return f"{kind} {value!r}" if isinstance(value, str) else kind


def integers(value: Any, name: str) -> Any:
    """An integer array (or tensor, see `opened`) of any kind and shape, or TypeError."""
    value = opened(value)
    if is_tensor(value):
        from . import _torch

        return _torch.integers(value, name)
    array = np.asarray(value)
    if array.size == 0 and not isinstance(value, np.ndarray):  # an empty list has no type of its own
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got {described(value, array)}")
    return array


def bools(value: Any, name: str) -> Any:
    """A bool array (or tensor) of any shape, or TypeError; not copied."""
    if is_tensor(value):
        from . import _torch

        _torch.bools(value, name)
    value = opened(value)
    if is_tensor(value):
        return value
    array = np.asarray(value)
    if array.dtype.kind != "b":
        hint = "; .astype(bool) makes it one" if array.dtype.kind in "iu" else ""
        raise TypeError(f"{name} must be a bool array, True = real, got {described(value, array)}{hint}")
    return array


def described(value: Any, array: npt.NDArray[Any]) -> str:
    """How an error message calls `value`, which np.asarray made `array`."""
    if isinstance(value, np.ndarray) or (array.ndim > 0 and array.dtype.kind in "biuf"):
        return f"{array.dtype} array of shape {array.shape}"
    return type(value).__name__


def one_integer(value: Any, name: str) -> int:
    """`value` as an int; bool and float raise TypeError."""
    if type(value) is int:
        return value
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    return int(value)


def length_of(value: Any, name: str) -> int:
    """The length of an axis."""
    length = one_integer(value, name)
    if not 0 <= length <= LONGEST:
        raise ValueError(f"{name} must lie in [0, {LONGEST}], got {length}")
    return length


def named_element(array: npt.NDArray[Any], name: str, bad: npt.NDArray[Any]) -> str:
    """The first bad element, for example ``lengths[2, 1] is -3``."""
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    place = f"[{', '.join(map(str, index))}]" if index else ""
    return f"{name}{place} is {array[index]}"


def lengths_of(value: Any, name: str) -> Any:
    """Lengths of any shape as int64, none of them negative."""
    array = integers(value, name)
    if is_tensor(array):
        return array
    lengths = array.astype(np.int64)
    if lengths.size and lengths.min() < 0:  # also beyond int64
        raise ValueError(f"{named_element(array, name, lengths < 0)}, outside [0, {LONGEST}]")
    return lengths


def check_lengths(lengths: Integers, name: str, longest: int, axis: str) -> None:
    """ValueError unless every length fits an axis of `longest`."""
    if lengths.size and lengths.max() > longest:
        raise ValueError(
            f"{named_element(lengths, name, lengths > longest)}, outside [0, {longest}]: {axis} is {longest}"
        )


def offset_of(value: Any) -> Any:
    """One shift as an int, or one per batch entry as int64."""
    if type(value) is int and -FARTHEST <= value <= FARTHEST:
        return value
    array = integers(value, "offset")
    if is_tensor(array):
        return array
    if array.size and (array.min() < -FARTHEST or array.max() > FARTHEST):
        bad = (array < -FARTHEST) | (array > FARTHEST)
        raise ValueError(f"{named_element(array, 'offset', bad)}, outside [-2**40, 2**40]")
    return int(array) if array.ndim == 0 else array.astype(np.int64)


def reach_of(value: Any, name: str) -> int | None:
    """How far a window reaches; None is unlimited."""
    return None if value is None else count_of(value, name, or_none=" or None", unlimited="; None is unlimited")


def count_of(value: Any, name: str, least: int = 0, *, or_none: str = "", unlimited: str = "") -> int:
    """A number of tokens."""
    try:
        count = one_integer(value, name)
    except TypeError:
        raise TypeError(f"{name} must be an integer{or_none}, got {type(value).__name__}") from None
    if count < least:
        raise ValueError(f"{name} must be at least {least}, got {count}{unlimited}")
    return min(count, 2 * FARTHEST)


def window_of(value: Any) -> tuple[int | None, int | None]:
    """The pair (left, right) of a window."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"window must be a pair (left, right), got {value!r}")
    return reach_of(value[0], "window[0]"), reach_of(value[1], "window[1]")


def borders_of(value: Any, name: str) -> Any:
    """cu_seqlens: where documents begin and end in a packed row."""
    array = integers(value, name)
    if array.ndim != 1 or array.shape[0] == 0:
        raise ValueError(f"{name} must have shape (documents + 1,), at least (1,), got shape {tuple(array.shape)}")
    if is_tensor(array):
        return array
    if array[0] != 0:
        raise ValueError(f"{name}[0] is {array[0]}: the first document begins at 0")
    falls = array[1:] < array[:-1]
    if falls.any():
        i = int(np.argmax(falls))
        raise ValueError(f"{name} decreases: {name}[{i}] is {array[i]} and {name}[{i + 1}] is {array[i + 1]}")
    if array[-1] > LONGEST:
        raise ValueError(f"{name}[-1] is {array[-1]}, more than {LONGEST}")
    return array.astype(np.int64)


def check_borders(borders: Integers, name: str, length: int, axis: str) -> None:
    """ValueError unless the last document ends where the axis does."""
    if borders[-1] != length:
        raise ValueError(
            f"{name} ends at {borders[-1]}, but {axis} is {length}: the last document must end where the row does; "
            'for one packed row (T, H, D), attention takes layout="lhd"'
        )
