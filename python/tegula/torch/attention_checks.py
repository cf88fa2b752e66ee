"""Checks of attention's tensors where the native ones cannot run: for fake tensors, in the same words."""

from __future__ import annotations

import math
from typing import NoReturn

import torch
from torch import Tensor

from .library import check_plain, check_same_device

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def check_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lo: Tensor | None,
    hi: Tensor | None,
    dense: Tensor | None,
    bias: Tensor | None,
    alibi: Tensor | None,
    sinks: Tensor | None,
    seed: Tensor | None,
) -> None:
    """TypeError or ValueError, as the native module raises them."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_plain(x, name)
    check_same_device("q", q, k=k, v=v, lo=lo, hi=hi, dense=dense, bias=bias, alibi=alibi, sinks=sinks)
    if seed is not None and seed.device.type != "cpu":  # the processor's seeds serve every device
        check_same_device("q", q, seed=seed)
    if q.dtype.is_complex:
        raise TypeError(f"q has dtype {q.dtype}, which is not supported")
    if q.dtype not in FLOATS:
        raise TypeError(f"q must be float64, float32, float16 or bfloat16, got {dtype_name(q)}")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise TypeError(f"{name} has dtype {dtype_name(x)} but q has dtype {dtype_name(q)}")
        if x.dim() != q.dim():
            fail(name, x, "q", q, "the number of axes differs")
    if q.dim() < 2:
        raise ValueError(f"q has shape {shape_text(q)}; layout 'bhld' needs at least 2 axes")
    for name, x in (("k", k), ("v", v)):
        if x.shape[:-3] != q.shape[:-3]:
            fail(name, x, "q", q, "the leading axes differ")
    if k.shape[-1] != q.shape[-1]:
        fail("k", k, "q", q, "the head sizes differ")
    if v.shape[-2] != k.shape[-2]:
        fail("v", v, "k", k, "the numbers of keys differ")
    batch, heads, q_len, k_len = sizes(q, k)
    key_heads = k.shape[-3] if k.dim() > 2 else 1
    if key_heads != (v.shape[-3] if v.dim() > 2 else 1):
        fail("v", v, "k", k, "the numbers of heads differ")
    if heads > 0 and (key_heads == 0 or heads % key_heads != 0):
        raise ValueError(
            f"q has {heads} heads, which is not a multiple of the {key_heads} heads of k and v "
            f"(shapes {shape_text(q)} and {shape_text(k)})"
        )
    if lo is not None and hi is not None and lo.dim() != hi.dim():
        raise ValueError(f"lo has shape {shape_text(lo)} but hi has shape {shape_text(hi)}: the number of axes differs")
    for name, rows in (("lo", lo), ("hi", hi)):
        if rows is not None and rows.dim() == 4 and rows.shape[0] != 2:
            raise ValueError(f"{name} has shape {shape_text(rows)}; its first axis must be 2")
        if rows is not None:
            check_fits(name, rows[0] if rows.dim() == 4 else rows, torch.int32, (batch, heads, q_len), k_len)
    if dense is not None:
        check_fits("dense", dense, torch.bool, (batch, heads, q_len, k_len), k_len)
    if bias is not None:
        if bias.dtype not in FLOATS:
            raise TypeError(f"bias must be a float array, got {dtype_name(bias)}; a bool array belongs in mask=")
        check_broadcasts(bias, (*q.shape[:-3], heads, q_len, k_len))
    for name, values in (("alibi", alibi), ("sinks", sinks)):
        if values is not None and tuple(values.shape) != (heads,):
            raise ValueError(f"{name} must have shape ({heads},), one entry a head, got {shape_text(values)}")


def check_backward(grad_out: Tensor, q: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad_lse: Tensor | None) -> None:
    """What `attention_backward` takes besides, after `check_attention`."""
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    rows = (*q.shape[:-1], v.shape[-1])
    for name, x, dtype, shape in (
        ("grad_out", grad_out, q.dtype, rows),
        ("out", out, q.dtype, rows),
        ("lse", lse, compute, rows[:-1]),
        ("grad_lse", grad_lse, compute, rows[:-1]),
    ):
        if x is None:
            continue
        check_plain(x, name)
        check_same_device("q", q, **{name: x})
        if x.dtype != dtype:
            raise TypeError(f"{name} has dtype {dtype_name(x)}, expected {dtype_name(dtype)}")
        if x.shape != shape:
            raise ValueError(f"{name} has shape {shape_text(x)}, expected {tuple(shape)}")


def check_options(seed: Tensor | None, softcap: float, dropout_p: float) -> None:
    """What the functions check before they call an operator; a direct call comes here only."""
    if not 0.0 <= softcap < math.inf:
        raise ValueError(f"softcap must be finite and at least 0, got {softcap}")
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p must lie in [0, 1], got {dropout_p}")
    if seed is None:
        if dropout_p > 0.0:
            raise ValueError(f"dropout_p={dropout_p} needs a seed, got None")
    elif seed.dtype != torch.int64 or seed.numel() != 1:
        raise TypeError(f"seed must be one int64, got a {dtype_name(seed)} tensor of shape {shape_text(seed)}")


def sizes(q: Tensor, k: Tensor) -> tuple[int, int, int, int]:
    """(B, H, Lq, Lk), B the product of the leading axes."""
    shape = q.shape
    if len(shape) == 4:  # the usual case, in few steps
        return shape[0], shape[1], shape[2], k.shape[-2]
    *lead, q_len, _ = shape
    heads = lead.pop() if lead else 1
    batch = 1
    for size in lead:
        batch *= size
    return batch, heads, q_len, k.shape[-2]


def check_fits(name: str, x: Tensor, dtype: torch.dtype, shape: tuple[int, ...], k_len: int) -> None:
    """Each size of a mask's array is 1 or that of `shape`."""
    check_plain(x, name)
    if x.dtype != dtype:
        raise TypeError(f"{name} must be {dtype_name(dtype)}, got {dtype_name(x)}")
    if x.dim() != len(shape) or any(a != 1 and a != b for a, b in zip(x.shape, shape, strict=True)):
        whole = ", ".join(str(size) for size in (*shape[:3], k_len))
        raise ValueError(f"{name} has shape {shape_text(x)}, which does not fit ({whole})")


def check_broadcasts(bias: Tensor, shape: tuple[int, ...], given: Tensor | None = None) -> None:
    """ValueError unless `bias` broadcasts to `shape`; `given` is what the caller calls bias."""
    missing = len(shape) - bias.dim()
    fits = missing >= 0
    for size, target in zip(bias.shape, shape[max(missing, 0) :], strict=False):
        fits = fits and (size == 1 or size == target)
    if not fits:
        raise ValueError(
            f"bias has shape {shape_text(bias if given is None else given)}, which does not broadcast to {tuple(shape)}"
        )


def fail(name: str, x: Tensor, other: str, y: Tensor, why: str) -> NoReturn:
    raise ValueError(f"{name} has shape {shape_text(x)} but {other} has shape {shape_text(y)}: {why}")


def shape_text(x: Tensor) -> str:
    return str(tuple(x.shape))


def dtype_name(x: Tensor | torch.dtype) -> str:
    """Return the name that NumPy has for it."""
    return str(x.dtype if isinstance(x, Tensor) else x).removeprefix("torch.")
