"""Tensors for results. Large ones lie in memory of the native module's pool."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import _core

PLAIN = (Tensor, torch.nn.Parameter)  # not those that stand for other tensors, without memory


def from_pool(like: Tensor) -> bool:
    """Whether results like this tensor may lie in the pool."""
    return type(like) in PLAIN and like.device.type == "cpu"


def empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    """`like.new_empty(shape)`, contiguous."""
    if not from_pool(like):
        return like.new_empty(shape)
    count = math.prod(shape) * like.element_size()
    if count < _core.pooled_bytes:
        return like.new_empty(shape)
    pooled: Tensor = torch.from_numpy(_core.new_bytes(count)).view(like.dtype).view(shape)
    return pooled


def empty_like(like: Tensor) -> Tensor:
    """`torch.empty_like(like)`: the axes in memory in the order of `like`'s."""
    if not from_pool(like) or like.nbytes < _core.pooled_bytes:
        return torch.empty_like(like)
    if like.is_contiguous():
        return empty(like, like.shape)
    order = sorted(range(like.dim()), key=like.stride, reverse=True)  # stable: ties stay
    made = empty(like, [like.shape[axis] for axis in order])
    return made.permute([order.index(axis) for axis in range(like.dim())])
