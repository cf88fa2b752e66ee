"""Dropout's options as the operators take them."""

from __future__ import annotations

from typing import Any

import torch

from .. import _core, checks


def lower_dropout(dropout_p: Any, seed: Any, device: torch.device | None = None) -> tuple[float, torch.Tensor | None]:
    """The probability, and the seed as one int64 in two's complement; None without dropout.

    `seed` is an int in [0, 2**64), whose tensor is made on `device`, or such a tensor already.
    """
    if isinstance(seed, torch.Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1:
            kind = f"a {str(seed.dtype).removeprefix('torch.')} tensor of shape {tuple(seed.shape)}"
            raise TypeError(f"seed must be an int or one int64, got {kind}")
        probability, _ = checks.dropout(dropout_p, 0)
    else:
        probability, number = checks.dropout(dropout_p, seed)
        if probability > 0.0:
            seed = torch.tensor([number - 2**64 if number >= 2**63 else number], device=device)
    return probability, seed if probability > 0.0 else None


def seed_number(seed: torch.Tensor | None) -> int:
    """The seed as the native module takes it."""
    if seed is None:
        return 0
    if not seed.is_cpu:
        raise _core.NotPlainError(f"seed is on device '{seed.device}', expected 'cpu'")
    return int(seed.item()) & (2**64 - 1)
