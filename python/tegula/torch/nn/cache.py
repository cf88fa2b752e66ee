"""Keys and values of the tokens so far, for decoding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...masks._torch import traced
from .projections import positive


class KVCache:
    """Keys and values of one attention layer, in memory of fixed size.

    Sizes never change while tokens are added, so that ``torch.compile`` compiles a decoding step once.

    Parameters
    ----------
    batch_size : int
        B.
    max_len : int
        How many tokens fit; one more is a ValueError.
    num_kv_heads : int
        G, the number of key/value heads.
    head_dim : int
        d, the size of a head.
    device, dtype
        Of the keys and values.

    Attributes
    ----------
    k, v : Tensor, shape (B, G, max_len, d)
        What was added so far; zeros behind it.
    length : Tensor of int64, shape (1,)
        How many tokens were added.

    Notes
    -----
    `MultiHeadAttention.new_cache` makes one that fits. A cache is filled without gradients: use it
    under ``torch.no_grad()`` or ``torch.inference_mode()``.

    Examples
    --------
    >>> import torch
    >>> from tegula.torch.nn import MultiHeadAttention
    >>> layer = MultiHeadAttention(32, 4).eval()
    >>> x = torch.randn(1, 6, 32)
    >>> cache = layer.new_cache(batch_size=1, max_len=6)
    >>> with torch.no_grad():
    ...     steps = [layer(x[:, i : i + 1], cache=cache) for i in range(6)]
    ...     whole = layer(x, causal=True)
    >>> torch.allclose(torch.cat(steps, 1), whole, atol=1e-6)
    True
    """

    def __init__(
        self,
        batch_size: int,
        max_len: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = (
            positive(batch_size, "batch_size"),
            positive(num_kv_heads, "num_kv_heads"),
            positive(max_len, "max_len"),
            positive(head_dim, "head_dim"),
        )
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros_like(self.k)
        self.length = torch.zeros(1, dtype=torch.int64, device=device)

    @property
    def max_len(self) -> int:
        """How many tokens fit."""
        size: int = self.k.shape[2]
        return size

    def write(self, k: Tensor, v: Tensor) -> Tensor:
        """Write keys and values behind those so far. They count as soon as `advance` says so.

        Parameters
        ----------
        k, v : Tensor, shape (B, G, n, d)

        Returns
        -------
        Tensor of int64, shape (1,)
            How many there are before them.

        Raises
        ------
        ValueError
            When they do not fit, in shape or number. (While torch compiles, a number that does not fit
            is a RuntimeError or an IndexError of the compiled code.)
        TypeError
            For another dtype.
        RuntimeError
            When autograd would have to follow.
        """
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise RuntimeError("a KVCache keeps no gradients: decode under torch.no_grad() or torch.inference_mode()")
        batch, heads, max_len, head_dim = self.k.shape
        count = k.shape[2]
        for name, x in (("k", k), ("v", v)):
            if tuple(x.shape) != (batch, heads, count, head_dim):
                raise ValueError(
                    f"{name} has shape {tuple(x.shape)} as (B, G, n, d), but the cache holds "
                    f"(B, G, max_len, d) = {tuple(self.k.shape)}"
                )
            if x.dtype != self.k.dtype:
                raise TypeError(f"{name} has dtype {x.dtype}, but the cache {self.k.dtype}; make it with dtype=")
        before = self.length.clone()
        if traced():
            torch._assert_async(
                (before <= max_len - count).all(), f"the cache is full: it was made for max_len={max_len} tokens"
            )
        else:
            first = int(before)
            if first + count > max_len:
                raise ValueError(
                    f"the cache holds {first} of max_len={max_len} tokens, and {count} more do not fit; "
                    "make it with a larger max_len, or begin anew with reset()"
                )
            self.k.narrow(2, first, count).copy_(k)
            self.v.narrow(2, first, count).copy_(v)
            return before
        places = before + torch.arange(count, device=before.device)
        self.k.index_copy_(2, places, k)
        self.v.index_copy_(2, places, v)
        return before

    def advance(self, count: int) -> None:
        """Let the `count` tokens that were written last be part of the cache."""
        self.length += count

    def reset(self) -> None:
        """Forget all tokens. The memory stays."""
        self.length.zero_()

    def reorder(self, order: Tensor) -> None:
        """Let batch entry b go on from what entry ``order[b]`` has, as beam search wants it.

        Parameters
        ----------
        order : Tensor of int64, shape (B,)
        """
        if tuple(order.shape) != (self.k.shape[0],):
            raise ValueError(f"order must have shape (B,) = ({self.k.shape[0]},), got {tuple(order.shape)}")
        self.k.copy_(self.k.index_select(0, order))
        self.v.copy_(self.v.index_select(0, order))

    def __repr__(self) -> str:
        batch, heads, max_len, head_dim = self.k.shape
        return f"KVCache({batch}, {max_len}, {heads}, {head_dim}, dtype={self.k.dtype})"
