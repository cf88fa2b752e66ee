"""Modules: embeddings, positions, multi-head attention and Transformer layers.

The names, constructors and numbers are those of the tutorials and of `torch.nn`; one import changes.

=============================  =================================================================
Embedding                      `torch.nn.Embedding` on the native kernel
TokenEmbedding                 rows of a table; the pad's is zero and not trained
SinusoidalPositions            rows of the position table, for any length
PositionEmbedding              the same with a limit: the first L rows, (1, L, D)
PositionalEncoding             x + those rows
TransformerEmbedding           tokens * sqrt(D) + positions, then dropout, in one pass
EmbeddingLayer                 tokens * sqrt(D) + positions
MultiHeadAttention             self- and cross-attention, grouped heads, windows, decoding
KVCache                        the keys and values of earlier tokens
TransformerEncoderLayer        `torch.nn.TransformerEncoderLayer`
TransformerDecoderLayer        `torch.nn.TransformerDecoderLayer`
=============================  =================================================================

True = may attend, in every mask but those of the two layers that torch's layers have too. No module
stores a position table, and checkpoints in which one was stored load.
"""

from .attention import MultiHeadAttention
from .cache import KVCache
from .embeddings import Embedding, EmbeddingLayer, TokenEmbedding, TransformerEmbedding
from .layers import TransformerDecoderLayer, TransformerEncoderLayer
from .positions import PositionalEncoding, PositionEmbedding, SinusoidalPositions

__all__ = [
    "Embedding",
    "EmbeddingLayer",
    "KVCache",
    "MultiHeadAttention",
    "PositionEmbedding",
    "PositionalEncoding",
    "SinusoidalPositions",
    "TokenEmbedding",
    "TransformerDecoderLayer",
    "TransformerEmbedding",
    "TransformerEncoderLayer",
]
