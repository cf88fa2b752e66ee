"""Scaled dot-product attention, tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _core, checks
from ._types import Array
from .masks import Mask, as_mask
from .runtime import checked_threads


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask | Array | None = None,
    bias: Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi: Array | Sequence[float] | None = None,
    sinks: Array | Sequence[float] | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    layout: str = "bhld",
    return_lse: bool = False,
    return_weights: bool = False,
    threads: int | None = None,
    out: Array | None = None,
) -> Any:
    """Return softmax(softcap(scale * q k^T) + alibi + bias) v over the visible keys.

    Nothing of shape (Lq, Lk) is allocated, and whole tiles that the mask hides are not
    computed. Given tensors, this is `tegula.torch.attention`.

    Parameters
    ----------
    q : ndarray, shape (..., H, Lq, D)
        Queries: float64, float32, float16 or ml_dtypes.bfloat16. Any number of leading
        axes, none included; a 2-D q is one head. Any strides.
    k : ndarray, shape (..., G, Lk, D)
        Keys. G divides H: head h reads key/value head ``h // (H // G)``.
    v : ndarray, shape (..., G, Lk, Dv)
        Values.
    mask : Mask or bool ndarray, optional
        Which keys a query sees, True means "may attend": one of `tegula.masks`, or an
        array as `tegula.masks.dense` takes it. A masked key does not exist: its row may
        even hold NaN. A query that sees no key gives 0.
    bias : ndarray of floats, optional
        Added to the scores; broadcasts to (..., H, Lq, Lk). -inf masks.
    scale : float, optional
        Factor of the products; 1/sqrt(D) by default.
    softcap : float, optional
        Scores x become ``softcap * tanh(x / softcap)``.
    alibi : array of shape (H,), optional
        Slopes: adds ``slope * (j - i - (Lk - Lq))`` to the score of query i and key j.
    sinks : array of shape (H,), optional
        Logits that join the denominator of every row, and nothing else.
    dropout_p : float
        Probability in [0, 1] that a weight is dropped; kept ones are scaled by
        ``1 / (1 - dropout_p)``. See `tegula.dropout_mask`.
    seed : int, optional
        In [0, 2**64); required when ``dropout_p > 0``.
    layout : {"bhld", "blhd", "lhd"}
        Order of the axes: (..., H, L, D), (..., L, H, D), or one packed row (T, H, D) as
        `tegula.masks.documents` describes it.
    return_lse : bool
        Also return the log-sum-exp.
    return_weights : bool
        Also return the softmax weights, before dropout: Lq x Lk numbers a head.
    threads : int, optional
        At least 1. The result does not depend on it.
    out : ndarray, optional
        Where the result goes: q's dtype and shape, with Dv as last axis.

    Returns
    -------
    out : ndarray, shape (..., H, Lq, Dv) in `layout`
        In q's dtype.
    lse : ndarray, shape (..., H, Lq)
        If `return_lse`: natural logarithm of the sum of exp over visible keys and sinks,
        float32 (float64 for float64); -inf where there are none.
    weights : ndarray, shape (..., H, Lq, Lk)
        If `return_weights`, in q's dtype.

    Raises
    ------
    TypeError
        For arguments of another kind or dtype, for example a float array as mask.
    ValueError
        For shapes that do not fit together and options outside their range.

    Notes
    -----
    Scores, softmax and sums over keys are float32 (float64 for float64); the result is
    rounded once. The same row gives the same bits whatever the number of threads, the
    other rows, and the masked keys behind its last visible one. The algorithm is that of
    FlashAttention [1]_ with the online softmax of [2]_.

    References
    ----------
    .. [1] Dao, Fu, Ermon, Rudra, Re, "FlashAttention", NeurIPS 2022.
    .. [2] Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018.

    Examples
    --------
    >>> import numpy as np, tegula as tg
    >>> q = k = v = np.random.default_rng(0).standard_normal((2, 8, 100, 64), np.float32)
    >>> out = tg.attention(q, k, v, mask=tg.masks.causal())
    >>> out.shape
    (2, 8, 100, 64)
    >>> bool(np.array_equal(out[:, :, 0], v[:, :, 0]))  # the first query sees itself only
    True
    """
    if not isinstance(q, np.ndarray) and checks.is_tensor(q):
        return checks.tensor_functions().attention(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            scale=scale,
            softcap=softcap,
            alibi=alibi,
            sinks=sinks,
            dropout_p=dropout_p,
            seed=seed,
            layout=layout,
            return_lse=return_lse,
            return_weights=return_weights,
            threads=threads,
            out=out,
        )
    if not isinstance(q, np.ndarray) and checks.is_device_array(q):
        return checks.array_functions().attention(
            q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, alibi=alibi, sinks=sinks,
            dropout_p=dropout_p, seed=seed, layout=layout, return_lse=return_lse, return_weights=return_weights,
            out=out,
        )  # fmt: skip
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be 'bhld', 'blhd' or 'lhd', got {layout!r}")
    lo = hi = dense = None
    if mask is not None or bias is not None:
        lo, hi, dense, bias = lowered(q, k, v, layout, mask, bias)
    return _core.attention(
        q,
        k,
        v,
        out,
        lo,
        hi,
        dense,
        bias,
        *numbers(alibi, sinks, scale, softcap, dropout_p, seed),
        layout,
        return_lse if isinstance(return_lse, bool) else checks.flag(return_lse, "return_lse"),
        return_weights if isinstance(return_weights, bool) else checks.flag(return_weights, "return_weights"),
        0 if threads is None else checked_threads(threads),
    )


LAYOUTS = ("bhld", "blhd", "lhd")


def lowered(q: Any, k: Any, v: Any, layout: str, mask: Any, bias: Any) -> tuple[Any, Any, Any, Any]:
    """Mask and bias in the form of the native call: lo, hi, dense, bias."""
    lo = hi = dense = None
    if mask is not None:
        if checks.is_tensor(mask):
            raise TypeError("mask is a torch tensor but q is a NumPy array: one call takes one kind")
        mask = as_mask(mask)
    if bias is not None:
        check_bias_kind(bias)
    batch, heads, q_len, k_len, lead = _core.attention_sizes(q, k, v, layout)
    if mask is not None:
        lo, hi, dense = mask._lower(batch, heads, q_len, k_len)
    if bias is not None:
        bias = broadcast_bias(bias, lead, (heads, q_len, k_len))
    return lo, hi, dense, bias


def numbers(
    alibi: Any, sinks: Any, scale: Any, softcap: Any, dropout_p: Any, seed: Any
) -> tuple[Any, Any, float | None, float, float, int]:
    """The options that need no shape, checked, in the order of the native call."""
    if alibi is not None:
        alibi = per_head(alibi, "alibi")
        if not (np.abs(alibi) <= np.finfo(np.float32).max).all():
            raise ValueError(f"alibi must be finite in float32, got {alibi}")
    if sinks is not None:
        sinks = per_head(sinks, "sinks")
    if scale is not None:
        scale = checks.real(scale, "scale")
    if softcap is None:
        softcap = 0.0
    else:
        softcap = checks.real(softcap, "softcap")
        if softcap <= 0:
            raise ValueError(f"softcap must be positive, got {softcap}; None switches it off")
    if dropout_p != 0.0 or seed is not None:
        dropout_p, seed = checks.dropout(dropout_p, seed)
    return alibi, sinks, scale, softcap, dropout_p, seed or 0


def check_bias_kind(bias: Any) -> None:
    """TypeError unless `bias` is an array of floats."""
    if not isinstance(bias, np.ndarray):
        kind = type(bias)
        raise TypeError(f"bias must be a NumPy array of floats, got {kind.__module__}.{kind.__qualname__}")
    if bias.dtype.kind == "b":
        raise TypeError("bias must be a float array, got bool; a bool array belongs in mask=")


def broadcast_bias(bias: np.ndarray, lead: tuple[int, ...], rows: tuple[int, int, int]) -> np.ndarray:
    """A view of `bias` of shape lead + (H, Lq, Lk). Four axes are also (B, H, Lq, Lk)."""
    shape = (*lead, *rows)
    try:
        return np.broadcast_to(bias, shape)
    except ValueError:
        batch = int(np.prod(lead, dtype=np.int64))
        if bias.ndim == 4 and len(lead) != 1 and bias.shape[0] in (1, batch):
            try:
                if bias.shape[0] == 1:
                    return np.broadcast_to(bias[0], shape)
                return np.broadcast_to(bias.reshape(*lead, *bias.shape[1:]), shape)
            except ValueError:
                pass
        raise ValueError(f"bias has shape {bias.shape}, which does not broadcast to {shape}") from None


def per_head(values: Any, name: str) -> np.ndarray:
    """`values` as a float64 array; the binding checks that there is one a head."""
    if not isinstance(values, (np.ndarray, list, tuple)):
        kind = type(values)
        raise TypeError(f"{name} must be an array of floats, got {kind.__module__}.{kind.__qualname__}")
    array = np.asarray(values)
    if array.dtype.kind in "bOSUcmM" or (array.dtype.kind == "V" and array.dtype.names):
        raise TypeError(f"{name} must be an array of floats, got dtype {array.dtype}")
    return array.astype(np.float64)


def merge_attention(out1: Array, lse1: Array, out2: Array, lse2: Array) -> tuple[Array, Array]:
    """Join two results of the same queries over disjoint sets of keys.

    Given tensors, this is `tegula.torch.merge_attention`.

    Parameters
    ----------
    out1, out2 : ndarray, shape (..., H, Lq, Dv)
        Results of `attention` in one dtype.
    lse1, lse2 : ndarray, shape (..., H, Lq)
        Their log-sum-exps, float32 (float64 for float64).

    Returns
    -------
    out, lse : ndarray
        What attention over both sets of keys gives, up to rounding. Where neither has a
        key: 0 and -inf.

    Raises
    ------
    TypeError, ValueError
        When the arrays do not belong together.

    Examples
    --------
    >>> import numpy as np, tegula as tg
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 4, 10, 16), np.float32)
    >>> first = tg.attention(q, k[:, :, :6], v[:, :, :6], return_lse=True)
    >>> second = tg.attention(q, k[:, :, 6:], v[:, :, 6:], return_lse=True)
    >>> out, lse = tg.merge_attention(*first, *second)
    >>> bool(np.allclose(out, tg.attention(q, k, v), atol=1e-6))
    True
    """
    if not isinstance(out1, np.ndarray) and checks.is_tensor(out1):
        found: tuple[Array, Array] = checks.tensor_functions().merge_attention(out1, lse1, out2, lse2)
        return found
    named = {"out1": out1, "lse1": lse1, "out2": out2, "lse2": lse2}
    for name, array in named.items():
        if not isinstance(array, np.ndarray):
            kind = type(array)
            raise TypeError(f"{name} must be a NumPy array, got {kind.__module__}.{kind.__qualname__}")
    if out1.dtype != out2.dtype:
        raise TypeError(f"out2 has dtype {out2.dtype} but out1 has dtype {out1.dtype}")
    checks.float_dtype(out1.dtype)
    compute = np.dtype(np.float64 if out1.dtype == np.float64 else np.float32)
    for name in ("lse1", "lse2"):
        if named[name].dtype != compute:
            raise TypeError(f"{name} must have dtype {compute}, got {named[name].dtype}")
    if out1.shape != out2.shape:
        raise ValueError(f"out2 has shape {out2.shape} but out1 has shape {out1.shape}")
    for name in ("lse1", "lse2"):
        if named[name].shape != out1.shape[:-1]:
            raise ValueError(f"{name} must have shape {out1.shape[:-1]}, got {named[name].shape}")
    peak = np.maximum(lse1, lse2)
    point = np.where(peak == -np.inf, 0, peak).astype(compute)
    with np.errstate(divide="ignore", invalid="ignore"):
        weight1, weight2 = np.exp(lse1 - point), np.exp(lse2 - point)
        total = weight1 + weight2
        lse = point + np.log(total)
    divisor = np.where(total == 0, 1, total).astype(compute)

    def share(out: np.ndarray, weight: np.ndarray) -> np.ndarray:
        factor = (weight / divisor)[..., None]
        # A side without keys takes no part, whatever it holds.
        with np.errstate(invalid="ignore"):
            return np.where(factor == 0, 0, out.astype(compute) * factor)

    return (share(out1, weight1) + share(out2, weight2)).astype(out1.dtype), lse
