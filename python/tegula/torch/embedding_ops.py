"""The embedding's operators, and that of positional encodings: schemas, kernels and fake kernels.

ids (..., L) of any integer type; weight (V, D); positions and segments broadcast to ids; position_table
(P, D), segment_table (S, D); seed: one int64, the two's complement of a seed in [0, 2**64).
padding_idx -1 is none. Results (..., L, D) have the weight's dtype.

======================  =========================================================================
embedding               the fused rows; gradients of the three tables
embedding_forward       the same, where nothing asks for a gradient
embedding_backward      gradient of a table (num_rows, D) in grad's dtype; linear in grad
positional_encoding     sinusoidal rows (..., dim); no gradient
======================  =========================================================================
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import embedding_kernels as kernels
from .attention_autograd import refuse_gradient
from .embedding_autograd import (
    backward_autograd,
    embedding_autograd,
)
from .embedding_checks import check_embedding, check_gradient, check_positions
from .embedding_vmap import DEFAULTS, backward_vmap, embedding_vmap
from .library import define, native
from .results import empty

_ARGUMENTS = (
    "(Tensor ids, Tensor weight, int padding_idx=-1, bool zero_pads=False, int? ignore_id=None, float scale=1.0, "
    "Tensor? positions=None, Tensor? position_table=None, bool sinusoidal=False, Tensor? segments=None, "
    "Tensor? segment_table=None, Tensor? seed=None, float dropout_p=0.0) -> Tensor"
)


def _forward(ids: Tensor, weight: Tensor, *options: Any) -> Tensor:
    refuse_gradient("embedding_forward", weight, *options[4:6], *options[8:9])  # positions and the tables
    return kernels.embedding(None, ids, weight, *options)


def _fake_embedding(ids: Tensor, weight: Tensor, *options: Any) -> Tensor:
    *_, positions, position_table, sinusoidal, segments, segment_table, seed, _ = options or DEFAULTS
    check_embedding(ids, weight, positions, position_table, sinusoidal, segments, segment_table, seed)
    return weight.new_empty((*ids.shape, weight.shape[1]))


def _fake_backward(grad: Tensor, ids: Tensor, num_rows: int, *options: Any) -> Tensor:
    *_, seed, _ = options
    check_gradient(grad, ids, num_rows, seed)
    return grad.new_empty((num_rows, grad.shape[-1]))


embedding = define(
    "embedding",
    _ARGUMENTS,
    kernel=partial(kernels.embedding, None),
    fake=_fake_embedding,
    autograd=embedding_autograd,
    vmap=embedding_vmap,
)
embedding_forward = define("embedding_forward", _ARGUMENTS, kernel=_forward, fake=_fake_embedding)
embedding_backward = define(
    "embedding_backward",
    "(Tensor grad, Tensor ids, SymInt num_rows, int padding_idx=-1, int? ignore_id=None, float scale=1.0, "
    "Tensor? seed=None, float dropout_p=0.0) -> Tensor",
    kernel=kernels.embedding_backward,
    fake=_fake_backward,
    autograd=backward_autograd,
    vmap=backward_vmap,
)


# ---------------------------------------------------------------------------------------------------
# Positional encodings


def _positional_encoding(
    positions: Tensor, dim: int, base: float, split: bool, inclusive: bool, dtype: torch.dtype
) -> Tensor:
    out = empty(positions.new_empty(0, dtype=dtype), (*positions.shape, dim))
    native(positions).positional_encoding(positions, dim, base, split, inclusive, None, out, -torch.get_num_threads())
    return out


def _fake_positional_encoding(
    positions: Tensor, dim: int, base: float, split: bool, inclusive: bool, dtype: torch.dtype
) -> Tensor:
    check_positions(positions)
    return positions.new_empty((*positions.shape, dim), dtype=dtype)


def _positional_encoding_autograd(positions: Tensor, *options: Any) -> Any:
    refuse_derivative("positional_encoding", positions)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.tegula.positional_encoding.default(positions, *options)


def refuse_derivative(name: str, positions: Tensor) -> None:
    """RuntimeError when positions ask for a gradient, or have a tangent, that nobody computes."""
    tangent = torch.autograd.forward_ad.unpack_dual(positions).tangent if positions.is_floating_point() else None
    if tangent is not None or (positions.requires_grad and torch.is_grad_enabled()):
        raise RuntimeError(f"positions requires grad, but {name} computes no gradient for it; pass positions.detach()")


def _positional_encoding_vmap(op: Any, info: Any, in_dims: Any, positions: Tensor, *options: Any) -> tuple[Tensor, int]:
    return op(positions.movedim(in_dims[0], 0), *options), 0


positional_encoding = define(
    "positional_encoding",
    "(Tensor positions, SymInt dim, float base, bool split, bool inclusive, ScalarType dtype) -> Tensor",
    kernel=_positional_encoding,
    fake=_fake_positional_encoding,
    autograd=_positional_encoding_autograd,
    vmap=_positional_encoding_vmap,
)
