"""What signatures call an array."""

from __future__ import annotations

from typing import Any, TypeAlias

# numpy.ndarray or torch.Tensor: a call takes one kind, and returns it.
Array: TypeAlias = Any
