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
Dropout                        `torch.nn.Dropout`, by all threads
TransformerEncoderLayer        `torch.nn.TransformerEncoderLayer`
TransformerDecoderLayer        `torch.nn.TransformerDecoderLayer`
create_pad_mask                which keys are real, (B, 1, L), from ids
create_valid_mask              which places are real, (B, L), from lengths
create_pair_mask               pairs of real places, (B, L, L)
create_seq_mask                the causal mask as floats to add, (L, L)
create_local_mask              a window around each query, (L, L)
combine_masks                  the mask under which several hold, of whatever form
check_shapes                   checks the shapes of q, k and v, and reports them
=============================  =================================================================

True = may attend, in every mask but those of the two layers that torch's layers have too. No module
stores a position table, and checkpoints in which one was stored load.
"""

from .attention import MultiHeadAttention
from .cache import KVCache
from .dropout import Dropout
from .embeddings import Embedding, EmbeddingLayer, TokenEmbedding, TransformerEmbedding
from .layers import TransformerDecoderLayer, TransformerEncoderLayer
from .positions import PositionalEncoding, PositionEmbedding, SinusoidalPositions
from .shapes import check_shapes
from .tutorial_masks import (
    combine_masks,
    create_local_mask,
    create_pad_mask,
    create_pair_mask,
    create_seq_mask,
    create_valid_mask,
)

__all__ = [
    "Dropout",
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
    "check_shapes",
    "combine_masks",
    "create_local_mask",
    "create_pad_mask",
    "create_pair_mask",
    "create_seq_mask",
    "create_valid_mask",
]
