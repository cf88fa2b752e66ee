"""tegula: the Transformer's input layer and attention as native kernels."""

from ._version import __version__
from .attention import attention, dropout_mask, merge_attention
from .runtime import config, get_num_threads, set_isa, set_num_threads, show_config

__all__ = [
    "__version__",
    "attention",
    "config",
    "dropout_mask",
    "get_num_threads",
    "merge_attention",
    "set_isa",
    "set_num_threads",
    "show_config",
]
