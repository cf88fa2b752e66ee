"""Which elements dropout keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import _core, checks


def dropout_mask(seed: int, p: float, shape: Sequence[int] | int) -> np.ndarray:
    """Return which elements of an array the dropout of this package keeps.

    Every decision depends on the seed and on the element's place alone: not on tiles,
    threads, instruction sets or devices.

    Parameters
    ----------
    seed : int
        In [0, 2**64).
    p : float
        Probability in [0, 1] that an element is dropped.
    shape : int or sequence of int
        ``(B, H, Lq, Lk)`` for the weights of `attention`, ``ids.shape + (D,)`` for the
        result of `embedding`.

    Returns
    -------
    ndarray of bool
        True where the element is kept.

    Raises
    ------
    TypeError, ValueError
        When an argument is of another kind, or outside its range.

    Notes
    -----
    The random words are those of Philox 4x32-10 [1]_ with the seed as key and the
    element's place (leading axes, row, column) as counter. An element is dropped when
    its word is below ``p * 2**32``.

    References
    ----------
    .. [1] Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
       SC 2011.

    Examples
    --------
    >>> import tegula as tg
    >>> tg.dropout_mask(7, 0.5, (2, 6)).shape
    (2, 6)
    >>> bool(tg.dropout_mask(7, 0.0, (2, 6)).all())
    True
    """
    number = checks.integer(seed, "seed")
    probability, number = checks.dropout(p, number, "p")
    sizes = [shape] if isinstance(shape, (int, np.integer)) else list(shape)
    sizes = [checks.integer(size, "shape") for size in sizes]
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape must not be negative, got {tuple(sizes)}")
    return _core.dropout_mask(number, probability, sizes)
