"""Gradients of scaled dot-product attention, tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _core, checks
from ._types import Array
from .attention import LAYOUTS, broadcast_bias, lowered, numbers
from .masks import Mask
from .runtime import checked_threads


def attention_backward(
    grad_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
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
    grad_lse: Array | None = None,
    threads: int | None = None,
    grads: tuple[Array, Array, Array] | None = None,
) -> tuple[Array, ...]:
    """Return the gradients of `attention` with respect to q, k, v, and bias and sinks if given.

    The weights are computed again, tile by tile, from q, k and the log-sum-exp: nothing of
    shape (Lq, Lk) is allocated, and whole tiles that the mask hides are not computed. Given
    tensors, this is `tegula.torch.attention_backward`.

    Parameters
    ----------
    grad_out : ndarray, shape (..., H, Lq, Dv) in `layout`
        Gradient of the result, in q's dtype. Any strides, also 0.
    q, k, v : ndarray
        What `attention` was given.
    out : ndarray, shape (..., H, Lq, Dv) in `layout`
        What `attention` returned.
    lse : ndarray, shape (..., H, Lq)
        What `attention` returned with ``return_lse=True``.
    mask, bias, scale, softcap, alibi, sinks, dropout_p, seed, layout
        The options that `attention` was given. Dropout is replayed from the seed.
    grad_lse : ndarray, shape (..., H, Lq), optional
        Gradient of the log-sum-exp, in lse's dtype, where the loss depends on it.
    threads : int, optional
        At least 1. The result does not depend on it.
    grads : tuple of three ndarrays, optional
        Where dq, dk and dv go: of the shapes and the dtype of q, k and v. Overwritten.

    Returns
    -------
    dq, dk, dv : ndarray
        In the shapes and the dtype of q, k and v. Where query heads share a key/value head,
        dk and dv are their sums.
    dbias : ndarray
        If `bias` was given: in its shape and dtype, summed over what it was broadcast along.
    dsinks : ndarray, shape (H,)
        If `sinks` were given: in their dtype, float64 for a list.

    Raises
    ------
    TypeError
        For arguments of another kind or dtype.
    ValueError
        For shapes that do not fit together and options outside their range.

    Notes
    -----
    Sums are float32 (float64 for float64); results are rounded once. A hidden key gets no
    gradient from a query and gives none, whatever either of them holds; a query without keys
    has gradient 0. Gradients are the same bits for any number of threads. The algorithm is
    that of FlashAttention [1]_.

    References
    ----------
    .. [1] Dao, Fu, Ermon, Rudra, Re, "FlashAttention", NeurIPS 2022, algorithm 4.

    Examples
    --------
    >>> import numpy as np, tegula as tg
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 4, 10, 16), np.float32)
    >>> out, lse = tg.attention(q, k, v, mask=tg.masks.causal(), return_lse=True)
    >>> grad_out = np.ones_like(out)
    >>> dq, dk, dv = tg.attention_backward(grad_out, q, k, v, out, lse, mask=tg.masks.causal())
    >>> dq.shape, bool((dq[:, :, 0] == 0).all())  # the first query sees itself only
    ((1, 4, 10, 16), True)
    """
    if not isinstance(grad_out, np.ndarray) and checks.is_tensor(grad_out):
        gradients: tuple[Array, ...] = checks.tensor_functions().attention_backward(
            grad_out,
            q,
            k,
            v,
            out,
            lse,
            mask=mask,
            bias=bias,
            scale=scale,
            softcap=softcap,
            alibi=alibi,
            sinks=sinks,
            dropout_p=dropout_p,
            seed=seed,
            layout=layout,
            grad_lse=grad_lse,
            threads=threads,
            grads=grads,
        )
        return gradients
    if not isinstance(grad_out, np.ndarray) and checks.is_device_array(grad_out):
        found_there: tuple[Array, ...] = checks.array_functions().attention_backward(
            grad_out, q, k, v, out, lse, mask=mask, bias=bias, scale=scale, softcap=softcap, alibi=alibi,
            sinks=sinks, dropout_p=dropout_p, seed=seed, layout=layout, grad_lse=grad_lse, grads=grads,
        )  # fmt: skip
        return found_there
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be 'bhld', 'blhd' or 'lhd', got {layout!r}")
    lo = hi = dense = spread = dbias = spread_dbias = None
    if mask is not None or bias is not None:
        lo, hi, dense, spread = lowered(q, k, v, layout, mask, bias)
    if bias is not None:
        dbias = np.zeros(bias.shape, bias.dtype.newbyteorder("="))
        _, heads, q_len, k_len, lead = _core.attention_sizes(q, k, v, layout)
        spread_dbias = broadcast_bias(dbias, lead, (heads, q_len, k_len))
    dq, dk, dv = (None, None, None) if grads is None else _three(grads)
    *found, dsinks = _core.attention_backward(
        grad_out,
        q,
        k,
        v,
        out,
        lse,
        lo,
        hi,
        dense,
        spread,
        *numbers(alibi, sinks, scale, softcap, dropout_p, seed),
        layout,
        dq,
        dk,
        dv,
        spread_dbias,
        grad_lse,
        0 if threads is None else checked_threads(threads),
    )
    if dbias is not None:
        found.append(dbias)
    if dsinks is not None:
        if isinstance(sinks, np.ndarray) and sinks.dtype.kind not in "iu":
            dsinks = dsinks.astype(sinks.dtype.newbyteorder("="))
        found.append(dsinks)
    return tuple(found)


def _three(grads: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if not isinstance(grads, tuple) or len(grads) != 3:
        raise TypeError(f"grads must be a tuple of three arrays (dq, dk, dv), got {type(grads).__name__}")
    return grads
