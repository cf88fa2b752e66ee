"""Block-sparse masks: which blocks of keys each block of queries sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _native
from ._dense import SHAPES, check_is_bool
from ._inputs import Bools, integers, is_tensor, one_integer, opened
from ._mask import Described, Mask


class BlockSparse(Mask):
    """A bool array with one entry for each block of queries and block of keys."""

    __slots__ = ("_hi", "_irregular", "_k_block", "_layout", "_lo", "_q_block")

    _layout: Any  # (B or 1, H or 1, query blocks, key blocks)
    _q_block: int
    _k_block: int
    _lo: Any  # the runs of blocks
    _hi: Any
    _irregular: bool

    def __init__(self, blocks: Any, block_size: Any, k_blocks: int | None) -> None:
        sizes = block_size if isinstance(block_size, (tuple, list)) else (block_size, block_size)
        if len(sizes) != 2:
            raise ValueError(f"block_size must be an integer or a pair (queries, keys), got {block_size!r}")
        q_block, k_block = (one_integer(size, "block_size") for size in sizes)
        if min(q_block, k_block) < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size!r}")
        given, layout = blocks, layout_of(blocks, k_blocks)
        batch, heads = layout.shape[:2]
        described = Described(given if hasattr(given, "dtype") else layout[0, 0])
        self._begin("block_sparse", described, block_size, batch=batch, heads=heads, given=(given,))
        lo, hi, irregular = _native.scan(layout)
        self._set(_layout=layout, _q_block=q_block, _k_block=k_block, _lo=lo, _hi=hi, _irregular=irregular)

    def _rows(self, on: Any, heads: int, q_len: int, k_len: int) -> Any:
        counts = -(-q_len // self._q_block), -(-k_len // self._k_block)
        if tuple(self._layout.shape[-2:]) != counts:
            raise ValueError(
                f"blocks are {tuple(self._layout.shape[-2:])}, but q_len {q_len} and k_len {k_len} have {counts} "
                f"blocks of {self._q_block} queries and {self._k_block} keys"
            )
        if self._heads not in (1, heads):
            raise ValueError(f"blocks tell {self._heads} heads apart, but the call has {heads} query heads")
        block = on.arange(q_len) // self._q_block
        lo, hi = (
            on.minimum(on.take(on.array(bound), block, -1) * self._k_block, on.constant(k_len))
            for bound in (self._lo, self._hi)
        )
        if not self._irregular:
            return lo, hi, None
        return lo, hi, on.take(on.take(on.array(self._layout), on.arange(k_len) // self._k_block, 3), block, 2)

    def _batch_error(self, batch: int) -> str:
        return f"blocks tell {self._batch} batch entries apart, but the call has {batch}"

    def _sizes(self) -> tuple[int | None, int | None]:
        return self._layout.shape[-2] * self._q_block, self._layout.shape[-1] * self._k_block


def layout_of(blocks: Any, k_blocks: int | None) -> Any:
    """(B or 1, H or 1, query blocks, key blocks), an array of our own."""
    array = opened(blocks)
    if isinstance(array, np.ndarray) or is_tensor(array):
        if k_blocks is not None:
            raise ValueError("k_blocks goes with lists of blocks; an array says how many blocks of keys there are")
        array = check_is_bool(array)
        if array.ndim not in (2, 4):
            raise ValueError(f"blocks must have shape {SHAPES}, in blocks, got {tuple(array.shape)}")
        array = array.clone() if is_tensor(array) else array.copy()
        return array[None, None] if array.ndim == 2 else array
    return layout_of_lists(blocks, k_blocks)[None, None]


def layout_of_lists(blocks: Sequence[Any], k_blocks: int | None) -> Bools:
    """(query blocks, key blocks)."""
    rows = [integers(row, f"blocks[{n}]") for n, row in enumerate(blocks)]
    if k_blocks is None:
        k_blocks = max(len(rows), *(int(row.max(initial=-1)) + 1 for row in rows)) if rows else 0
    layout = np.zeros((len(rows), one_integer(k_blocks, "k_blocks")), bool)
    for n, row in enumerate(rows):
        if row.ndim != 1:
            raise ValueError(f"blocks[{n}] must be a list of block numbers, got shape {row.shape}")
        if row.size and (row.min() < 0 or row.max() >= layout.shape[1]):
            bad = row[(row < 0) | (row >= layout.shape[1])][0]
            raise IndexError(f"blocks[{n}] holds {bad}, outside the {layout.shape[1]} blocks of keys")
        layout[n, row] = True
    return layout


def block_sparse(
    blocks: Sequence[npt.ArrayLike] | npt.ArrayLike,
    block_size: int | tuple[int, int],
    *,
    k_blocks: int | None = None,
) -> Mask:
    """Return the mask of block-sparse attention: for each block of queries, the blocks of keys that it sees.

    Parameters
    ----------
    blocks : sequence of integer lists, or bool array
        For each block of queries the numbers of its blocks of keys, in any order. Or the layout itself,
        a bool array of shape (Nq, Nk), (B, 1, Nq, Nk), (1, H, Nq, Nk) or (B, H, Nq, Nk), in blocks.
    block_size : int or (int, int)
        Queries and keys in a block. The last blocks may be shorter.
    k_blocks : int, optional
        With lists, the number of blocks of keys; left out, as many as blocks of queries, or as named.

    Returns
    -------
    Mask
        True = may attend. Where every row needs at most two runs of keys, the mask stays intervals. Other
        masks become a bool array when they are used.

    Raises
    ------
    ValueError
        For a block size below 1 and other shapes; at the call, for lengths of another number of blocks.
    IndexError
        For a block number outside the blocks of keys.
    TypeError
        For block numbers that are not integers, and an array that is not bool.

    Examples
    --------
    >>> from tegula import masks
    >>> masks.block_sparse([[0], [0, 1], [0, 2]], 2).dense(6, 6).astype(int)
    array([[1, 1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0, 0],
           [1, 1, 1, 1, 0, 0],
           [1, 1, 1, 1, 0, 0],
           [1, 1, 0, 0, 1, 1],
           [1, 1, 0, 0, 1, 1]])
    """
    return BlockSparse(blocks, block_size, k_blocks)
