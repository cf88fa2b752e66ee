"""The tutorials' layers on plain torch, under the names of `tegula.torch.nn`: what seed_tutorials.py compares with.

Attention is spelled out, as in a tutorial: scores (B, H, Lq, Lk), softmax, weights times values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import TransformerEncoderLayer

__all__ = [
    "EmbeddingLayer",
    "MultiHeadAttention",
    "PositionEmbedding",
    "PositionalEncoding",
    "TokenEmbedding",
    "TransformerEmbedding",
    "TransformerEncoderLayer",
    "combine_masks",
    "create_local_mask",
    "create_pad_mask",
    "create_pair_mask",
    "create_seq_mask",
    "create_valid_mask",
]

HIDDEN = -1e9  # the score of a key that may not be attended


def sinusoidal_table(length: int, dim: int) -> Tensor:
    """Return (length, dim): sin(p / 10000^(2i / dim)) and its cosine in turn."""
    table = torch.empty(length, dim, dtype=torch.float64)
    position = torch.arange(length, dtype=torch.float64)[:, None]
    divisor = torch.exp(math.log(10000) * torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    table[:, 0::2] = torch.sin(position / divisor)
    table[:, 1::2] = torch.cos(position / divisor[: dim // 2])
    return table.float()


class TokenEmbedding(nn.Embedding):
    """Rows of a (V, D) table; the pad's is zero and not trained."""

    def __init__(self, vocab_size: int, d_model: int, pad_idx: int = 0) -> None:
        super().__init__(vocab_size, d_model, padding_idx=pad_idx)


class PositionEmbedding(nn.Module):
    """ids (B, L) -> (1, L, D), the first L rows of a constant table."""

    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoidal_table(max_len, d_model)[None], persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        rows: Tensor = self.table[:, : ids.shape[1]]
        return rows


class TransformerEmbedding(nn.Module):
    """Tokens * sqrt(D) + positions, then dropout."""

    def __init__(self, vocab_size: int, d_model: int, max_len: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.token_embedding = TokenEmbedding(vocab_size, d_model)
        self.position_embedding = PositionEmbedding(d_model, max_len)
        self.dropout = nn.Dropout(dropout)
        self.scale = math.sqrt(d_model)

    def forward(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.token_embedding(ids) * self.scale + self.position_embedding(ids))
        return embedded


class PositionalEncoding(nn.Module):
    """x + the first L rows of the table."""

    def __init__(self, d_model: int, max_len: int = 5000) -> None:
        super().__init__()
        self.positions = PositionEmbedding(d_model, max_len)

    def forward(self, x: Tensor) -> Tensor:
        placed: Tensor = x + self.positions(x)
        return placed


class EmbeddingLayer(nn.Module):
    """Tokens * sqrt(D), then `PositionalEncoding`."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.positional_encoding = PositionalEncoding(d_model)
        self.scale = math.sqrt(d_model)

    def forward(self, x: Tensor) -> Tensor:
        embedded: Tensor = self.positional_encoding(self.embedding(x) * self.scale)
        return embedded


class MultiHeadAttention(nn.Module):
    """softmax(Q K^T / sqrt(d) + mask) V for H heads of size d = D / H, between four linear maps."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"d_model={d_model} is not divisible by num_heads={num_heads}")
        self.num_heads = num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mask`: (B, Lq, Lk) or (Lq, Lk), 0 or False hides."""
        heads = (self.split(projected) for projected in (self.W_q(q), self.W_k(k), self.W_v(v)))
        query, key, value = (x.float() for x in heads)  # 16-bit numbers meet in float32
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        if mask is not None:
            scores = scores.masked_fill((mask if mask.dim() == 2 else mask[:, None]) == 0, HIDDEN)
        attended = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        result: Tensor = self.W_o(attended.to(q.dtype))
        return result

    def split(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, H, L, d)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def create_valid_mask(lengths: Tensor) -> Tensor:
    """(B,) lengths -> (B, L), True where a place is real."""
    return torch.arange(int(lengths.max())) < lengths[:, None]


def create_pair_mask(valid: Tensor) -> Tensor:
    """(B, L) -> (B, L, L), True where query and key are real."""
    return valid[:, :, None] & valid[:, None, :]


def create_pad_mask(ids: Tensor, pad_idx: int = 0) -> Tensor:
    """(B, L) -> (B, 1, L), True where a key is real."""
    return (ids != pad_idx)[:, None, :]


def create_seq_mask(size: int) -> Tensor:
    """(L, L), to add to scores: -inf above the diagonal, else 0."""
    return torch.full((size, size), -math.inf).triu(1)


def create_local_mask(size: int, window_size: int) -> Tensor:
    """(L, L), True for the keys i - w // 2 .. i + w // 2 - 1 of query i."""
    distance = torch.arange(size) - torch.arange(size)[:, None]
    return (distance >= -(window_size // 2)) & (distance < window_size // 2)


def combine_masks(added: Tensor, visible: Tensor) -> Tensor:
    """A mask to add to scores and a bool one -> bool, True where both allow."""
    return (added == 0) & visible
