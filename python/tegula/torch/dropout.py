"""Dropout's options as the operators take them."""

from __future__ import annotations

from typing import Any

import torch

from .. import _core, checks


def lower_dropout(dropout_p: Any, seed: Any, device: torch.device | None = None) -> tuple[float, torch.Tensor | None]:
    """The probability, and the seed as one int64 in two's complement; None without dropout.

    `seed` is an int in [0, 2**64), whose tensor is made where calls on `device` take it from, or such a
    tensor already.
    """
    if isinstance(seed, torch.Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1:
            kind = f"a {str(seed.dtype).removeprefix('torch.')} tensor of shape {tuple(seed.shape)}"
            raise TypeError(f"seed must be an int or one int64, got {kind}")
        probability, _ = checks.dropout(dropout_p, 0)
    else:
        probability, number = checks.dropout(dropout_p, seed)
        if probability > 0.0:
            # A GPU's kernels take the number itself, which need not be copied there and waited for.
            place = None if device is not None and device.type == "cuda" else device
            seed = torch.tensor([number - 2**64 if number >= 2**63 else number], device=place)
    return probability, seed if probability > 0.0 else None


def seed_number(seed: torch.Tensor | None, like: torch.Tensor) -> Any:
    """The seed as the native module of `like` takes it: a number, or a tensor that a GPU's kernels read."""
    if seed is None:
        return 0
    if seed.is_cpu:
        return int(seed.item()) & (2**64 - 1)
    if not (like.is_cuda and seed.is_cuda):
        raise _core.NotPlainError(f"seed is on device '{seed.device}', expected 'cpu'")
    return seed


def drawn_seed(dropout_p: Any, device: torch.device | None = None) -> torch.Tensor | None:
    """A seed from torch's generator, where there is something to drop. A call that fails draws none.

    For a GPU it is drawn there: nothing is waited for, and a CUDA graph draws anew at each replay.
    """
    if isinstance(dropout_p, (int, float)) and dropout_p == 0.0:
        return None
    checks.dropout(dropout_p, 0)
    place = device if device is not None and device.type == "cuda" else None
    return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=place)
