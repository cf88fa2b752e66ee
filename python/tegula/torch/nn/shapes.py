"""Shapes of the tensors of one attention, checked and reported."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .projections import positive

_QUERIES, _KEYS, _VALUES = ("q", "query"), ("k", "key"), ("v", "value")


def check_shapes(*, d_model: int | None = None, num_heads: int | None = None, **tensors: Tensor) -> str:
    """Check that tensors of an attention fit together, and return a report of their shapes.

    Parameters
    ----------
    d_model : int, optional
        D. With it, the last axis of q must be D.
    num_heads : int, optional
        H. It must divide D; without `d_model`, D is the last axis of q.
    **tensors : Tensor
        By name. Those named q, k and v (or query, key and value) must be (..., L, D), with the same
        leading axes; k and v must have as many rows. Others are reported only.

    Returns
    -------
    str
        A line for each tensor: its name, shape, dtype and device.

    Raises
    ------
    TypeError
        For values that are no tensors.
    ValueError
        For what does not fit; the message names it and holds the report.

    Examples
    --------
    >>> import torch
    >>> from tegula.torch.nn import check_shapes
    >>> print(check_shapes(q=torch.zeros(2, 7, 512), k=torch.zeros(2, 10, 512), num_heads=8))
    q: (2, 7, 512) float32 cpu
    k: (2, 10, 512) float32 cpu
    """
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch tensor, got {type(value).__name__}")
    width = max(map(len, tensors), default=0)
    report = "\n".join(
        f"{name:{width}}: {tuple(x.shape)} {str(x.dtype).removeprefix('torch.')} {x.device}"
        for name, x in tensors.items()
    )
    problem = problem_of(tensors, d_model, num_heads)
    if problem is not None:
        raise ValueError(f"{problem}\n{report}" if report else problem)
    return report


def problem_of(tensors: dict[str, Tensor], d_model: int | None, num_heads: int | None) -> str | None:
    """What does not fit, or None."""
    found: dict[str, Any] = {name: x for name, x in tensors.items() if name in (*_QUERIES, *_KEYS, *_VALUES)}
    for name, x in found.items():
        if x.dim() < 2:
            return f"{name} has shape {tuple(x.shape)}, but needs the axes (..., L, D)"
    first = next(iter(found), "")
    for name, x in found.items():
        lead, expected = tuple(x.shape[:-2]), tuple(found[first].shape[:-2])
        if len(lead) != len(expected):
            return f"{name} has {x.dim()} axes and {first} {found[first].dim()}: [None] adds a missing batch axis"
        if lead != expected:
            return f"{name} has leading axes {lead}, but {first} has {expected}"
    q, k, v = (next((n for n in names if n in found), None) for names in (_QUERIES, _KEYS, _VALUES))
    if k is not None and v is not None and found[k].shape[-2] != found[v].shape[-2]:
        return f"{k} has {found[k].shape[-2]} rows, but {v} has {found[v].shape[-2]}: each key has one value"
    if q is not None and k is not None and found[q].shape[-1] != found[k].shape[-1]:
        return f"{q} has rows of {found[q].shape[-1]} numbers, but {k} of {found[k].shape[-1]}"
    size = None if d_model is None else positive(d_model, "d_model")
    if q is not None:
        last = found[q].shape[-1]
        if size not in (None, last):
            return f"{q} has rows of {last} numbers, but d_model is {size}"
        size = last
    if num_heads is not None and size is not None and size % positive(num_heads, "num_heads"):
        return f"d_model={size} is not divisible by num_heads={num_heads}"
    return None
