"""Products over the visible pairs alone: what is at a hidden pair may be NaN and is never multiplied.

The two products are each other's derivatives, so they have derivatives of any order. Both work in the
types they are given, also inside autocast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Pair(torch.autograd.Function):
    """x_i . y_j at visible pairs, 0 at hidden ones."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return torch.where(seen, x @ y.mT, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, seen = ctx.saved_tensors
        return (
            weigh(grad, y, seen) if ctx.needs_input_grad[0] else None,
            weigh(grad.mT, x, seen.mT) if ctx.needs_input_grad[1] else None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, tx: Tensor | None, ty: Tensor | None, _: None) -> Tensor | None:
        x, y, seen = ctx.saved_tensors
        first = None if tx is None else pair(tx, y, seen)
        second = None if ty is None else pair(x, ty, seen)
        return _sum(first, second)


class Weigh(torch.autograd.Function):
    """sum_j a_ij y_j over visible pairs; NaN where one of them has a y_j that is not finite."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, y: Tensor, seen: Tensor) -> Tensor:
        finite = y.isfinite()
        with torch.autocast(a.device.type, enabled=False):
            total = torch.where(seen, a, 0.0) @ torch.where(finite, y, 0.0)
            spoilt = seen.to(a.dtype) @ (~finite).to(a.dtype)
        return torch.where(spoilt > 0, torch.nan, total)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, y, seen = ctx.saved_tensors
        return (
            pair(grad, y, seen) if ctx.needs_input_grad[0] else None,
            weigh(a.mT, grad, seen.mT) if ctx.needs_input_grad[1] else None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, ta: Tensor | None, ty: Tensor | None, _: None) -> Tensor | None:
        a, y, seen = ctx.saved_tensors
        first = None if ta is None else weigh(ta, y, seen)
        second = None if ty is None else weigh(a, ty, seen)
        return _sum(first, second)


def pair(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    """(..., I, D) and (..., J, D) to (..., I, J)."""
    result: Tensor = Pair.apply(x, y, seen)
    return result


def weigh(a: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    """(..., I, J) and (..., J, D) to (..., I, D)."""
    result: Tensor = Weigh.apply(a, y, seen)
    return result


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second
