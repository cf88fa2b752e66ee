"""Tensors for results."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .. import _core
from .library import PLAIN


def empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    """`like.new_empty(shape)`, contiguous. Large ones lie in memory of the native module's pool."""
    if type(like) not in PLAIN or like.device.type != "cpu":
        return like.new_empty(shape)
    result: Tensor = _core.new_result(like, shape)
    return result
