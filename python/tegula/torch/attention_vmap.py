"""How attention's operators are mapped over a further axis: it becomes one more leading axis.

Where per-head numbers or the seed differ along it, and with dropout, whose decisions count batch
entries, the operator runs once for each entry instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Dims = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Mapped:
    """One argument list, its mapped axes brought to the front."""

    size: int
    args: list[Any]
    mapped: list[bool]

    @classmethod
    def of(cls, size: int, in_dims: Dims, args: tuple[Any, ...]) -> Mapped:
        dims = [*in_dims, *(None,) * (len(args) - len(in_dims))]
        moved = [x if d is None else x.movedim(d, 0) for x, d in zip(args, dims, strict=True)]
        return cls(size, moved, [d is not None for d in dims])

    def one_by_one(self, call: Any) -> Any:
        """Results of one call an entry, stacked."""
        results = [
            call(*(x[i] if mapped else x for x, mapped in zip(self.args, self.mapped, strict=True)))
            for i in range(self.size)
        ]
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True))

    def along(self, place: int) -> Tensor:
        """(N, ...): an argument with the mapped axis, real or expanded."""
        x: Tensor = self.args[place]
        return x if self.mapped[place] else x.expand(self.size, *x.shape)

    def rows(self, place: int, batch: int, axis: int) -> Tensor | None:
        """lo, hi or dense, whose batch entries stand at `axis`, for N * B of them."""
        x: Tensor | None = self.args[place]
        if x is None or (not self.mapped[place] and x.shape[axis] == 1):
            return x
        x = self.along(place).movedim(0, axis)
        return x.expand(*x.shape[: axis + 1], batch, *x.shape[axis + 2 :]).flatten(axis, axis + 1)

    def bias(self, place: int, rank: int, whole: bool) -> Tensor | None:
        """(N, ...) with as many axes as the scores, whose rank is `rank` without the mapped axis."""
        x: Tensor | None = self.args[place]
        if x is None or not (self.mapped[place] or whole):
            return x
        x = self.along(place)
        return x.reshape(self.size, *(1,) * (rank - x.dim() + 1), *x.shape[1:])


def _by_axis(m: Mapped, first: int, whole_bias: bool) -> tuple[list[Any], bool]:
    """The arguments of one call over all entries; q stands at `first`. Whether q had two axes."""
    args = list(m.args)
    q = m.args[first]
    q_rank = q.dim() - m.mapped[first]
    lone = q_rank == 2  # one head: the mapped axis must not be taken for heads
    batch = 1
    for size in q.shape[m.mapped[first] : -3] if not lone else ():
        batch *= size
    options = first + 3 if first == 0 else first + 5
    for place in range(options):
        args[place] = m.along(place)
        if lone:
            args[place] = args[place].unsqueeze(-2 if place == 5 else -3)
    for place in range(options, options + 2):  # with two runs a row, these come before the batch entries
        bounds = m.args[place]
        args[place] = m.rows(place, batch, 0 if bounds is None else bounds.dim() - m.mapped[place] - 3)
    args[options + 2] = m.rows(options + 2, batch, 0)
    args[options + 3] = m.bias(options + 3, max(q_rank, 3), whole_bias)
    return args, lone


def attention_vmap(
    call: Callable[..., Any], info: Any, in_dims: Dims, *args: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """The rule of `attention`, which is `call`."""
    padded = (*args, *(None, None, None, None, None, None, None, None, 0.0, 0.0, 0)[len(args) - 3 :])
    m = Mapped.of(info.batch_size, in_dims, padded)
    if any(m.mapped[7:10]) or padded[12] > 0.0:
        out, lse = m.one_by_one(call)
        return (out, lse), (0, 0)
    arguments, lone = _by_axis(m, 0, whole_bias=False)
    out, lse = call(*arguments)
    return ((out.squeeze(-3), lse.squeeze(-2)) if lone else (out, lse)), (0, 0)


def backward_vmap(
    call: Callable[..., Any], info: Any, in_dims: Dims, *args: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The rule of `attention_backward`, which is `call`. Gradients of arguments that are not mapped are mapped too."""
    defaults = (None, None, None, None, None, None, None, None, 0.0, 0.0, 0, False, False, None)
    padded = (*args, *defaults[len(args) - 6 :])
    m = Mapped.of(info.batch_size, in_dims, padded)
    bias, bias_grad, sinks_grad = padded[9], padded[17], padded[18]
    if any(m.mapped[10:13]) or padded[15] > 0.0 or sinks_grad:
        return m.one_by_one(call), (0,) * 5
    arguments, lone = _by_axis(m, 1, whole_bias=bias_grad)
    if padded[19] is not None:
        arguments[19] = m.along(19).unsqueeze(-2) if lone else m.along(19)
    dq, dk, dv, dbias, dsinks = call(*arguments)
    if lone:
        dq, dk, dv = dq.squeeze(-3), dk.squeeze(-3), dv.squeeze(-3)
    if bias is not None and bias_grad:
        shape = m.args[9].shape[1:] if m.mapped[9] else m.args[9].shape
        dbias = dbias.reshape(info.batch_size, *shape)
    else:
        dbias = dbias.expand(info.batch_size, 0)
    return (dq, dk, dv, dbias, dsinks.expand(info.batch_size, 0)), (0,) * 5
