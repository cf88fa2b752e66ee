"""Multi-head attention as a module."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ... import checks
from ...masks import Mask, causal, window
from ..attention_options import refuse_kind
from ..dropout import drawn_seed
from ..functional import attention
from .cache import KVCache
from .masking import Masking, Scores, ours, readable, real_keys
from .projections import Projections, positive

# What torch's module of nearly this name calls differently.
TORCHS = {
    "key_padding_mask": "key_padding= is its opposite, True = real",
    "attn_mask": "mask= is the opposite of a bool one, True = may attend; floats are added in both",
    "is_causal": "it is causal= here",
    "average_attn_weights": "weights come for each head",
}


class MultiHeadAttention(Projections):
    """Multi-head attention: softmax(Q K^T / sqrt(d)) V over H heads of size d = D / H, between four Linear.

    The weights are stored as those of `torch.nn.MultiheadAttention`, whose `state_dict` loads here, and
    the other way round. It is called differently: masks say True = may attend, and one tensor returns. The
    tutorials' names work too: ``W_q``, ``W_k``, ``W_v`` and ``W_o``, each with ``weight`` and ``bias``, as
    attributes and as keys of a checkpoint.

    Parameters
    ----------
    d_model : int
        D, divisible by `num_heads`.
    num_heads : int
        H, the number of query heads.
    dropout : float
        Probability in [0, 1] that a softmax weight is dropped while training, drawn from torch's
        generator.
    bias : bool
        Whether the four projections have a bias.
    num_kv_heads : int, optional
        G, a divisor of H: grouped heads. Each key/value head serves H / G query heads. H by default.
    kdim, vdim : int, optional
        Sizes of the rows of `k` and `v`, where they are not D. The projections are stored apart then.
    fused : bool, optional
        One parameter for the projections of q, k and v, so that self-attention is one product. True
        where kdim and vdim are D, unless it is False.
    batch_first : bool
        Rows are (B, L, D), or else (L, B, D).
    causal : bool
        Every call is causal.
    window : int or (left, right), optional
        Every call sees a window: the last `window` keys, itself included (causal), or so many keys
        before and behind its own place, None being unlimited.
    init : {"linear", "xavier"}
        First values: those of four `torch.nn.Linear` in the order W_q, W_k, W_v, W_o, or those of
        `torch.nn.MultiheadAttention`; the same numbers after the same ``torch.manual_seed``.
    device, dtype
        Of the parameters.

    Raises
    ------
    ValueError
        For sizes that do not fit, and options outside their range.

    References
    ----------
    Vaswani et al., "Attention Is All You Need", 2017; Ainslie et al., "GQA", 2023, for grouped heads.

    Examples
    --------
    >>> import torch
    >>> from tegula.torch.nn import MultiHeadAttention
    >>> attention = MultiHeadAttention(512, 8)
    >>> x = torch.randn(2, 10, 512)
    >>> attention(x, x, x).shape
    torch.Size([2, 10, 512])
    >>> ids = torch.tensor([[5, 7, 2, 9, 1, 8, 4, 3, 6, 2], [5, 7, 2, 0, 0, 0, 0, 0, 0, 0]])
    >>> attention(x, x, x, mask=(ids != 0)[:, None, None, :]).shape
    torch.Size([2, 10, 512])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        num_kv_heads: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        fused: bool | None = None,
        batch_first: bool = True,
        causal: bool = False,
        window: int | tuple[int | None, int | None] | None = None,
        init: str = "linear",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, num_heads, num_kv_heads, kdim, vdim, bias, fused, init, device, dtype)
        self.dropout, _ = checks.dropout(dropout, 0, "dropout")
        self.batch_first = checks.flag(batch_first, "batch_first")
        self.causal = checks.flag(causal, "causal")
        self.window = reach(window)

    def forward(
        self,
        q: Tensor,
        k: Tensor | None = None,
        v: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        *,
        key_padding: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        cache: KVCache | None = None,
        need_weights: bool = False,
        **others: Any,
    ) -> Any:
        """Return the result, in the form of `q`.

        Parameters
        ----------
        q : Tensor, shape (B, Lq, D)
            Queries; (Lq, B, D) without `batch_first`, and (Lq, D) for a single sentence.
        k : Tensor, shape (B, Lk, kdim), optional
            Keys; `q` when left out.
        v : Tensor, shape (B, Lk, vdim), optional
            Values; `k` when left out.
        mask : Mask or Tensor, optional
            One of `tegula.masks`; or bool or integers, True or not 0 = MAY ATTEND, of shape (Lq, Lk),
            (B, Lq, Lk) or (B, H, Lq, Lk), with 1 for B, H and Lq where nothing changes, as the
            tutorials' padding (B, 1, 1, Lk). A float tensor is added to the scores: 0 = may attend,
            -inf = hidden; it must hold no positive number.
        key_padding : Tensor, optional
            Bool or integers (B, Lk): True or 1 = the key is REAL. (Torch's key_padding_mask is the
            opposite.) Everything that is given holds.
        bias : Tensor of floats, optional
            Added to the scores; broadcasts to (B, H, Lq, Lk).
        causal : bool
            Query i sees key j when j <= i. Needs as many queries as keys, or a cache.
        cache : KVCache, optional
            k and v go behind those of earlier calls, and all of them are seen, causally: q holds the
            tokens that follow. Masks and biases then speak of all keys of the cache, `max_len` of them;
            a tensor may end earlier, behind the last token.
        need_weights : bool
            Also return the softmax weights before dropout. They have no gradient, and take memory for
            Lq x Lk numbers a head.

        Returns
        -------
        out : Tensor, shape of q
            A query that sees no key gives the bias of ``out_proj``.
        weights : Tensor, shape (B, H, Lq, Lk)
            If `need_weights`.

        Raises
        ------
        TypeError
            For arguments of another kind or dtype.
        ValueError
            For shapes that do not fit, a float mask with positive numbers, and a full cache.
        """
        for name in others:
            hint = TORCHS.get(name)
            raise TypeError(f"MultiHeadAttention has no argument {name!r}{f': {hint}' if hint else ''}")
        k = q if k is None else k
        v = k if v is None else v
        self._check(q, k, v)
        q, k, v = (self._heads_first(x, x.shape[-1] // self.head_dim) for x in self.project(q, k, v))
        heads, q_len = q.shape[-3:-1]
        start = None
        if cache is not None:
            if not isinstance(cache, KVCache):
                raise TypeError(f"cache must be a KVCache, as new_cache() makes it, got {type(cache).__name__}")
            if k.shape[-2] != q_len:
                raise ValueError(f"with a cache, k must have as many rows as q, got {k.shape[-2]} and {q_len}")
            start = cache.write(*(x if x.dim() == 4 else x[None] for x in (k, v)))
            k, v = (x if q.dim() == 4 else x[0] for x in (cache.k, cache.v))
        need_weights = checks.flag(need_weights, "need_weights")
        structure = self._structure(checks.flag(causal, "causal"), start)
        if start is not None:
            needed = int(start) + q_len if readable(start) else 0
            named = (("mask", mask), ("key_padding", key_padding), ("bias", bias))
            if needed and not need_weights and not isinstance(mask, Mask):
                mask, key_padding, bias = (so_far(x, name, needed, k.shape[-2]) for name, x in named)
                k, v = k[..., :needed, :], v[..., :needed, :]
                structure = self._structure_of_last(q_len, needed)
            else:
                mask, key_padding, bias = (padded(x, name, needed, k.shape[-2]) for name, x in named)
        scores = Scores(math.prod(q.shape[:-3]), heads, q_len, k.shape[-2])

        masking = Masking()
        if structure is not None:
            masking.hide(structure)
        ours(masking, mask, "mask", scores)
        real_keys(masking, key_padding, "key_padding", scores)
        if bias is not None:
            masking.add(bias)
        dropout_p = self.dropout if self.training else 0.0
        out = attention(
            q, k, v, mask=masking.mask, bias=masking.bias, dropout_p=dropout_p, seed=drawn_seed(dropout_p, q.device)
        )
        if cache is not None:
            cache.advance(q_len)  # nothing failed
        result = self.out_proj(self._rows(out))
        if not need_weights:
            return result
        with torch.no_grad():
            _, weights = attention(q, k, v, mask=masking.mask, bias=masking.bias, return_weights=True)
        return result, weights

    def new_cache(self, batch_size: int, max_len: int, *, dtype: torch.dtype | None = None) -> KVCache:
        """Return an empty `KVCache` of this layer's heads and device, and type: autocast's needs ``dtype=``."""
        like = self._weights()[1]  # out_proj may have been replaced, by an adapter or a quantized one
        return KVCache(
            batch_size, max_len, self.num_kv_heads, self.head_dim, device=like.device, dtype=dtype or like.dtype
        )

    def _structure(self, is_causal: bool, start: Tensor | None) -> Mask | None:
        """The mask that the module's own options and a cache, filled up to `start`, make."""
        if start is not None:
            left, _ = self.window or (None, 0)
            return window(left, 0, offset=start)
        is_causal = is_causal or self.causal
        if self.window is None:
            return causal() if is_causal else None
        left, right = self.window
        return window(left, 0 if is_causal else right)

    def _structure_of_last(self, q_len: int, k_len: int) -> Mask | None:
        """The mask of the last `q_len` of `k_len` tokens."""
        left = None if self.window is None else self.window[0]
        if q_len == 1 and (left is None or left >= k_len - 1):
            return None
        return window(left, 0, align="bottom_right")

    def _heads_first(self, x: Tensor, heads: int) -> Tensor:
        """(..., L, heads d), or (L, B, heads d), as (..., heads, L, d) in the same memory."""
        x = x.unflatten(-1, (heads, self.head_dim))
        return x.transpose(-3, -2) if self.batch_first or x.dim() == 3 else x.permute(1, 2, 0, 3)

    def _rows(self, x: Tensor) -> Tensor:
        """What `_heads_first` made, taken back."""
        x = x.transpose(-3, -2) if self.batch_first or x.dim() == 3 else x.permute(2, 0, 1, 3)
        return x.flatten(-2)

    def _check(self, q: Any, k: Any, v: Any) -> None:
        """What the projections would say less clearly."""
        named = (("q", q, self.embed_dim), ("k", k, self.kdim), ("v", v, self.vdim))
        length = -2 if self.batch_first else 0
        for name, x, width in named:
            if not isinstance(x, Tensor):
                refuse_kind(name, x, None)
            if x.dim() < 2 or (not self.batch_first and x.dim() > 3) or x.shape[-1] != width:
                form = "(..., L, {0})" if self.batch_first else "(L, B, {0}) or (L, {0})"
                raise ValueError(f"{name} must have shape {form.format(width)}, got {tuple(x.shape)}")
            if not x.is_floating_point():
                raise TypeError(f"{name} must be a float tensor, got {x.dtype}")
            if x.dim() != q.dim():
                raise ValueError(
                    f"{name} has {x.dim()} axes and q {q.dim()}: shapes {tuple(x.shape)} and {tuple(q.shape)}; "
                    "add the missing batch axis with [None]"
                )
        if k.shape[length] != v.shape[length]:
            raise ValueError(
                f"k and v must have as many rows, got {k.shape[length]} and {v.shape[length]}: "
                f"shapes {tuple(k.shape)} and {tuple(v.shape)}"
            )
        for name, x in (("k", k), ("v", v)):
            axes = slice(-2) if self.batch_first else slice(1, -1)
            if x.shape[axes] != q.shape[axes]:
                raise ValueError(
                    f"{name} has batch axes {tuple(x.shape[axes])}, but q has {tuple(q.shape[axes])}: "
                    f"shapes {tuple(x.shape)} and {tuple(q.shape)}"
                )

    def extra_repr(self) -> str:
        shown = {
            "dropout": (self.dropout, 0.0),
            "num_kv_heads": (self.num_kv_heads, self.num_heads),
            "kdim": (self.kdim, self.embed_dim),
            "vdim": (self.vdim, self.embed_dim),
            "batch_first": (self.batch_first, True),
            "causal": (self.causal, False),
            "window": (self.window, None),
            "bias": (self.in_proj_bias is not None, True),
        }
        options = (f"{name}={value}" for name, (value, usual) in shown.items() if value != usual)
        return ", ".join([f"{self.embed_dim}", f"{self.num_heads}", *options])


def reach(value: Any) -> tuple[int | None, int | None] | None:
    """A window as (left, right), of keys before and behind the own place."""
    if value is None:
        return None
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise ValueError(f"window must be an int or a pair (left, right), got {value!r}")
        window(*value)  # checks them
        return value[0], value[1]
    return positive(value, "window") - 1, 0


def so_far(x: Any, name: str, needed: int, k_len: int) -> Any:
    """A tensor that speaks of the `needed` keys so far, or of more of the `k_len` of the cache: of those so far."""
    if not isinstance(x, Tensor) or x.dim() == 0 or x.shape[-1] > k_len or (name == "bias" and x.shape[-1] == 1):
        return x
    return padded(x, name, needed, needed)[..., :needed]


def padded(x: Any, name: str, needed: int, k_len: int) -> Any:
    """A tensor that speaks of the `needed` keys so far, and of all `k_len` of the cache: the rest is the future."""
    if not isinstance(x, Tensor) or x.dim() == 0 or x.shape[-1] >= k_len or (name == "bias" and x.shape[-1] == 1):
        return x
    if x.shape[-1] < needed:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, but with these tokens the cache holds {needed} keys")
    return F.pad(x, (0, k_len - x.shape[-1]))
