"""The package's functions for arrays of other libraries than torch on a GPU: CuPy, and whoever speaks DLPack.

Arguments are those of the functions in `tegula`, which hand such arrays over. Results are made by the
array's own library, found by ``__array_namespace__``, and calls run on the stream that CuPy works on
(for other libraries on the default stream). Masks are made by NumPy and copied to the device; a mask
object keeps its copy for the next call of the same lengths.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import checks, cuda
from .attention import LAYOUTS, numbers
from .embedding import checked_ignore_id, checked_padding_idx, is_sinusoidal, refuse_extra_arguments
from .masks import Mask


def _native() -> Any:
    module = cuda.native()
    if module is None:
        raise TypeError("an array is on a CUDA device, but this build of tegula has no CUDA kernels")
    return module


def attention(q: Any, k: Any, v: Any, *, return_lse: bool, return_weights: bool, out: Any, **options: Any) -> Any:
    """See `tegula.attention`."""
    layout = options["layout"]
    return _native().attention(
        q, k, v, out, *_lowered(q, k, v, **options), layout,
        checks.flag(return_lse, "return_lse"), checks.flag(return_weights, "return_weights"), 0,
    )  # fmt: skip


def attention_backward(
    grad_out: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, grad_lse: Any, grads: Any, **options: Any
) -> tuple[Any, ...]:
    """See `tegula.attention_backward`."""
    lowered = _lowered(q, k, v, **options)
    bias = options["bias"]
    dbias = wide_dbias = None
    if bias is not None:
        library = q.__array_namespace__()
        dbias = library.zeros(bias.shape, dtype=bias.dtype, device=q.device)
        heads, q_len, k_len = lowered[3].shape[-3:]
        wide_dbias = _broadcast_bias(q, dbias, lowered[3].shape[:-3], (heads, q_len, k_len))
    if grads is not None and (not isinstance(grads, tuple) or len(grads) != 3):
        raise TypeError(f"grads must be a tuple of three arrays (dq, dk, dv), got {type(grads).__name__}")
    dq, dk, dv = (None, None, None) if grads is None else grads
    *found, dsinks = _native().attention_backward(
        grad_out, q, k, v, out, lse, *lowered, options["layout"], dq, dk, dv, wide_dbias, grad_lse, 0
    )
    return (*found, *(() if dbias is None else (dbias,)), *(() if dsinks is None else (dsinks,)))


def _lowered(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any,
    bias: Any,
    scale: Any,
    softcap: Any,
    alibi: Any,
    sinks: Any,
    dropout_p: Any,
    seed: Any,
    layout: str,
) -> tuple[Any, ...]:
    """Everything beside q, k and v, checked, in the order of the native call."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be 'bhld', 'blhd' or 'lhd', got {layout!r}")
    batch, heads, q_len, k_len, lead = _native().attention_sizes(q, k, v, layout)
    lo = hi = dense = None
    if isinstance(mask, Mask):
        lo, hi, dense = _mask_on_device(mask, (batch, heads, q_len, k_len), q)
    elif mask is not None:
        if not checks.is_device_array(mask):
            raise TypeError(f"mask must be one of tegula.masks or a bool array beside q, got {checks.kind(mask)}")
        dense = mask if len(mask.shape) == 4 else mask[None, None]
    if bias is not None:
        if not checks.is_device_array(bias):
            raise TypeError(f"bias must be an array of floats beside q, got {checks.kind(bias)}")
        bias = _broadcast_bias(q, bias, lead, (heads, q_len, k_len))
    given = [None if checks.is_device_array(x) else x for x in (alibi, sinks)]
    *per_head, scale, softcap, dropout_p, seed = numbers(given[0], given[1], scale, softcap, dropout_p, seed)
    slopes, logits = (
        x.astype("float64") if checks.is_device_array(x) else None if x is None else _copied(made, q)
        for x, made in zip((alibi, sinks), per_head, strict=True)
    )
    return lo, hi, dense, bias, slopes, logits, scale, softcap, dropout_p, seed


def _broadcast_bias(like: Any, bias: Any, lead: tuple[int, ...], rows: tuple[int, int, int]) -> Any:
    """A view of `bias` of shape lead + (H, Lq, Lk). Four axes are also (B, H, Lq, Lk)."""
    shape, given = (*lead, *rows), tuple(bias.shape)
    if len(given) == 4 and len(lead) != 1 and given[0] in (1, math.prod(lead)):
        bias = bias[0] if given[0] == 1 else bias.reshape(*lead, *given[1:])
    try:
        return like.__array_namespace__().broadcast_to(bias, shape)
    except ValueError:
        raise ValueError(f"bias has shape {given}, which does not broadcast to {shape}") from None


def _mask_on_device(mask: Mask, sizes: tuple[int, int, int, int], like: Any) -> tuple[Any, Any, Any]:
    """The mask's normal form beside `like`. The last one is kept, as it is for torch."""
    key = (*sizes, type(like), tuple(like.__dlpack_device__()))
    last = mask._last_torch
    if last is not None and last[0] == key:
        kept: tuple[Any, Any, Any] = last[1]
        return kept
    lo, hi, dense = (None if x is None else _copied(x, like) for x in mask._lower(*sizes))
    object.__setattr__(mask, "_last_torch", (key, (lo, hi, dense)))
    return lo, hi, dense


def _copied(array: np.ndarray, like: Any) -> Any:
    """A copy of a NumPy array beside `like`."""
    return like.__array_namespace__().asarray(np.ascontiguousarray(array), device=like.device)


def _beside(value: Any, name: str, like: Any) -> Any:
    """Integers as they are where they are on a device, and a copy of others."""
    return value if checks.is_device_array(value) else _copied(checks.integers(value, name), like)


def embedding(
    ids: Any,
    weight: Any,
    *,
    padding_idx: Any,
    pad_output: Any,
    ignore_id: Any,
    scale: Any,
    positions: Any,
    position_table: Any,
    segments: Any,
    segment_table: Any,
    dropout_p: Any,
    seed: Any,
    out: Any,
) -> Any:
    """See `tegula.embedding`."""
    if not checks.is_device_array(weight):
        raise TypeError(f"weight must be an array beside ids, got {checks.kind(weight)}")
    sinusoidal = is_sinusoidal(position_table)
    refuse_extra_arguments(positions, position_table, segments, segment_table)
    if len(weight.shape) != 2:
        raise ValueError(f"weight must have shape (V, D), got {tuple(weight.shape)}")
    return _native().embedding(
        _beside(ids, "ids", weight),
        weight,
        checked_padding_idx(padding_idx, weight.shape[0]),
        checks.choice(pad_output, "pad_output", ("row", "zero")) == "zero",
        checked_ignore_id(ignore_id),
        1.0 if scale is None else checks.real(scale, "scale"),
        None if positions is None else _beside(positions, "positions", weight),
        None if sinusoidal else position_table,
        sinusoidal,
        None if segments is None else _beside(segments, "segments", weight),
        segment_table,
        *checks.dropout(dropout_p, seed),
        out,
        0,
    )


def embedding_backward(
    grad: Any,
    ids: Any,
    num_rows: Any,
    *,
    padding_idx: Any,
    pad_output: Any,
    ignore_id: Any,
    scale: Any,
    dropout_p: Any,
    seed: Any,
    out: Any,
    sparse: Any,
) -> Any:
    """See `tegula.embedding_backward`."""
    rows = checks.size(num_rows, "num_rows")
    checks.choice(pad_output, "pad_output", ("row", "zero"))
    arguments = (
        grad,
        _beside(ids, "ids", grad),
        rows,
        checked_padding_idx(padding_idx, rows),
        checked_ignore_id(ignore_id),
        1.0 if scale is None else checks.real(scale, "scale"),
        *checks.dropout(dropout_p, seed),
    )
    if checks.flag(sparse, "sparse"):
        if out is not None:
            raise ValueError("out cannot be given with sparse=True, whose number of rows depends on the ids")
        return _native().embedding_backward_sparse(*arguments, 0)
    if out is None:
        library = grad.__array_namespace__()
        out = library.zeros((rows, grad.shape[-1]), dtype=grad.dtype, device=grad.device)
    _native().embedding_backward(*arguments, out, 0)
    return out


def positional_encoding(
    positions: Any, dim: int, base: float, split: bool, inclusive: bool, dtype: Any, out: Any
) -> Any:
    """See `tegula.positional_encoding`; options as the native module takes them."""
    if out is None:
        library = positions.__array_namespace__()
        type_ = getattr(library, np.dtype(dtype).name)
        out = library.empty((*positions.shape, dim), dtype=type_, device=positions.device)
    return _native().positional_encoding(positions, dim, base, split, inclusive, None, out, 0)
