"""Polite checks of options: the right kind first, then the value, each error naming both."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np


def is_tensor(value: Any) -> bool:
    """Whether `value` is a tensor of torch, which only whoever made it has imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


_CUDA, _MANAGED = 2, 13  # DLPack's numbers for kinds of devices


def is_device_array(value: Any) -> bool:
    """Whether `value` is an array on a GPU, of another library than torch."""
    if isinstance(value, np.ndarray) or not hasattr(type(value), "__dlpack_device__") or is_tensor(value):
        return False
    kind, _ = value.__dlpack_device__()
    return int(kind) in (_CUDA, _MANAGED)


def array_functions() -> Any:
    """The module `tegula.device_arrays`, imported when the first such array comes."""
    from . import device_arrays

    return device_arrays


_tensor_functions: Any = None


def tensor_functions() -> Any:
    """The module `tegula.torch`, imported when the first tensor comes."""
    global _tensor_functions
    if _tensor_functions is None:
        from . import torch

        _tensor_functions = torch
    return _tensor_functions


def integer(value: Any, name: str) -> int:
    """`value` as an int; bool and float are not integers."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    return int(value)


def size(value: Any, name: str) -> int:
    """`value` as the extent of an axis."""
    number = integer(value, name)
    if not 0 <= number < 2**63:
        raise ValueError(f"{name} must lie in [0, 2**63), got {number}")
    return number


def real(value: Any, name: str) -> float:
    """`value` as a finite float; bool is not a number."""
    numbers = (int, float, np.integer, np.floating)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not -math.inf < result < math.inf:  # NaN neither; unlike isfinite, torch.compile can trace it
        raise ValueError(f"{name} must be finite, got {result}")
    return result


def choice(value: Any, name: str, options: tuple[str, ...]) -> str:
    """`value` if it is one of `options`."""
    if isinstance(value, str) and value in options:
        return value
    expected = " or ".join(repr(option) for option in options)
    raise ValueError(f"{name} must be {expected}, got {value!r}")


def dropout(p: Any, seed: Any, name: str = "dropout_p") -> tuple[float, int]:
    """The probability in [0, 1] and the seed in [0, 2**64) that it needs when it is not 0."""
    probability = real(p, name)
    if not 0 <= probability <= 1:
        raise ValueError(f"{name} must lie in [0, 1], got {probability}")
    if seed is None:
        if probability > 0:
            raise ValueError(f"{name}={probability} needs a seed, got None")
        return probability, 0
    number = integer(seed, "seed")
    if not 0 <= number < 2**64:
        raise ValueError(f"seed must lie in [0, 2**64), got {number}")
    return probability, number


def integers(value: Any, name: str) -> np.ndarray:
    """`value` as an array of an integer type: an array, a list, a tuple or an int."""
    if not isinstance(value, (np.ndarray, list, tuple, int, np.integer)):
        kind = type(value)
        raise TypeError(f"{name} must be integers in an array or a list, got {kind.__module__}.{kind.__name__}")
    array = np.asarray(value)
    if array.size == 0 and not isinstance(value, np.ndarray):
        array = array.astype(np.int64)  # [] says nothing about its type
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must have an integer dtype, got {array.dtype}")
    return array


def float_dtype(dtype: Any) -> np.dtype[Any]:
    """`dtype` as one of the four that results may have, in native byte order."""
    if isinstance(dtype, str) and dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError("dtype bfloat16 needs the package ml_dtypes") from None
        dtype = ml_dtypes.bfloat16
    found: np.dtype[Any] = np.dtype(dtype)
    if found.name not in ("float64", "float32", "float16", "bfloat16"):
        raise TypeError(f"dtype must be float64, float32, float16 or bfloat16, got {found}")
    native: np.dtype[Any] = found.newbyteorder("=")
    return native


def flag(value: Any, name: str) -> bool:
    """`value` if it is a bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return bool(value)


def kind(value: Any) -> str:
    """The type of `value` as an error names it: "list", "torch.Tensor"."""
    found = type(value)
    return found.__name__ if found.__module__ == "builtins" else f"{found.__module__}.{found.__name__}"
