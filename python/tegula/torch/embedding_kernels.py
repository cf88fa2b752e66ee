"""What the embedding's operators run; arguments as theirs, see `embedding_ops`."""

from __future__ import annotations

import torch
from torch import Tensor

from .dropout import seed_number
from .embedding_checks import check_gradient
from .library import native


def embedding(
    out: Tensor | None,
    ids: Tensor,
    weight: Tensor,
    padding_idx: int = -1,
    zero_pads: bool = False,
    ignore_id: int | None = None,
    scale: float = 1.0,
    positions: Tensor | None = None,
    position_table: Tensor | None = None,
    sinusoidal: bool = False,
    segments: Tensor | None = None,
    segment_table: Tensor | None = None,
    seed: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """The embedding, in `out` where that is given."""
    result: Tensor = native(weight).embedding(
        ids, weight, padding_idx, zero_pads, ignore_id, scale, positions, position_table, sinusoidal, segments,
        segment_table, dropout_p, seed_number(seed, weight), out, -torch.get_num_threads(),
    )  # fmt: skip
    return result


def embedding_backward(
    grad: Tensor,
    ids: Tensor,
    num_rows: int,
    padding_idx: int = -1,
    ignore_id: int | None = None,
    scale: float = 1.0,
    seed: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    check_gradient(grad, ids, num_rows, seed)
    numbers = padding_idx, ignore_id, scale, dropout_p, seed_number(seed, grad)
    out = grad.new_zeros((num_rows, grad.shape[-1])) if grad.is_cuda else None  # a GPU's adds to what is there
    dtable: Tensor = native(grad).embedding_backward(grad, ids, num_rows, *numbers, out, -torch.get_num_threads())
    return dtable if out is None else out
