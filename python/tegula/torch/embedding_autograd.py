"""Gradients of the embedding's operators, for autograd, forward-mode differentiation and `torch.func`.

The embedding is linear in its tables, and its gradient in what it is given: each operator's derivative
is the other one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _core
from . import embedding_kernels as kernels
from .attention_autograd import derivative_is_wanted
from .embedding_vmap import backward_vmap, embedding_vmap
from .library import direct

_grad_enabled = torch.is_grad_enabled


class EmbeddingFunction(torch.autograd.Function):
    """Arguments and result of the operator `embedding`."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        if direct():
            try:
                return kernels.embedding(None, *args)
            except _core.NotPlainError:
                pass
        with torch._C._AutoDispatchBelowAutograd():
            result: Tensor = torch.ops.tegula.embedding.default(*args)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        (
            ids, weight, ctx.padding_idx, ctx.zero_pads, ctx.ignore_id, ctx.scale, positions, position_table,
            ctx.sinusoidal, segments, segment_table, seed, ctx.dropout_p,
        ) = inputs  # fmt: skip
        if ctx.needs_input_grad[6]:
            raise RuntimeError(
                "positions requires grad, but embedding computes no gradient for it; pass positions.detach()"
            )
        tables = (weight, position_table, segment_table)
        ctx.tables = [None if table is None else (table.shape, table.dtype) for table in tables]
        ctx.save_for_backward(ids, positions, segments, seed)
        ctx.save_for_forward(ids, positions, segments, seed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        ids, positions, segments, seed = ctx.saved_tensors
        found: list[Tensor | None] = [None] * 13
        for place, index, table in zip((1, 7, 10), (ids, positions, segments), ctx.tables, strict=True):
            if not ctx.needs_input_grad[place]:
                continue
            (rows, _), dtype = table
            pad, ignored, scale = -1, -1, 1.0
            if place == 1:
                pad, ignored, scale = ctx.padding_idx, ctx.ignore_id, ctx.scale
            else:
                index = _audible(ctx, ids, index)
            wide = grad.to(torch.promote_types(grad.dtype, dtype))
            found[place] = backward_call(wide, index, rows, pad, ignored, scale, seed, ctx.dropout_p).to(dtype)
        return tuple(found)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        ids, positions, segments, seed = ctx.saved_tensors
        if tangents[6] is not None:
            raise RuntimeError("positions have a tangent, but embedding computes no derivative for them")
        weight, table, segment_table = tangents[1], tangents[7], tangents[10]
        if weight is None:
            shape, dtype = ctx.tables[0]
            weight = ids.new_zeros((1, 1), dtype=dtype).expand(shape)
        return embedding_call(
            ids, weight, ctx.padding_idx, ctx.zero_pads, ctx.ignore_id, ctx.scale,
            positions if table is not None else None, table, False,
            segments if segment_table is not None else None, segment_table, seed, ctx.dropout_p,
        )  # fmt: skip

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        return embedding_vmap(embedding_call, info, in_dims, *args)


def _audible(ctx: Any, ids: Tensor, index: Tensor | None) -> Tensor:
    """Positions or segments of every id, -1 where the result was zero whatever they were."""
    if index is None:
        length = ids.shape[-1] if ids.dim() else 1
        index = torch.arange(length, device=ids.device)
        index = index if ids.dim() else index[0]
    index = index.expand(ids.shape)
    pad = ctx.padding_idx if ctx.zero_pads else -1
    for silent in (pad if pad >= 0 else None, ctx.ignore_id):
        if silent is not None:
            index = torch.where(ids.long() == silent, -1, index.long())
    return index


class BackwardFunction(torch.autograd.Function):
    """Arguments and result of the operator `embedding_backward`."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            result: Tensor = torch.ops.tegula.embedding_backward.default(*args)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ids, ctx.num_rows, ctx.padding_idx, ctx.ignore_id, ctx.scale, seed, ctx.dropout_p = inputs
        ctx.save_for_backward(ids, seed)
        ctx.save_for_forward(ids, seed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        ids, seed = ctx.saved_tensors
        rows = embedding_call(
            ids, grad, ctx.padding_idx, True, ctx.ignore_id, ctx.scale, None, None, False, None, None, seed,
            ctx.dropout_p,
        )  # fmt: skip
        return rows, *(None,) * 7

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        ids, seed = ctx.saved_tensors
        return backward_call(tangent, ids, ctx.num_rows, ctx.padding_idx, ctx.ignore_id, ctx.scale, seed, ctx.dropout_p)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        return backward_vmap(backward_call, info, in_dims, *args)


# torch.func needs Function.apply, which inspects signatures on every call; autograd does with the C++
# function below it.
_transform_embedding: Any = EmbeddingFunction.apply
_transform_backward: Any = BackwardFunction.apply
record_embedding: Any = super(torch.autograd.Function, EmbeddingFunction).apply
_record_backward: Any = super(torch.autograd.Function, BackwardFunction).apply


def embedding_call(*args: Any) -> Any:
    """The operator `embedding`, inside the transforms of `torch.func` too. Takes every argument."""
    if torch._C._are_functorch_transforms_active():
        return _transform_embedding(*args)
    return torch.ops.tegula.embedding.default(*args)


def backward_call(*args: Any) -> Any:
    """The operator `embedding_backward`, inside the transforms of `torch.func` too. Takes every argument."""
    if torch._C._are_functorch_transforms_active():
        return _transform_backward(*args)
    if not _grad_enabled() and direct(args[0], args[1], args[6]):
        try:
            return kernels.embedding_backward(*args)
        except _core.NotPlainError:
            pass
    return torch.ops.tegula.embedding_backward.default(*args)


def embedding_autograd(*args: Any) -> Any:
    """The kernel of `embedding` on the key Autograd."""
    _, weight, _, _, _, _, positions, position_table, _, _, segment_table, *_ = args
    if derivative_is_wanted(weight, positions, position_table, segment_table):
        return record_embedding(*args)
    return EmbeddingFunction.forward(*args)


def backward_autograd(grad: Tensor, *others: Any) -> Any:
    """The kernel of `embedding_backward` on the key Autograd."""
    if derivative_is_wanted(grad):
        return _record_backward(grad, *others)
    return BackwardFunction.forward(grad, *others)
