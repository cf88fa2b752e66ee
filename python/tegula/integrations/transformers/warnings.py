"""Warnings that are given once, also by a call that is being compiled."""

from __future__ import annotations

import torch
from transformers.utils import logging

logger = logging.get_logger("tegula.integrations.transformers")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def warn_once(message: str) -> bool:
    """Log a message the first time."""
    logger.warning_once(message)
    return True
