"""Attention's options as its operators take them: checked, and lowered to tensors and numbers."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from .. import checks
from ..attention import LAYOUTS, numbers
from ..masks import Mask
from ..masks._inputs import no_mask
from ..masks._torch import as_mask, lower_bools
from ..masks._torch import lower as lower_mask
from ..runtime import checked_threads
from .attention_checks import check_broadcasts, dtype_name, shape_text, sizes
from .dropout import lower_dropout
from .library import check_plain, direct

Options = tuple[Any, ...]

# lo, hi, dense, bias, alibi, sinks, seed, scale, softcap, dropout_p, threads: what follows q, k and v.
DEFAULTS: Options = (None, None, None, None, None, None, None, None, 0.0, 0.0, 0)
BIAS, SINKS, SCALE = 3, 5, 7


def heads_first(layout: Any, **named: Tensor) -> list[Tensor]:
    """The tensors as (..., H, L, D), for a layout that is not that one."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be 'bhld', 'blhd' or 'lhd', got {layout!r}")
    for name, x in named.items():
        if x.dim() < 3 or (layout == "lhd" and x.dim() != 3):
            count = "exactly 3" if layout == "lhd" else "at least 3"
            raise ValueError(f"{name} has shape {shape_text(x)}; layout {layout!r} needs {count} axes")
    return [x.transpose(-3, -2) for x in named.values()]


def lower(
    q: Tensor,
    k: Tensor,
    mask: Any,
    bias: Any,
    scale: Any,
    softcap: Any,
    alibi: Any,
    sinks: Any,
    dropout_p: Any,
    seed: Any,
    threads: Any,
) -> Options:
    """The options of a call with q (..., H, Lq, D) and k (..., G, Lk, D), in the order of DEFAULTS."""
    if q.dim() < 2 or k.dim() < 2:
        name, x = ("q", q) if q.dim() < 2 else ("k", k)
        raise ValueError(f"{name} has shape {shape_text(x)}; layout 'bhld' needs at least 2 axes")
    lo = hi = dense = None
    batch, heads, q_len, k_len = sizes(q, k)
    if mask is not None:
        lo, hi, dense = _mask(mask, batch, heads, q_len, k_len, q.device)
    if bias is not None:
        bias = _bias(bias, q.shape[:-3], (heads, q_len, k_len))
    if alibi is not None:
        alibi = _slopes(alibi, heads, q.device)
    if sinks is not None:
        sinks = _per_head(sinks, "sinks", heads, q.device)
    if dropout_p != 0.0 or seed is not None:
        dropout_p, seed = lower_dropout(dropout_p, seed, q.device)
    if scale is not None or softcap is not None:
        _, _, scale, softcap, _, _ = numbers(None, None, scale, softcap, 0.0, None)
    else:
        softcap = 0.0
    threads = 0 if threads is None else checked_threads(threads)
    return lo, hi, dense, bias, alibi, sinks, seed, scale, softcap, dropout_p, threads


def _mask(mask: Any, batch: int, heads: int, q_len: int, k_len: int, device: torch.device) -> Any:
    """A mask object, or a bool tensor, whose rows become intervals where they are."""
    if isinstance(mask, Mask):
        return lower_mask(mask, batch, heads, q_len, k_len, device)
    if direct(mask) and device.type == "cpu" and isinstance(mask, Tensor) and not torch.is_inference_mode_enabled():
        lowered = lower_bools(mask, batch, heads, q_len, k_len)
        if lowered is not None:
            return lowered
    if isinstance(mask, np.ndarray):
        refuse_kind("mask", mask)
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be one of tegula.masks or a bool tensor, got {no_mask(mask)}")
    if mask.device != device:
        raise TypeError(f"mask is on device '{mask.device}' but q is on device '{device}'")
    lo, hi, dense = lower_mask(as_mask(mask), batch, heads, q_len, k_len, device)
    if dense is not None:
        # The caller's own tensor: autograd notices when it is changed before the backward pass.
        dense = mask if mask.dim() == 4 else mask[None, None]
    return lo, hi, dense


def _bias(bias: Any, lead: tuple[int, ...], rows: tuple[int, int, int]) -> Tensor:
    """`bias` so that it broadcasts to lead + (H, Lq, Lk). Four axes are also (B, H, Lq, Lk)."""
    if not isinstance(bias, Tensor):
        refuse_kind("bias", bias)
    if bias.dtype == torch.bool:
        raise TypeError("bias must be a float tensor, got bool; a bool tensor belongs in mask=")
    given = bias
    if bias.dim() == 4 and len(lead) != 1:
        if bias.shape[0] == 1:
            bias = bias[0]
        elif bias.shape[0] == torch.Size(lead).numel():
            bias = bias.unflatten(0, lead)
    check_broadcasts(bias, (*lead, *rows), given)
    result: Tensor = bias
    return result


def _slopes(alibi: Any, heads: int, device: torch.device) -> Tensor:
    slopes = _per_head(alibi, "alibi", heads, device)
    if slopes.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("alibi requires grad, but attention computes no gradient for it; pass alibi.detach()")
    # Where values cannot be read, while compiling and inside vmap, they are not looked at.
    readable = not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())
    if readable and slopes.device.type == "cpu" and not (slopes.abs() <= torch.finfo(torch.float32).max).all():
        raise ValueError(f"alibi must be finite in float32, got {slopes.tolist()}")
    return slopes


def _per_head(values: Any, name: str, heads: int, device: torch.device) -> Tensor:
    """Slopes or sinks as a tensor (H,)."""
    if isinstance(values, (list, tuple)):
        values = torch.tensor([checks.real(value, name) for value in values], dtype=torch.float64).to(device)
    if not isinstance(values, Tensor):
        refuse_kind(name, values)
    if values.dtype == torch.bool or values.is_complex():
        raise TypeError(f"{name} must be a tensor of floats, got dtype {dtype_name(values)}")
    if tuple(values.shape) != (heads,):
        raise ValueError(f"{name} must have shape ({heads},), one entry a head, got {shape_text(values)}")
    result: Tensor = values
    return result


def check_kinds(**named: Any) -> None:
    """TypeError for the first argument that is no tensor, or one whose own class takes no operators."""
    for name, value in named.items():
        if not isinstance(value, Tensor):
            refuse_kind(name, value, next((n for n, x in named.items() if isinstance(x, Tensor)), None))
        if value.is_nested:
            check_plain(value, name)


def refuse_kind(name: str, value: Any, other: str | None = "q") -> NoReturn:
    """TypeError: `value` should be a tensor, as the argument `other` is."""
    hint = ""
    if isinstance(value, np.ndarray):
        hint = ": one call takes NumPy arrays or tensors, not both"
    elif isinstance(value, torch.nn.Module):
        hint = ": pass the module's weight"
    like = "" if other is None else f" as {other} is"
    raise TypeError(f"{name} must be a torch tensor{like}, got {kind_of(value)}{hint}")


def kind_of(value: Any) -> str:
    """What a value is, for a message."""
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} array of shape {value.shape}"
    module, kind = type(value).__module__, type(value).__qualname__
    return kind if module == "builtins" else f"{module}.{kind}"
