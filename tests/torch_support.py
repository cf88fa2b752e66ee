"""Arrays and tensors of the same bits, for the tests that run through torch."""

from __future__ import annotations

import numpy as np
import pytest
from support import numpy_dtype

torch = pytest.importorskip("torch")


def to_tensor(x):
    """An array as a tensor of its own memory; bfloat16 too, and anything else as it is."""
    if not isinstance(x, np.ndarray):
        return x
    x = np.ascontiguousarray(x).reshape(x.shape)
    if x.dtype.name == "bfloat16":
        return torch.tensor(x.view(np.uint16)).view(torch.bfloat16)
    return torch.tensor(x)


def to_array(x):
    """A tensor as an array."""
    x = x.detach().contiguous()
    if x.dtype == torch.bfloat16:
        return x.view(torch.uint16).numpy().view(numpy_dtype("bfloat16"))
    return x.numpy()


def tensors(options):
    """The arrays of a dict as tensors."""
    return {name: to_tensor(value) for name, value in options.items()}


def leaf(x):
    """A copy that requires grad."""
    return x.detach().clone().requires_grad_()
