"""Masks: which keys a query may see. True means "may attend".

Small objects that never change, made by the functions below and combined with ``&`` and ``|``. They know a
rule, not a size, and cost memory proportional to the length.

================================ ==================================================================
``full()``                       every key
``causal(align, offset)``        j <= i + shift
``window(left, right, ...)``     i + shift - left <= j <= i + shift + right
``sliding(size, ...)``           the last `size` keys, itself included; with ``sinks=`` the first ones too
``chunked(size, ...)``           keys of the same chunk of positions
``padding(lengths)``             real keys, and with ``queries=`` real queries
``documents(ids or cu_seqlens)`` keys of the same document
``prefix(lengths, ...)``         a prefix that everybody sees, causal behind it
``global_tokens(count, ...)``    the first keys; and for the queries that stand there, every key
``block_sparse(blocks, size)``   the blocks of keys that are listed for its block of queries
``dense(array)``                 what a bool array says
================================ ==================================================================

A mask shows its normal form, one or two runs of keys a query, as ``mask.runs(q_len, k_len)``, itself as a
bool array with ``mask.dense(q_len, k_len)`` and as numbers to add to scores with
``mask.additive(q_len, k_len)``.
`positions` gives the position ids that belong to packed documents and to left padding.

Every array that makes a mask may be a torch tensor: then the mask works with tensors, stays on their
device, and shows itself in tensors. A mask without arrays, or of arrays, works with both. All of them pass
through ``torch.compile`` and ``torch.export``. What is being traced cannot read numbers, and neither is
another device waited for: there lengths and borders are clamped instead of checked. (Beside ``&``,
the compiler wants ``dense(tensor)`` for a bare bool tensor.)
"""

from ._blocks import block_sparse
from ._dense import as_mask, dense
from ._documents import documents
from ._kinds import causal, chunked, full, global_tokens, prefix, sliding, window
from ._mask import Mask
from ._padding import padding, positions

__all__ = [
    "Mask",
    "as_mask",
    "block_sparse",
    "causal",
    "chunked",
    "dense",
    "documents",
    "full",
    "global_tokens",
    "padding",
    "positions",
    "prefix",
    "sliding",
    "window",
]
