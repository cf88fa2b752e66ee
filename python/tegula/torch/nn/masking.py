"""What the modules accept as masks, brought to a mask and a bias as `tegula.attention` takes them.

`ours` reads True = may attend, `torchs` reads torch's layers: True = hidden.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...masks import Mask, padding
from ...masks._torch import as_mask, traced
from ..attention_options import kind_of
from ..drop_in import TOP_LEFT
from ..library import check_plain


class Scores(NamedTuple):
    """The scores that a mask is for, (B, H, Lq, Lk)."""

    batch: int
    heads: int
    q_len: int
    k_len: int


class Masking:
    """Masks that all hold, and numbers that are all added to the scores."""

    __slots__ = ("bias", "mask")

    def __init__(self) -> None:
        self.mask: Mask | Tensor | None = None
        self.bias: Tensor | None = None

    def hide(self, mask: Mask | Tensor) -> None:
        """Add a mask: an object, or a bool tensor of two or four axes."""
        if self.mask is None:
            self.mask = mask
        else:
            self.mask = as_mask(self.mask) & as_mask(mask)

    def add(self, bias: Tensor) -> None:
        self.bias = bias if self.bias is None else self.bias + bias

    def read(self, numbers: Tensor) -> None:
        """Add numbers of four axes, as a mask where they say no more than that."""
        seen = None if numbers.requires_grad else visible(numbers)
        if seen is None:
            self.add(numbers)
        else:
            self.hide(shown(seen))


def ours(masking: Masking, mask: Any, name: str, scores: Scores) -> None:
    """Read a mask in which True = may attend and 0 = hidden; floats must be 0, negative or -inf."""
    if mask is None:
        return
    if isinstance(mask, Mask):
        masking.hide(mask)
        return
    mask = four_axes(checked(mask, name), name, scores)
    if mask.is_floating_point():
        check_not_positive(mask, name)
        masking.read(mask)
    else:
        masking.hide(shown(mask if mask.dtype is torch.bool else mask != 0))


def real_keys(masking: Masking, keep: Any, name: str, scores: Scores) -> None:
    """Read which keys are real, (B, Lk) or (Lk,): True or 1 = real."""
    if keep is None:
        return
    keep = checked(keep, name)
    if keep.is_floating_point():
        raise TypeError(f"{name} must be bool or integers, True or 1 = real, got {keep.dtype}; ids != pad_idx makes it")
    keep = key_axes(keep, name, scores)
    masking.hide(padding(keep=keep if keep.dtype is torch.bool else keep != 0))


def torchs(
    masking: Masking,
    attn_mask: Any,
    key_padding_mask: Any,
    is_causal: bool,
    names: tuple[str, str],
    scores: Scores,
) -> None:
    """Read the masks of torch's layers: bool True = HIDDEN, floats are added. All that are given hold."""
    if is_causal:
        masking.hide(TOP_LEFT)
    if attn_mask is not None:
        mask = torch_kind(attn_mask, names[0])
        if mask.dim() not in (2, 3):
            raise ValueError(f"{names[0]} must have shape (L, S) or (B * H, L, S), got {tuple(mask.shape)}")
        if mask.dim() == 3:
            if mask.shape[0] != scores.batch * scores.heads:
                raise ValueError(
                    f"{names[0]} has shape {tuple(mask.shape)}, but (B * H, L, S) is "
                    f"({scores.batch * scores.heads}, {scores.q_len}, {scores.k_len})"
                )
            mask = mask.unflatten(0, (scores.batch, scores.heads))
        mask = four_axes(mask, names[0], scores)
        if mask.is_floating_point():
            masking.read(mask)
        else:
            masking.hide(shown(~mask))
    if key_padding_mask is not None:
        hidden = key_axes(torch_kind(key_padding_mask, names[1]), names[1], scores)
        if hidden.is_floating_point():
            masking.read(hidden[:, None, None])
        else:
            masking.hide(padding(keep=~hidden))


# -- pieces -----------------------------------------------------------------------------------------


def checked(value: Any, name: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a mask of tegula.masks or a tensor (bool or integers, 0 = hidden; or floats to add), "
            f"got {kind_of(value)}"
        )
    check_plain(value, name)
    if value.is_complex():
        raise TypeError(f"{name} must be bool, integers or floats, got {value.dtype}")
    return value


def torch_kind(value: Any, name: str) -> Tensor:
    if isinstance(value, Mask):
        raise TypeError(f"{name} is torch's, and a tensor, got {value!r}; mask objects go to attend= or memory_attend=")
    value = checked(value, name)
    if value.dtype is not torch.bool and not value.is_floating_point():
        raise TypeError(f"{name} must be bool (True = HIDDEN, as in torch) or floats to add, got {value.dtype}")
    return value


def four_axes(mask: Tensor, name: str, scores: Scores) -> Tensor:
    """(Lq, Lk), (B, Lq, Lk) or (B, H, Lq, Lk), each axis but the last perhaps 1, as the last of these."""
    shape = tuple(mask.shape)
    if mask.dim() == 3:
        mask = mask[:, None]
    elif mask.dim() == 2:
        mask = mask[None, None]
    fits = mask.dim() == 4 and mask.shape[-1] == scores.k_len
    if not fits or any(n not in (1, m) for n, m in zip(mask.shape, scores, strict=True)):
        hint = ""
        if shape == (scores.batch, scores.k_len):
            hint = "; which keys are REAL, (B, Lk), goes to key_padding= (torch's key_padding_mask is the opposite)"
        raise ValueError(
            f"{name} has shape {shape}, expected (Lq, Lk), (B, Lq, Lk) or (B, H, Lq, Lk), with 1 for B, H and Lq "
            f"where nothing changes, and (B, H, Lq, Lk) = {tuple(scores)}{hint}"
        )
    return mask if mask.shape[1] == 1 else mask.expand(-1, -1, scores.q_len, -1)  # see `shown`


def key_axes(keys: Tensor, name: str, scores: Scores) -> Tensor:
    """(Lk,) or (B, Lk) as the latter."""
    rows = keys[None] if keys.dim() == 1 and scores.batch == 1 else keys
    if rows.dim() < 2 or rows.shape[-1] != scores.k_len or math.prod(rows.shape[:-1]) not in (1, scores.batch):
        raise ValueError(f"{name} has shape {tuple(keys.shape)}, expected (B, Lk) = ({scores.batch}, {scores.k_len})")
    return rows.reshape(math.prod(rows.shape[:-1]), scores.k_len)  # k_len may be 0


def shown(visible: Tensor) -> Mask | Tensor:
    """A bool tensor of four axes as a mask: where only keys differ, which of them are real."""
    if visible.shape[1] == visible.shape[2] == 1:
        return padding(keep=visible[:, 0, 0])
    return visible


def readable(x: Tensor) -> bool:
    """Whether numbers can be looked at, and without waiting for a device."""
    return x.device.type == "cpu" and not traced() and not torch._C._are_functorch_transforms_active()


def visible(numbers: Tensor) -> Tensor | None:
    """Where numbers to add are 0, if all others are -inf and they can be read."""
    if not readable(numbers):
        return None
    seen = numbers == 0
    return seen if bool((seen | (numbers == -torch.inf)).all()) else None


def check_not_positive(numbers: Tensor, name: str) -> None:
    """ValueError for a float mask that says 1.0 where it means "may attend"."""
    if numbers.device.type == "meta":
        return
    message = (
        f"{name} is a float tensor, which is added to the scores: 0 = may attend, -inf = hidden. This one holds "
        f"positive numbers or NaN. If 1 means may attend, pass {name}.bool(); a bias for the scores goes to bias="
    )
    fine = (numbers <= 0).all()
    if not readable(numbers):
        torch._assert_async(fine, message)
    elif not fine:
        raise ValueError(message)
