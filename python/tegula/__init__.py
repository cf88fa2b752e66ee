"""tegula: the Transformer's input layer and attention as native kernels.

Functions take NumPy arrays, or torch tensors, and return the same. `tegula.torch` holds what only
torch has; it is imported when it is first asked for.
"""

from typing import Any

from . import cuda, masks
from ._version import __version__
from .attention import attention, merge_attention
from .attention_backward import attention_backward
from .dropout import dropout_mask
from .embedding import embedding
from .embedding_backward import embedding_backward
from .explain import explain
from .positions import positional_encoding
from .runtime import config, empty_cache, get_num_threads, set_cache_limit, set_isa, set_num_threads, show_config

__all__ = [
    "__version__",
    "attention",
    "attention_backward",
    "config",
    "cuda",
    "dropout_mask",
    "embedding",
    "embedding_backward",
    "empty_cache",
    "explain",
    "get_num_threads",
    "masks",
    "merge_attention",
    "positional_encoding",
    "set_cache_limit",
    "set_isa",
    "set_num_threads",
    "show_config",
]


def __getattr__(name: str) -> Any:
    if name == "torch":
        import importlib

        return importlib.import_module(".torch", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
