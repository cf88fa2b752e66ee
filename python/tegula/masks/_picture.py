"""A mask as a picture, for notebooks."""

from __future__ import annotations
from typing import Any


def svg(mask: Any) -> str:
    return ""
