"""torch's Transformer layers on `MultiHeadAttention`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import checks
from ...masks import Mask
from ..attention_options import refuse_kind
from .attention import MultiHeadAttention
from .cache import KVCache
from .dropout import Dropout
from .masking import Masking, Scores, ours, torchs

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class TransformerLayer(nn.Module):
    """What both layers share: self-attention, a feed-forward network, and where they are normalised."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        dropout: float,
        activation: str | Callable[[Tensor], Tensor],
        layer_norm_eps: float,
        batch_first: bool,
        norm_first: bool,
        bias: bool,
        device: Any,
        dtype: torch.dtype | None,
        attentions: tuple[str, ...],
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        checks.dropout(dropout, 0, "dropout")
        # In this order torch draws its random numbers.
        for name in attentions:
            layer = MultiHeadAttention(
                d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, init="xavier", **made
            )
            setattr(self, name, layer)
        self.linear1 = nn.Linear(d_model, checks.size(dim_feedforward, "dim_feedforward"), bias=bias, **made)
        self.dropout = Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model, bias=bias, **made)
        self.norm_first = checks.flag(norm_first, "norm_first")
        for number in range(1, len(attentions) + 2):
            setattr(self, f"norm{number}", nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **made))
            setattr(self, f"dropout{number}", Dropout(dropout))
        if isinstance(activation, str):
            if activation not in _ACTIVATIONS:
                raise ValueError(f"activation must be 'relu', 'gelu' or a function of a tensor, got {activation!r}")
            activation = _ACTIVATIONS[activation]
        elif not callable(activation):
            raise TypeError(
                f"activation must be 'relu', 'gelu' or a function of a tensor, got {type(activation).__name__}"
            )
        self.activation = activation

    def _residual(self, x: Tensor, number: int, block: Callable[[Tensor], Tensor]) -> Tensor:
        """x + dropout(block(norm(x))), or norm(x + dropout(block(x)))."""
        norm, dropout = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        result: Tensor = x + dropout(block(norm(x))) if self.norm_first else norm(x + dropout(block(x)))
        return result

    def _feed_forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return result

    def _masking(
        self,
        keys: Tensor,
        queries: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool,
        attend: Mask | Tensor | None,
        names: tuple[str, str, str],
    ) -> Masking:
        """All masks of one attention as one."""
        masking = Masking()
        if attn_mask is None and key_padding_mask is None and attend is None and not is_causal:
            return masking
        layer: Any = self.self_attn
        length = -2 if layer.batch_first or queries.dim() == 2 else 0
        batch = math.prod(queries.shape[:-2]) if length == -2 else queries.shape[1]
        scores = Scores(batch, layer.num_heads, queries.shape[length], keys.shape[length])
        torchs(masking, attn_mask, key_padding_mask, is_causal, names[:2], scores)
        ours(masking, attend, names[2], scores)
        return masking


class TransformerEncoderLayer(TransformerLayer):
    """`torch.nn.TransformerEncoderLayer` on tegula's attention: one import changes, nothing else.

    The same constructor, first values after the same seed, results and `state_dict`, both ways. It
    works inside `torch.nn.TransformerEncoder` (which warns that it will not make nested tensors, unless
    it gets ``enable_nested_tensor=False``). With a causal mask it is the layer of a decoder-only
    model.

    Parameters
    ----------
    d_model : int
        D.
    nhead : int
        H, a divisor of D.
    dim_feedforward : int
        Size between the two linear maps.
    dropout : float
        Probability in [0, 1], for the softmax weights, behind the activation and behind both blocks.
        The seeds are drawn from torch's generator; the decisions are others than torch's.
    activation : {"relu", "gelu"} or callable
        Between the two linear maps.
    layer_norm_eps : float
        Of both norms.
    batch_first : bool
        Rows are (B, L, D), or else, as torch has it, (L, B, D).
    norm_first : bool
        x + block(norm(x)) ("pre-norm") in place of norm(x + block(x)).
    bias : bool
        Whether linear maps and norms have a bias.
    device, dtype
        Of the parameters.

    Raises
    ------
    ValueError
        For sizes that do not fit, and options outside their range.

    Examples
    --------
    >>> import torch
    >>> from tegula import masks
    >>> from tegula.torch.nn import TransformerEncoderLayer
    >>> layer = TransformerEncoderLayer(512, 8, norm_first=True, batch_first=True)
    >>> x = torch.randn(2, 10, 512)
    >>> layer(x, is_causal=True).shape
    torch.Size([2, 10, 512])
    >>> layer(x, attend=masks.sliding(4) & masks.padding([10, 7])).shape
    torch.Size([2, 10, 512])
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias,
            device, dtype, ("self_attn",),
        )  # fmt: skip

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        *,
        attend: Mask | Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Return the encoded rows.

        `src_mask` and `src_key_padding_mask` are torch's: in a bool tensor True = HIDDEN, the opposite
        of everything else in this package. `attend` is ours. All that are given hold.

        Parameters
        ----------
        src : Tensor, shape (B, L, D), (L, B, D) without `batch_first`, or (L, D)
        src_mask : Tensor, shape (L, L) or (B * H, L, L), optional
            Bool, True = HIDDEN; or floats to add to the scores.
        src_key_padding_mask : Tensor, shape (B, L), optional
            Bool, True = HIDDEN; or floats to add to the scores.
        is_causal : bool
            Query i sees no key behind i. In torch a hint that `src_mask` says so; here it needs none.
        attend : Mask or Tensor, optional
            One of `tegula.masks`, or a tensor as `MultiHeadAttention` takes it: True = MAY ATTEND.
        cache : KVCache, optional
            From ``self_attn.new_cache``: src holds the tokens behind those of earlier calls. No
            other mask then, but `attend` with an entry for each key in the cache.

        Returns
        -------
        Tensor, shape of src

        Raises
        ------
        TypeError, ValueError
            For masks of another kind, dtype or shape.
        """
        if not isinstance(src, Tensor):
            refuse_kind("src", src, None)
        if cache is not None:
            if src_mask is not None or src_key_padding_mask is not None:
                raise ValueError("src_mask and src_key_padding_mask do not go with a cache; attend= does")
            mask, bias = attend, None
        else:
            names = ("src_mask", "src_key_padding_mask", "attend")
            found = self._masking(
                src, src, src_mask, src_key_padding_mask, checks.flag(is_causal, "is_causal"), attend, names
            )
            mask, bias = found.mask, found.bias

        def attended(x: Tensor) -> Tensor:
            result: Tensor = self.self_attn(x, x, x, mask, bias=bias, cache=cache)
            return result

        return self._residual(self._residual(src, 1, attended), 2, self._feed_forward)


class TransformerDecoderLayer(TransformerLayer):
    """`torch.nn.TransformerDecoderLayer` on tegula's attention: one import changes, nothing else.

    Self-attention, attention to the rows of an encoder, and a feed-forward network.

    Parameters
    ----------
    d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device, dtype
        As in `TransformerEncoderLayer`.

    Raises
    ------
    ValueError
        For sizes that do not fit, and options outside their range.

    Examples
    --------
    >>> import torch
    >>> from tegula.torch.nn import TransformerDecoderLayer
    >>> layer = TransformerDecoderLayer(512, 8, batch_first=True)
    >>> target, memory = torch.randn(2, 7, 512), torch.randn(2, 10, 512)
    >>> layer(target, memory, tgt_is_causal=True).shape
    torch.Size([2, 7, 512])
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias,
            device, dtype, ("self_attn", "multihead_attn"),
        )  # fmt: skip

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        attend: Mask | Tensor | None = None,
        memory_attend: Mask | Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Return the decoded rows.

        The four masks named ``..._mask`` are torch's: in a bool tensor True = HIDDEN, the opposite of
        everything else in this package. `attend` and `memory_attend` are ours. All that are given hold.

        Parameters
        ----------
        tgt : Tensor, shape (B, L, D), (L, B, D) without `batch_first`, or (L, D)
        memory : Tensor, shape (B, S, D), (S, B, D) or (S, D)
            The rows of the encoder.
        tgt_mask : Tensor, shape (L, L) or (B * H, L, L), optional
            Bool, True = HIDDEN; or floats to add to the scores.
        memory_mask : Tensor, shape (L, S) or (B * H, L, S), optional
            Likewise.
        tgt_key_padding_mask : Tensor, shape (B, L), optional
            Bool, True = HIDDEN; or floats to add to the scores.
        memory_key_padding_mask : Tensor, shape (B, S), optional
            Likewise.
        tgt_is_causal, memory_is_causal : bool
            Query i sees no key behind i. In torch a hint that the mask says so; here it needs none.
        attend, memory_attend : Mask or Tensor, optional
            One of `tegula.masks`, or a tensor as `MultiHeadAttention` takes it: True = MAY ATTEND.
        cache : KVCache, optional
            From ``self_attn.new_cache``: tgt holds the tokens behind those of earlier calls. No
            other mask for them then, but `attend` with an entry for each key in the cache.

        Returns
        -------
        Tensor, shape of tgt

        Raises
        ------
        TypeError, ValueError
            For masks of another kind, dtype or shape.
        """
        for name, x in (("tgt", tgt), ("memory", memory)):
            if not isinstance(x, Tensor):
                refuse_kind(name, x, None)
        if cache is not None:
            if tgt_mask is not None or tgt_key_padding_mask is not None:
                raise ValueError("tgt_mask and tgt_key_padding_mask do not go with a cache; attend= does")
            mask, bias = attend, None
        else:
            names = ("tgt_mask", "tgt_key_padding_mask", "attend")
            found = self._masking(
                tgt, tgt, tgt_mask, tgt_key_padding_mask, checks.flag(tgt_is_causal, "tgt_is_causal"), attend, names
            )
            mask, bias = found.mask, found.bias
        names = ("memory_mask", "memory_key_padding_mask", "memory_attend")
        causal = checks.flag(memory_is_causal, "memory_is_causal")
        across = self._masking(memory, tgt, memory_mask, memory_key_padding_mask, causal, memory_attend, names)

        def attended(x: Tensor) -> Tensor:
            result: Tensor = self.self_attn(x, x, x, mask, bias=bias, cache=cache)
            return result

        def crossed(x: Tensor) -> Tensor:
            result: Tensor = self.multihead_attn(x, memory, memory, across.mask, bias=across.bias)
            return result

        x = self._residual(tgt, 1, attended)
        return self._residual(self._residual(x, 2, crossed), 3, self._feed_forward)
