"""The tutorials' mask functions. They build tensors; `tegula.masks` says the same without any."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import checks
from ...masks import Mask, dense, padding
from ..attention_options import refuse_kind
from .masking import checked, readable


def create_valid_mask(lengths: Any, max_len: int | None = None) -> Tensor:
    """Return which places of a right-padded batch are real. True = REAL, may be attended.

    Parameters
    ----------
    lengths : integers (B,), as a tensor or a list
        Of the sentences.
    max_len : int, optional
        L, that of the longest by default.

    Returns
    -------
    Tensor of bool, shape (B, L)

    Raises
    ------
    ValueError
        For lengths outside [0, max_len].

    Examples
    --------
    >>> from tegula.torch.nn import create_valid_mask
    >>> create_valid_mask([2, 4]).int().tolist()
    [[1, 1, 0, 0], [1, 1, 1, 1]]
    """
    found = lengths if isinstance(lengths, Tensor) else torch.from_numpy(checks.integers(lengths, "lengths"))
    if found.is_floating_point() or found.dtype == torch.bool or found.dim() != 1:
        raise TypeError(f"lengths must be integers of shape (B,), got {found.dtype} of shape {tuple(found.shape)}")
    size = (int(found.max()) if found.numel() else 0) if max_len is None else checks.size(max_len, "max_len")
    if found.numel() and not (int(found.min()) >= 0 and int(found.max()) <= size):
        raise ValueError(f"lengths must lie in [0, max_len] = [0, {size}], got {found.tolist()}")
    return torch.arange(size, device=found.device) < found[:, None]


def create_pair_mask(valid: Tensor) -> Tensor:
    """Return the pairs of which query AND key are real. True = MAY ATTEND.

    (The tutorial inverts it to True = invalid for `masked_fill`; ``~`` does that.)

    Parameters
    ----------
    valid : Tensor of bool or integers, shape (B, L)
        True or 1 = real, as `create_valid_mask` returns it.

    Returns
    -------
    Tensor of bool, shape (B, L, L)
        Rows of padding see no key: attention returns 0 there. Without that, ``key_padding=valid`` or
        ``masks.padding(lengths)`` is enough, and costs no memory of size L x L.

    Examples
    --------
    >>> from tegula.torch.nn import create_pair_mask, create_valid_mask
    >>> create_pair_mask(create_valid_mask([1, 2])).int().tolist()
    [[[1, 0], [0, 0]], [[1, 1], [1, 1]]]
    """
    real = checked(valid, "valid")
    if real.is_floating_point() or real.dim() != 2:
        raise TypeError(f"valid must be bool or integers (B, L), got {real.dtype} of shape {tuple(real.shape)}")
    real = real if real.dtype is torch.bool else real != 0
    return real[:, :, None] & real[:, None, :]


def create_pad_mask(ids: Tensor, pad_idx: int = 0) -> Tensor:
    """Return which keys are real, for every query. True = MAY ATTEND.

    Parameters
    ----------
    ids : Tensor of integers, shape (B, L)
    pad_idx : int
        The id of padding.

    Returns
    -------
    Tensor of bool, shape (B, 1, L)

    Examples
    --------
    >>> import torch
    >>> from tegula.torch.nn import create_pad_mask
    >>> create_pad_mask(torch.tensor([[6, 4, 0, 0]])).int().tolist()
    [[[1, 1, 0, 0]]]
    """
    if not isinstance(ids, Tensor):
        refuse_kind("ids", ids, None)
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.dim() != 2:
        raise TypeError(f"ids must be integers of shape (B, L), got {ids.dtype} of shape {tuple(ids.shape)}")
    return (ids != checks.integer(pad_idx, "pad_idx"))[:, None, :]


def create_seq_mask(size: int | Tensor, *, device: Any = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the causal mask as floats to ADD to the scores: 0 = may attend, -inf = hidden.

    Parameters
    ----------
    size : int, or Tensor (..., L)
        L, or ids of that length.
    device, dtype
        Of the result.

    Returns
    -------
    Tensor of floats, shape (L, L)
        -inf strictly above the diagonal.

    Notes
    -----
    ``masks.causal()`` says the same in memory O(L), and skips what is hidden. Do not combine this
    tensor with a bool one by ``|`` or ``&``: torch refuses that. `combine_masks` does what is meant.

    Examples
    --------
    >>> from tegula.torch.nn import create_seq_mask
    >>> create_seq_mask(2).tolist()
    [[0.0, -inf], [0.0, 0.0]]
    """
    if isinstance(size, Tensor):
        if size.dim() == 0:
            raise ValueError("size must be an int or a tensor of ids (..., L), got a tensor without axes")
        device = size.device if device is None else device
        length = size.shape[-1]
    else:
        length = checks.size(size, "size")
    return torch.full((length, length), -torch.inf, dtype=dtype, device=device).triu(1)


def create_local_mask(size: int, window_size: int, *, device: Any = None) -> Tensor:
    """Return the local window: query i sees keys i - w//2 .. i + w//2 - 1. True = MAY ATTEND.

    Parameters
    ----------
    size : int
        L.
    window_size : int
        w, at least 2.
    device
        Of the result.

    Returns
    -------
    Tensor of bool, shape (L, L)
        ``masks.window(w // 2, w // 2 - 1)`` says the same in memory O(L).

    Examples
    --------
    >>> from tegula.torch.nn import create_local_mask
    >>> create_local_mask(8, 4).sum(-1).tolist()
    [2, 3, 4, 4, 4, 4, 4, 3]
    """
    length, half = checks.size(size, "size"), checks.integer(window_size, "window_size") // 2
    if half < 1:
        raise ValueError(f"window_size must be at least 2, got {window_size}")
    place = torch.arange(length, device=device)
    distance = place[None, :] - place[:, None]
    return (distance >= -half) & (distance < half)


def combine_masks(*given: Mask | Tensor | None) -> Any:
    """Return the mask under which every one of several holds. True = MAY ATTEND.

    Parameters
    ----------
    *given : Mask or Tensor, or None
        Masks of `tegula.masks`; bool tensors, True = may attend; integers, 0 = hidden; floats as they
        are added to the scores, 0 = may attend and -inf = hidden, and nothing else. Shapes (L, L),
        (B, 1, L), (B, L, L), (B, 1, 1, L) and (B, H, L, L). None is left out.

    Returns
    -------
    Mask or Tensor of bool
        An object when one was given; otherwise a tensor in the shape to which they broadcast, those
        with three axes being (B, Lq, Lk). None if nothing was given.

    Raises
    ------
    TypeError
        For anything else.
    ValueError
        For floats other than 0 and -inf, which are no mask, and shapes that do not fit.

    Examples
    --------
    >>> import torch
    >>> from tegula.torch.nn import combine_masks, create_pad_mask, create_seq_mask
    >>> ids = torch.tensor([[6, 4, 1, 0]])
    >>> combine_masks(create_seq_mask(4), create_pad_mask(ids)).int().tolist()
    [[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]]]
    """
    objects = [mask for mask in given if isinstance(mask, Mask)]
    tensors = [
        as_bool(mask, f"given[{i}]") for i, mask in enumerate(given) if mask is not None and not isinstance(mask, Mask)
    ]
    if any(t.dim() == 4 for t in tensors):
        tensors = [t[:, None] if t.dim() == 3 else t for t in tensors]
    joined: Tensor | None = None
    for tensor in tensors:
        try:
            joined = tensor if joined is None else joined & tensor
        except RuntimeError:
            shapes = [tuple(t.shape) for t in tensors]
            raise ValueError(f"masks of shapes {shapes} do not broadcast") from None
    if not objects:
        return joined
    if joined is not None:
        objects.append(as_object(joined))
    result = objects[0]
    for mask in objects[1:]:
        result = result & mask
    return result


def as_bool(mask: Any, name: str) -> Tensor:
    """A tensor as bool, True = may attend."""
    mask = checked(mask, name)
    if not 2 <= mask.dim() <= 4:
        raise ValueError(f"{name} must have two to four axes, (..., Lq, Lk), got shape {tuple(mask.shape)}")
    if not mask.is_floating_point():
        result: Tensor = mask if mask.dtype is torch.bool else mask != 0
        return result
    seen = mask == 0
    fine = (seen | (mask == -torch.inf)).all()
    message = (
        f"{name} is a float tensor, which may hold 0 = may attend and -inf = hidden only, and holds other numbers. "
        "If 1 means may attend, .bool() makes a mask of it; a bias is added by bias="
    )
    if not readable(mask):
        torch._assert_async(fine, message)
    elif not fine:
        raise ValueError(message)
    return seen


def as_object(mask: Tensor) -> Mask:
    """A bool tensor of two to four axes as a mask."""
    if mask.dim() == 2:
        return dense(mask)
    mask = mask[:, None] if mask.dim() == 3 else mask
    return padding(keep=mask[:, 0, 0]) if mask.shape[1] == mask.shape[2] == 1 else dense(mask)
