"""tegula for PyTorch: the package's functions as operators that train, compile and export.

The functions of `tegula` hand tensors over to those here. Importing this module imports torch.
"""

from .drop_in import scaled_dot_product_attention, varlen_attention
from .functional import attention, attention_backward, merge_attention

__all__ = [
    "attention",
    "attention_backward",
    "merge_attention",
    "scaled_dot_product_attention",
    "varlen_attention",
]
