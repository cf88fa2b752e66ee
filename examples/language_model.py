"""A small decoder language model, twice: on packed rows by tegula, and on padded batches by torch alone.

Both have the same parameters under the same names, so that each loads the other's state_dict, and both take a batch as
a list of token id arrays, one per document. The documents of a packed batch lie one behind the other in one row of T
tokens, and nothing is computed for padding:

    ids         (T,)      tokens of all documents
    cu_seqlens  (B + 1,)  where each document starts; the last entry is T
    positions   (T,)      0 .. L-1 for each document
    x           (T, D)    hidden states
    logits      (T, V)    what each token says of the next one
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tegula as tg
import torch
import torch.nn.functional as F
from tegula.torch import nn as tgnn
from torch import Tensor, nn

Document = np.ndarray[Any, np.dtype[np.int64]]

NO_TARGET = -100


@dataclass(frozen=True)
class Sizes:
    """V tokens, D numbers per token, H heads, layers, the longest document, and the probability of dropout."""

    vocab: int
    dim: int
    heads: int
    layers: int
    context: int
    dropout: float


class LanguageModel(nn.Module):
    """Pre-norm decoder with sinusoidal positions, on packed rows."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = tgnn.TransformerEmbedding(
            sizes.vocab, sizes.dim, sizes.context, dropout=sizes.dropout, pad_idx=None
        )
        add_layers(self, tgnn.TransformerEncoderLayer, sizes)

    def loss(self, documents: Sequence[Document]) -> Tensor:
        """Return the mean cross-entropy of each document's next tokens."""
        ids = torch.from_numpy(np.concatenate([document[:-1] for document in documents]))
        targets = torch.from_numpy(np.concatenate([document[1:] for document in documents]))
        cu_seqlens = torch.tensor([0, *np.cumsum([len(document) - 1 for document in documents])])
        attend = tg.masks.documents(cu_seqlens=cu_seqlens, causal="bottom_right")
        x = self.embedding(ids, tg.masks.positions(cu_seqlens=cu_seqlens))
        for layer in self.layers:
            x = layer(x, attend=attend)
        return F.cross_entropy(self.head(self.norm(x)), targets)

    def decoder(self) -> Callable[[Tensor], Tensor]:
        """Return a function of the next ids, (n,), to the logits (V,) behind them; it remembers the earlier ones."""
        caches = [layer.self_attn.new_cache(batch_size=1, max_len=self.sizes.context) for layer in self.layers]

        def step(ids: Tensor) -> Tensor:
            first = int(caches[0].length)
            x = self.embedding(ids[None], torch.arange(first, first + len(ids)))
            for layer, cache in zip(self.layers, caches, strict=True):
                x = layer(x, cache=cache)
            logits: Tensor = self.head(self.norm(x[0, -1]))
            return logits

        return step


class PaddedModel(nn.Module):
    """The same model as it is usually written: torch's own layers on (B, L) ids, filled up to the longest document.

    Padding stands behind the documents and attention is causal, so no real token sees it and no padding mask is needed:
    torch's causal attention runs at its full speed.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = PaddedEmbedding(sizes)
        add_layers(self, nn.TransformerEncoderLayer, sizes)

    def loss(self, documents: Sequence[Document]) -> Tensor:
        """Return the mean cross-entropy of each document's next tokens."""
        shape = len(documents), max(map(len, documents)) - 1
        ids = torch.zeros(shape, dtype=torch.int64)
        targets = torch.full(shape, NO_TARGET)
        for row, document in enumerate(documents):
            ids[row, : len(document) - 1] = torch.from_numpy(document[:-1])
            targets[row, : len(document) - 1] = torch.from_numpy(document[1:])
        return F.cross_entropy(self.logits(ids).flatten(0, 1), targets.flatten(), ignore_index=NO_TARGET)

    def logits(self, ids: Tensor) -> Tensor:
        """Return (B, L, V) for ids (B, L)."""
        x = self.embedding(ids)
        # With is_causal, torch takes its causal kernel and does not look at the mask.
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def decoder(self) -> Callable[[Tensor], Tensor]:
        """Return a function as `LanguageModel.decoder` does, which computes the whole row anew at each step."""
        seen: list[Tensor] = []

        def step(ids: Tensor) -> Tensor:
            seen.append(ids)
            return self.logits(torch.cat(seen)[None])[0, -1]

        return step


class PaddedEmbedding(nn.Module):
    """Tokens * sqrt(D) + positions from a table, then dropout."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(sizes.vocab, sizes.dim)
        self.dropout = nn.Dropout(sizes.dropout)
        # cos(x) = sin(x + pi / 2)
        column = torch.arange(sizes.dim, dtype=torch.float64)
        frequency = 10000 ** (-(column - column % 2) / sizes.dim)
        phase = torch.arange(sizes.context, dtype=torch.float64)[:, None] * frequency + column % 2 * math.pi / 2
        self.register_buffer("table", phase.sin().float(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        scaled = self.token_embedding(ids) * math.sqrt(self.token_embedding.embedding_dim)
        embedded: Tensor = self.dropout(scaled + self.table[: ids.shape[1]])
        return embedded


def add_layers(model: Any, layer: Callable[..., nn.Module], sizes: Sizes) -> None:
    """Give a model what stands behind the embedding: layers, a norm, and a linear map to V logits."""
    options = {"norm_first": True, "batch_first": True, "activation": "gelu"}
    model.layers = nn.ModuleList(
        layer(sizes.dim, sizes.heads, 4 * sizes.dim, sizes.dropout, **options) for _ in range(sizes.layers)
    )
    model.norm = nn.LayerNorm(sizes.dim)
    model.head = nn.Linear(sizes.dim, sizes.vocab)
    # Times sqrt(D), tokens are as large as positions.
    nn.init.normal_(model.embedding.token_embedding.weight, std=sizes.dim**-0.5)
