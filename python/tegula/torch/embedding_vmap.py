"""How the embedding's operators are mapped over a further axis.

Ids, positions and segments get one more leading axis; gradients of the same ids stand side by side as
columns. Where tables differ along the axis, and with dropout, whose decisions count rows and columns,
the operator runs once for each entry instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .attention_vmap import Mapped

Dims = tuple[Any, ...]

# The operators' arguments behind ids and weight, and behind grad, ids and num_rows.
DEFAULTS = (-1, False, None, 1.0, None, None, False, None, None, None, 0.0)
BACKWARD_DEFAULTS = (-1, None, 1.0, None, 0.0)


def embedding_vmap(call: Callable[..., Any], info: Any, in_dims: Dims, *args: Any) -> tuple[Tensor, int]:
    """The rule of `embedding`, which is `call`."""
    padded = (*args, *DEFAULTS[len(args) - 2 :])
    m = Mapped.of(info.batch_size, in_dims, padded)
    if m.mapped[1] or m.mapped[7] or m.mapped[10] or padded[12] > 0.0:
        return _one_by_one(call, m), 0
    arguments = list(m.args)
    ids = m.along(0)
    # Single ids stand at position 0 each; in a row they would be 0, 1, ...
    single = ids.dim() == 1 and padded[6] is None
    arguments[0] = ids = ids[:, None] if single else ids
    for place in (6, 9):
        if m.mapped[place]:
            x = m.args[place]
            arguments[place] = x.reshape(x.shape[0], *(1,) * (ids.dim() - x.dim()), *x.shape[1:])
    result = call(*arguments)
    return result.squeeze(1) if single else result, 0


def backward_vmap(call: Callable[..., Any], info: Any, in_dims: Dims, *args: Any) -> tuple[Tensor, int]:
    """The rule of `embedding_backward`, which is `call`."""
    padded = (*args, *BACKWARD_DEFAULTS[len(args) - 3 :])
    m = Mapped.of(info.batch_size, in_dims, padded)
    grad, dropout_p = m.args[0], padded[7]
    if any(m.mapped[1:]) or dropout_p > 0.0:
        return _one_by_one(call, m), 0
    columns = grad.movedim(0, -2)
    rows = call(columns.flatten(-2), *m.args[1:])
    return rows.reshape(*rows.shape[:-1], *columns.shape[-2:]), 1


def _one_by_one(call: Callable[..., Any], m: Mapped) -> Tensor:
    result: Tensor
    if m.size == 0:  # one entry of zeros says the shape and keeps the graph
        entry = (_zeros(x) if mapped else x for x, mapped in zip(m.args, m.mapped, strict=True))
        result = call(*entry)[None][:0]
        return result
    (result,) = m.one_by_one(lambda *args: (call(*args),))
    return result


def _zeros(x: Tensor) -> Tensor:
    """An entry of (0, ...); a sum, which has a gradient, of floats."""
    return x.sum(0) if x.is_floating_point() else x.new_zeros(x.shape[1:])
