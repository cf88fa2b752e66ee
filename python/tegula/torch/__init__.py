"""tegula for PyTorch: the package's functions as operators that train, compile and export.

The functions of `tegula` hand tensors over to those here. Importing this module imports torch.

==============================  ================================================================
attention                       `tegula.attention` for tensors, with gradients
attention_backward              its gradients, for loops that keep no graph
merge_attention                 joins results over disjoint keys
embedding                       `tegula.embedding` for tensors, with gradients for its tables
embedding_backward              the gradient of a table, dense or sparse
positional_encoding             sinusoidal tables
scaled_dot_product_attention    torch's function of that name, to the letter
varlen_attention                packed sequences, with flash-attn's conventions
nn                              modules: the tutorials' classes and torch's Transformer layers
==============================  ================================================================
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise type(error)("tegula.torch needs torch: pip install 'tegula[torch]'", name="torch") from error

from . import nn
from .drop_in import scaled_dot_product_attention, varlen_attention
from .embedding_functional import embedding, embedding_backward, positional_encoding
from .functional import attention, attention_backward, merge_attention

__all__ = [
    "attention",
    "attention_backward",
    "embedding",
    "embedding_backward",
    "merge_attention",
    "nn",
    "positional_encoding",
    "scaled_dot_product_attention",
    "varlen_attention",
]
