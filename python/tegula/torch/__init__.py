"""tegula for PyTorch: the package's functions as operators that train, compile and export.

The functions of `tegula` hand tensors over to those here. Importing this module imports torch.
"""

from .drop_in import scaled_dot_product_attention, varlen_attention
from .embedding_functional import embedding, embedding_backward, positional_encoding
from .functional import attention, attention_backward, merge_attention

__all__ = [
    "attention",
    "attention_backward",
    "embedding",
    "embedding_backward",
    "merge_attention",
    "positional_encoding",
    "scaled_dot_product_attention",
    "varlen_attention",
]
