"""Functions that stand in for those of other libraries, with the same arguments and the same meaning."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from .. import checks
from ..masks import Mask, causal, dense
from ..masks._documents import Packed
from ..masks._torch import Torch
from .attention_checks import dtype_name, shape_text
from .dropout import drawn_seed
from .functional import attention
from .library import check_plain

TOP_LEFT = causal("top_left")  # one object, which keeps its last result


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return what `torch.nn.functional.scaled_dot_product_attention` returns.

    Masks, dropout and gradients of `attn_mask` stay tiled, and head sizes may differ. What torch
    refuses on some of its paths works on all: `attn_mask` together with `is_causal`.

    Parameters
    ----------
    query : Tensor, shape (..., H, Lq, D)
        Two axes or more.
    key : Tensor, shape (..., H, Lk, D)
        Leading axes broadcast, heads among them, as torch's do.
    value : Tensor, shape (..., H, Lk, Dv)
        Likewise.
    attn_mask : Tensor, optional
        Broadcasts to (..., H, Lq, Lk). Bool: True = may attend. Floats, float32 or query's dtype, are
        added to the scores: -inf masks, and a mask of 0 and 1 hides nothing. It gets its gradient.
    dropout_p : float
        Probability that a weight is dropped, whether a model trains or not. The decisions are drawn
        from torch's generator: they repeat after ``torch.manual_seed``, and are others than torch's.
    is_causal : bool
        Query i sees key j when j <= i: aligned TOP LEFT, also where Lq and Lk differ. (For a cache,
        `tegula.torch.attention` has ``masks.causal("bottom_right")``.) With `attn_mask` both hold.
    scale : float, optional
        1/sqrt(D) by default.
    enable_gqa : bool
        Allow fewer heads in key and value: their number divides H. They are not repeated in memory.

    Returns
    -------
    Tensor, shape (..., H, Lq, Dv)
        A query that sees no key gives 0. A key that is hidden does not exist: where torch lets its
        NaN through, it has no influence here.

    Raises
    ------
    TypeError
        For arguments of another kind, dtype or device.
    ValueError
        For shapes that do not fit, and options outside their range.

    Examples
    --------
    >>> import torch, tegula.torch
    >>> q, k, v = torch.randn(3, 2, 8, 100, 64)
    >>> out = tegula.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> torch.allclose(out, theirs, atol=1e-5)
    True
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_tensor(x, name)
        check_plain(x, name)
        if x.dim() < 2:
            raise ValueError(f"{name} has shape {shape_text(x)}, but needs at least two axes: (..., L, D)")
    if is_causal is not False:
        is_causal = checks.flag(is_causal, "is_causal")
    if enable_gqa is not False:
        enable_gqa = checks.flag(enable_gqa, "enable_gqa")
    query, key, value, lead = broadcast(query, key, value, enable_gqa)

    visible = bias = None
    if attn_mask is not None:
        attn_mask = fitted(attn_mask, query.dtype, (*lead, query.shape[-2], key.shape[-2]))
        if attn_mask.dtype is torch.bool:
            visible = per_batch(attn_mask, query.shape[:-3])
        else:
            bias = attn_mask
    mask: Mask | Tensor | None = visible
    if is_causal:
        mask = TOP_LEFT if visible is None else TOP_LEFT & dense(visible)
    result: Tensor = attention(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        scale=scale,
        dropout_p=dropout_p,
        seed=drawn_seed(dropout_p, query.device),
    )
    return result


def check_tensor(value: Any, name: str) -> None:
    if not isinstance(value, Tensor):
        kind = type(value)
        raise TypeError(f"{name} must be a torch tensor, got {kind.__module__}.{kind.__qualname__}")


def broadcast(
    query: Tensor, key: Tensor, value: Tensor, grouped: bool
) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """The three with as many axes and the same leading ones, and the leading axes of the scores.

    Nothing is copied: an axis that broadcasts gets stride 0, and heads of key and value that serve
    several of query stay as they are.
    """
    given = query, key, value
    if query.shape == key.shape == value.shape and not grouped:
        return query, key, value, tuple(query.shape)[:-2]
    if query.shape[-1] != key.shape[-1]:
        unfit("query and key must have the same last axis", given)
    if key.shape[-2] != value.shape[-2]:
        unfit("key and value must have as many rows", given)
    if query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        if grouped and query.dim() < 3:
            unfit("enable_gqa needs an axis of heads", given)
        return query, key, value, query.shape[:-2]

    ranks = query.dim(), key.dim(), value.dim()
    if grouped and min(ranks) < 3:
        unfit("enable_gqa needs an axis of heads", given)
    query, key, value = (x[(None,) * (max(ranks) - x.dim())] for x in given)
    heads, *served = (x.shape[-3] for x in (query, key, value))
    if grouped:
        if any(n == 0 or heads % n for n in served):
            unfit("the heads of key and value must divide those of query", given)
        if served[0] != served[1]:
            key, value = (x.repeat_interleave(heads // x.shape[-3], -3) for x in (key, value))
    else:
        heads = common_size([heads, *served], given)
        query = query.expand(*query.shape[:-3], heads, -1, -1)
        if served[0] != served[1]:
            key, value = (x.expand(*x.shape[:-3], heads, -1, -1) for x in (key, value))
    seen = [common_size(sizes, given) for sizes in zip(query.shape[:-3], key.shape[:-3], strict=True)]
    lead = [common_size(sizes, given) for sizes in zip(seen, value.shape[:-3], strict=True)]
    query, key, value = (x.expand(*lead, *x.shape[-3:]) for x in (query, key, value))
    return query, key, value, (*seen, heads)


def unfit(why: str, given: tuple[Tensor, Tensor, Tensor]) -> NoReturn:
    query, key, value = map(shape_text, given)
    raise ValueError(f"{why}, got shapes {query} of query, {key} of key and {value} of value")


def common_size(sizes: Any, given: tuple[Tensor, Tensor, Tensor]) -> int:
    """The size to which axes broadcast."""
    result = 1
    for size in sizes:
        if size != 1:
            if result != 1 and size != result:
                unfit("query, key and value must broadcast along their leading axes", given)
            result = size
    return result


def fitted(mask: Any, dtype: torch.dtype, scores: tuple[int, ...]) -> Tensor:
    """`attn_mask` with as many axes as the scores, each of size 1 or theirs; one of two axes may stay as it is."""
    check_tensor(mask, "attn_mask")
    check_plain(mask, "attn_mask")
    if mask.dim() == 2 and tuple(mask.shape) == scores[-2:] and mask.dtype in (torch.bool, dtype):
        return mask
    allowed = {torch.bool, torch.float32, dtype}
    if torch.is_autocast_enabled("cpu"):
        allowed.add(torch.get_autocast_dtype("cpu"))
    if mask.dtype not in allowed:
        raise TypeError(
            f"attn_mask must be bool (True = may attend), float32 or query's {dtype_name(dtype)}, "
            f"got {dtype_name(mask)}"
        )
    shape = (1,) * (len(scores) - mask.dim()) + tuple(mask.shape)
    if len(shape) > len(scores) or any(a != 1 and a != b for a, b in zip(shape, scores, strict=True)):
        raise ValueError(f"attn_mask has shape {shape_text(mask)}, which does not broadcast to {tuple(scores)}")
    result: Tensor = mask.expand(*shape[:-2], *scores[-2:])
    return result


def per_batch(mask: Tensor, lead: Any) -> Tensor:
    """A bool mask as `tegula.masks.dense` takes it: (Lq, Lk) or (B, H, Lq, Lk), each of B and H or 1."""
    if mask.dim() == 2:
        return mask
    if all(size == 1 for size in mask.shape[:-3]):
        return mask.reshape(1, *mask.shape[-3:])
    # Expanded axes merge without a copy where their strides allow it.
    return mask.expand(*lead, -1, -1, -1).flatten(0, -4)


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
) -> Any:
    """Return attention within each sequence of a packed batch, with the conventions of flash-attn.

    What ``flash_attn_varlen_func`` [1]_ computes, for any head sizes and the four float types.

    Parameters
    ----------
    q : Tensor, shape (Tq, H, D)
        The queries of all sequences, one sequence after the other.
    k : Tensor, shape (Tk, G, D)
        Keys. G divides H.
    v : Tensor, shape (Tk, G, Dv)
        Values.
    cu_seqlens_q, cu_seqlens_k : integer Tensor, shape (sequences + 1,)
        Where each sequence begins and ends: first 0, never decreasing, last Tq and Tk exactly.
        Sequences may be empty on either side.
    max_seqlen_q, max_seqlen_k : int, optional
        Not needed, as the kernels read cu_seqlens; they stand here as in flash-attn.
    causal : bool
        A query sees no key behind its own place. Aligned BOTTOM RIGHT in each sequence: the last
        query sees the last key.
    window_size : (left, right)
        How many keys before and behind its own place a query sees, itself not counted, aligned as
        `causal`. -1 is unlimited, here only. With `causal`, right is 0.
    softmax_scale : float, optional
        1/sqrt(D) by default.
    softcap : float
        Scores x become ``softcap * tanh(x / softcap)``; 0 switches it off.
    alibi_slopes : Tensor, shape (H,) or (sequences, H), optional
        Adds ``-slope * |i + shift - j|``, with i and j counted in each sequence and shift aligning it
        bottom right. Where keys behind a query are visible, or slopes or lengths differ from
        sequence to sequence (not those of `q` and `k` alike in one `cu_seqlens`), this takes a bias
        of shape (H, Tq, Tk) in memory; otherwise nothing. Slopes get no gradient.
    dropout_p : float
        Probability that a weight is dropped, drawn from torch's generator.
    return_lse : bool
        Also return the log-sum-exp. (The probabilities, ``return_attn_probs``, are not offered, and
        neither is ``block_table``.)

    Returns
    -------
    out : Tensor, shape (Tq, H, Dv)
        A query that sees no key gives 0.
    lse : Tensor, shape (H, Tq)
        If `return_lse`: float32 (float64 for float64), -inf where a query sees no key.

    Raises
    ------
    TypeError
        For arguments of another kind, dtype or device.
    ValueError
        For shapes that do not fit, borders that break the rules above, and options outside their range.

    Notes
    -----
    While torch traces, and on devices other than the CPU, the numbers in `cu_seqlens_q` and
    `cu_seqlens_k` are not checked: queries behind the last border then see no key.

    References
    ----------
    .. [1] Dao, "FlashAttention-2", ICLR 2024; https://github.com/Dao-AILab/flash-attention.

    Examples
    --------
    >>> import torch, tegula.torch
    >>> q, k, v = torch.randn(3, 10, 4, 16)
    >>> borders = torch.tensor([0, 3, 10])
    >>> out = tegula.torch.varlen_attention(q, k, v, borders, borders, causal=True)
    >>> torch.allclose(out[3], v[3])  # the second sequence begins here, and sees itself only
    True
    """
    named = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    for name, x in named.items():
        check_tensor(x, name)
        check_plain(x, name)
    for name, length in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if length is not None and not isinstance(length, (Tensor, torch.SymInt)):
            checks.integer(length, name)
    causal = checks.flag(causal, "causal")
    left, right = reach(window_size)
    shared = cu_seqlens_k is cu_seqlens_q
    mask = Packed(
        cu_seqlens_q,
        None if shared else cu_seqlens_k,
        "bottom_right" if causal else None,
        None if left is None and right is None else (left, right),
        names=("cu_seqlens_q", "cu_seqlens_k"),
    )
    alibi = bias = None
    if alibi_slopes is not None:
        check_slopes(alibi_slopes, q, cu_seqlens_q)
        if alibi_slopes.dim() == 1 and shared and (causal or right == 0):
            alibi = alibi_slopes  # its distances then are those within the sequence
        else:
            bias = distances(alibi_slopes, cu_seqlens_q, cu_seqlens_k, q, k.shape[0])
    return attention(
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        scale=softmax_scale,
        softcap=None if isinstance(softcap, (int, float)) and softcap == 0.0 else softcap,
        alibi=alibi,
        dropout_p=dropout_p,
        seed=drawn_seed(dropout_p, q.device),
        layout="lhd",
        return_lse=return_lse,
    )


def reach(window_size: Any) -> tuple[int | None, int | None]:
    """A window as `tegula.masks.window` takes it: None for -1."""
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise TypeError(f"window_size must be a pair (left, right), got {window_size!r}")
    left, right = (checks.integer(n, f"window_size[{i}]") for i, n in enumerate(window_size))
    for i, n in enumerate((left, right)):
        if n < -1:
            raise ValueError(f"window_size[{i}] must be at least 0, or -1 for unlimited, got {n}")
    return None if left == -1 else left, None if right == -1 else right


def check_slopes(slopes: Any, q: Tensor, borders: Tensor) -> None:
    check_tensor(slopes, "alibi_slopes")
    check_plain(slopes, "alibi_slopes")
    if not slopes.is_floating_point():
        raise TypeError(f"alibi_slopes must be a float tensor, got {dtype_name(slopes)}")
    if slopes.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("alibi_slopes requires grad, but gets no gradient; pass alibi_slopes.detach()")
    heads = q.shape[1] if q.dim() == 3 else None
    shape = tuple(slopes.shape)
    if heads is not None and shape != (heads,) and shape != (borders.shape[0] - 1, heads):
        raise ValueError(
            f"alibi_slopes must have shape (H,) = ({heads},) or (sequences, H) = "
            f"({borders.shape[0] - 1}, {heads}), got {shape}"
        )


def distances(slopes: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, q: Tensor, k_len: int) -> Tensor:
    """(H, Tq, Tk): -slope * |i + shift - j|, as precise as slopes and q. A place counts from its sequence's end."""
    on = Torch(q.device)
    places = []
    for borders, length in ((cu_seqlens_q, q.shape[0]), (cu_seqlens_k, k_len)):
        ends = on.borders(borders.to(torch.int64), "", length, "")
        sequence = on.documents_at(ends, length)
        places.append((sequence, on.arange(length) - ends[sequence + 1]))
    (sequence, q_place), (_, k_place) = places
    distance = (q_place[:, None] - k_place[None]).abs()
    slopes = slopes.to(q.device, torch.float64 if torch.float64 in (slopes.dtype, q.dtype) else torch.float32)
    if slopes.dim() == 1:
        return -slopes[:, None, None] * distance
    return -slopes[sequence.clamp(max=slopes.shape[0] - 1)].T[:, :, None] * distance
