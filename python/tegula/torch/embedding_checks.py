"""Checks of the embedding's tensors where the native ones cannot run: for fake tensors, in the same words."""

from __future__ import annotations

import torch
from torch import Tensor

from .attention_checks import FLOATS, dtype_name, shape_text
from .library import check_plain

INTEGERS = (
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip


def check_embedding(
    ids: Tensor,
    weight: Tensor,
    positions: Tensor | None,
    position_table: Tensor | None,
    sinusoidal: bool,
    segments: Tensor | None,
    segment_table: Tensor | None,
    seed: Tensor | None,
) -> None:
    """TypeError or ValueError, as the native module raises them. Ids are not looked at."""
    check_integers("ids", ids)
    check_plain(weight, "weight")
    named = {
        "ids": ids, "positions": positions, "position_table": position_table, "segments": segments,
        "segment_table": segment_table,
    }  # fmt: skip
    for name, x in named.items():
        if x is not None:
            check_device(name, x, "weight", weight.device)
    check_seed(seed, "weight", weight.device)
    if weight.dim() != 2:
        raise ValueError(f"weight must have shape (V, D), got {shape_text(weight)}")
    check_float("weight", weight)
    tables = (("position_table", position_table, "(P, D)"), ("segment_table", segment_table, "(S, D)"))
    for name, table, shape in tables:
        if table is None:
            continue
        check_plain(table, name)
        if table.dim() != 2:
            raise ValueError(f"{name} must have shape {shape}, got {shape_text(table)}")
        if table.shape[1] != weight.shape[1]:
            raise ValueError(
                f"{name} has rows of {table.shape[1]} elements, but the rows of weight have {weight.shape[1]}"
            )
        check_float(name, table)
    if position_table is not None and positions is None:
        length = ids.shape[-1] if ids.dim() else 1
        if length > position_table.shape[0]:
            raise ValueError(
                f"ids have length {length} along their last axis, but "
                f"position_table has only {position_table.shape[0]} rows"
            )
    if positions is not None:
        if sinusoidal:
            check_positions(positions)
        else:
            check_integers("positions", positions)
        check_broadcasts("positions", positions, ids)
    if segments is not None:
        check_integers("segments", segments)
        check_broadcasts("segments", segments, ids)


def check_gradient(grad: Tensor, ids: Tensor, num_rows: int, seed: Tensor | None) -> None:
    """TypeError or ValueError, as the native module raises them. Ids are not looked at."""
    check_plain(grad, "grad")
    check_integers("ids", ids)
    check_device("ids", ids, "grad", grad.device)
    check_seed(seed, "grad", grad.device)
    check_float("grad", grad)
    if grad.dim() != ids.dim() + 1 or grad.shape[:-1] != ids.shape:
        raise ValueError(f"grad must have the shape of ids, {shape_text(ids)}, then D, got {shape_text(grad)}")
    if num_rows < 0:
        raise ValueError(f"num_rows must not be negative, got {num_rows}")


def check_device(name: str, x: Tensor, other: str, device: torch.device) -> None:
    if x.device != device:
        raise TypeError(f"{name} is on device '{x.device}', but {other} is on device '{device}'")


def check_seed(seed: Tensor | None, other: str, device: torch.device) -> None:
    """The processor's seeds serve every device."""
    if seed is not None and seed.device.type != "cpu":
        check_device("seed", seed, other, device)


def check_positions(positions: Tensor) -> None:
    check_plain(positions, "positions")
    if positions.dtype not in FLOATS and positions.dtype not in INTEGERS:
        raise TypeError(f"positions must have an integer or float dtype, got {dtype_name(positions)}")


def check_integers(name: str, x: Tensor) -> None:
    check_plain(x, name)
    if x.dtype not in INTEGERS:
        raise TypeError(f"{name} must have an integer dtype, got {dtype_name(x)}")


def check_float(name: str, x: Tensor) -> None:
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} must have a float dtype, got {dtype_name(x)}")


def check_broadcasts(name: str, x: Tensor, ids: Tensor) -> None:
    missing = ids.dim() - x.dim()
    fits = missing >= 0
    for size, target in zip(x.shape, ids.shape[max(missing, 0) :], strict=False):
        fits = fits and (size == 1 or size == target)
    if not fits:
        raise ValueError(
            f"{name} has shape {shape_text(x)}, which does not broadcast to the shape of ids, {shape_text(ids)}"
        )
