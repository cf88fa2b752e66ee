"""Pictures of positions, masks and attention; needs matplotlib (``pip install tegula[plot]``).

Every function draws into the given axes, or into new ones, and returns them; nothing is shown or saved. Tables, masks
and weights may be arrays or tensors. What has no row or no column cannot be drawn (ValueError).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import checks
from .masks import Mask, dense
from .masks._runs import listed
from .positions import positional_encoding

__all__ = [
    "attention_weights",
    "mask",
    "mask_tiles",
    "position_curves",
    "position_heatmap",
    "position_similarity",
]

SKIPPED, MIXED, FULL = 0, 1, 2
TILE_NAMES = ("skipped", "mixed", "full")
TILE_COLOURS = ("#eef1f5", "#f6ad55", "#2b6cb0")


def position_curves(
    table: Any, dim: int | None = None, *, dims: Sequence[int] | None = None, ax: Any = None, **options: Any
) -> Any:
    """Draw single dimensions of a position table, value over position.

    Parameters
    ----------
    table : int, or array or Tensor of shape (P, D)
        A number of positions: the sinusoidal encoding of positions 0 .. table - 1 is drawn. Or the table itself, for
        example a learned one.
    dim : int, optional
        Size D of the sinusoidal encoding; only with a number of positions.
    dims : sequence of int, optional
        The dimensions to draw; by default four from low (fast) to high (slow).
    ax : matplotlib Axes, optional
        Where to draw.
    **options
        Go to `tegula.positional_encoding`: base, layout, spacing.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ImportError
        Without matplotlib.
    ValueError
        For a table that has not two axes, and a number of positions without `dim`.
    IndexError
        For a dimension outside the table.

    Examples
    --------
    >>> import tegula.plot
    >>> ax = tegula.plot.position_curves(100, 64)  # doctest: +SKIP
    """
    table = _table(table, dim, options)
    width = table.shape[1]
    dims = sorted({width * part // 8 for part in range(4)}) if dims is None else list(dims)
    for index in dims:
        if not -width <= index < width:
            raise IndexError(f"dimension {index} in dims is outside a table of {width} dimensions")
    ax = _axes(ax, table)
    for index in dims:
        ax.plot(table[:, index], label=f"dimension {index}")
    ax.set(xlabel="position", ylabel="value", title="Single dimensions of positions")
    if dims:
        ax.legend(loc="lower right")
    return ax


def position_heatmap(table: Any, dim: int | None = None, *, ax: Any = None, **options: Any) -> Any:
    """Draw a whole position table as a heat map: positions down, dimensions across.

    Parameters
    ----------
    table : int, or array or Tensor of shape (P, D)
        A number of positions: the sinusoidal encoding of positions 0 .. table - 1 is drawn. Or the table itself, for
        example a learned one.
    dim : int, optional
        Size D of the sinusoidal encoding; only with a number of positions.
    ax : matplotlib Axes, optional
        Where to draw.
    **options
        Go to `tegula.positional_encoding`: base, layout, spacing.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ImportError
        Without matplotlib.
    ValueError
        For a table that has not two axes, and a number of positions without `dim`.

    Examples
    --------
    >>> import tegula.plot
    >>> ax = tegula.plot.position_heatmap(100, 64)  # doctest: +SKIP
    """
    table = _table(table, dim, options)
    ax = _axes(ax, table)
    limit = float(np.max(np.abs(table), where=np.isfinite(table), initial=0)) or 1.0
    image = ax.imshow(table, aspect="auto", cmap="RdBu", vmin=-limit, vmax=limit, interpolation="nearest")
    ax.figure.colorbar(image, ax=ax)
    ax.set(xlabel="dimension", ylabel="position", title="Position table")
    return ax


def position_similarity(
    table: Any,
    dim: int | None = None,
    *,
    at: Sequence[int] | None = None,
    cosine: bool = True,
    ax: Any = None,
    **options: Any,
) -> Any:
    """Draw how alike two positions are, over the distance between them.

    One curve for each position p in `at`: the similarity of rows p and p + distance. In a sinusoidal table it depends
    on the distance alone, so all curves lie on one; in a learned table they need not.

    Parameters
    ----------
    table : int, or array or Tensor of shape (P, D)
        A number of positions: the sinusoidal encoding of positions 0 .. table - 1 is drawn. Or the table itself, for
        example a learned one.
    dim : int, optional
        Size D of the sinusoidal encoding; only with a number of positions.
    at : sequence of int, optional
        The positions to compare with all others; by default the one in the middle.
    cosine : bool, default True
        Cosine of the angle between two rows; otherwise their dot product.
    ax : matplotlib Axes, optional
        Where to draw.
    **options
        Go to `tegula.positional_encoding`: base, layout, spacing.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ImportError
        Without matplotlib.
    ValueError
        For a table that has not two axes, and a number of positions without `dim`.
    IndexError
        For a position outside the table.

    Notes
    -----
    A row of sines and cosines has the dot product sum_i cos(distance f_i) with another, where f_i are the frequencies
    [1]_; an even D has the squared length D / 2.

    References
    ----------
    .. [1] Vaswani et al., "Attention Is All You Need", 2017, section 3.5.

    Examples
    --------
    >>> import tegula.plot
    >>> ax = tegula.plot.position_similarity(200, 64, at=(0, 100))  # doctest: +SKIP
    """
    table = _table(table, dim, options).astype(np.float64)
    count = len(table)
    places = [count // 2] if at is None else list(at)
    for place in places:
        if not 0 <= place < count:
            raise IndexError(f"position {place} in at is outside a table of {count} positions")
    if checks.flag(cosine, "cosine"):
        lengths = np.linalg.norm(table, axis=1, keepdims=True)
        table = np.divide(table, lengths, out=np.zeros_like(table), where=lengths != 0)
    ax = _axes(ax, table)
    for place in places:
        ax.plot(np.arange(count) - place, table @ table[place], label=f"position {place}")
    ax.set(xlabel="distance", ylabel="cosine" if cosine else "dot product", title="Similarity of positions")
    if places:
        ax.legend(loc="upper right")
    return ax


def mask(mask: Any, q_len: int, k_len: int | None = None, *, batch: int = 0, head: int = 0, ax: Any = None) -> Any:
    """Draw which key (across) each query (down) sees.

    Parameters
    ----------
    mask : Mask, or bool array or Tensor
        True means "may attend".
    q_len, k_len : int
        Number of queries and keys; as many keys as queries when left out.
    batch, head : int, default 0
        The batch entry and head to draw, where the mask tells them apart.
    ax : matplotlib Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ImportError
        Without matplotlib.
    ValueError
        When lengths do not fit the mask.
    IndexError
        For a batch entry or head that the mask has not.

    Examples
    --------
    >>> import tegula as tg, tegula.plot
    >>> ax = tegula.plot.mask(tg.masks.sliding(4), 16)  # doctest: +SKIP
    """
    mask = _mask(mask)
    k_len = q_len if k_len is None else k_len
    visible = _entry(_numbers(mask.dense(q_len, k_len)).reshape(mask._batch, mask._heads, q_len, k_len), batch, head)
    ax = _axes(ax, visible)
    ax.imshow(visible, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    ax.set(xlabel="key", ylabel="query", title="visible keys")
    return ax


def mask_tiles(
    mask: Any,
    q_len: int,
    k_len: int,
    *,
    tile: int | tuple[int, int] = 64,
    batch: int = 0,
    head: int = 0,
    ax: Any = None,
) -> Any:
    """Draw what a mask costs: which tiles of queries and keys are full, mixed or skipped.

    A tile that all its queries see whole is full: it is computed without any masking. A tile of which no query sees a
    key is skipped: it costs nothing. The others are mixed: each pair is compared with the mask. The lines are the
    first and the last visible key of each query.

    Parameters
    ----------
    mask : Mask, or bool array or Tensor
        True means "may attend".
    q_len, k_len : int
        Number of queries and keys.
    tile : int or (int, int), default 64
        Queries and keys of a tile.
    batch, head : int, default 0
        The batch entry and head to draw, where the mask tells them apart.
    ax : matplotlib Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib Axes
        Its image holds 0 (skipped), 1 (mixed) or 2 (full) for each tile.

    Raises
    ------
    ImportError
        Without matplotlib.
    ValueError
        When lengths do not fit the mask, or a tile is empty.
    IndexError
        For a batch entry or head that the mask has not.

    Notes
    -----
    The tiles are found from the mask's intervals, in time O(q_len + number of tiles). A mask whose rows have
    more than two runs of keys is mixed wherever it is not skipped. The kernels choose the sizes of their tiles by
    instruction set and head size.

    Examples
    --------
    >>> import tegula as tg, tegula.plot
    >>> packed = tg.masks.documents(cu_seqlens=[0, 300, 500, 1024], causal="top_left")
    >>> ax = tegula.plot.mask_tiles(packed, 1024, 1024)  # doctest: +SKIP
    """
    q_tile, k_tile = (checks.integer(size, "tile") for size in (tile if isinstance(tile, tuple) else (tile, tile)))
    if min(q_tile, k_tile) < 1:
        raise ValueError(f"tile must be at least 1, got {tile}")
    runs, gaps = _rows_of(_mask(mask), q_len, k_len, batch, head)
    kinds = _tile_kinds(runs, k_len, q_tile, k_tile)
    if gaps:
        kinds[kinds == FULL] = MIXED

    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    ax = _axes(ax, kinds)
    reach = (0, kinds.shape[1] * k_tile, kinds.shape[0] * q_tile, 0)
    ax.imshow(kinds, cmap=ListedColormap(TILE_COLOURS), vmin=SKIPPED, vmax=FULL, interpolation="nearest", extent=reach)
    # Each row is a step one query high; rows without keys leave a gap.
    edges = np.arange(q_len + 1).repeat(2)[1:-1]
    for lo, hi in runs:
        for bound in (lo, hi):
            ax.plot(np.where(lo < hi, bound, np.nan).repeat(2), edges, color="#1a202c", linewidth=0.8)
    patches = [
        Patch(facecolor=colour, edgecolor="#a0aec0", label=f"{name}: {np.count_nonzero(kinds == kind)} tiles")
        for kind, (name, colour) in enumerate(zip(TILE_NAMES, TILE_COLOURS, strict=True))
    ]
    ax.legend(handles=patches)
    ax.set(xlim=(0, k_len), ylim=(q_len, 0), xlabel="key", ylabel="query", title=f"tiles of {q_tile} x {k_tile}")
    return ax


def attention_weights(
    weights: Any,
    *,
    head: int | None = None,
    q_tokens: Sequence[str] | None = None,
    k_tokens: Sequence[str] | None = None,
    ax: Any = None,
) -> Any:
    """Draw how much each query (down) attends to each key (across).

    Parameters
    ----------
    weights : array or Tensor of floats, shape (Lq, Lk) or (H, Lq, Lk)
        As `tegula.attention` returns them for one batch entry with ``return_weights=True``.
    head : int, optional
        The head to draw; by default the mean over all heads.
    q_tokens, k_tokens : sequence of Lq, or Lk, str, optional
        Labels of queries and keys.
    ax : matplotlib Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ImportError
        Without matplotlib.
    ValueError
        For weights of another rank, and as many labels as there are no rows or columns.
    IndexError
        For a head that the weights have not.

    Examples
    --------
    >>> import numpy as np, tegula as tg, tegula.plot
    >>> q = np.random.default_rng(0).standard_normal((2, 3, 8), dtype=np.float32)
    >>> _, weights = tg.attention(q, q, q, mask=tg.masks.causal(), return_weights=True)
    >>> words = ["the", "cat", "sat"]
    >>> ax = tegula.plot.attention_weights(weights, q_tokens=words, k_tokens=words)  # doctest: +SKIP
    """
    weights = _numbers(weights)
    if weights.ndim not in (2, 3):
        hint = "; pick a batch entry first, weights[0]" if weights.ndim > 3 else ""
        raise ValueError(f"weights must have shape (Lq, Lk) or (H, Lq, Lk), got {weights.shape}{hint}")
    heads = len(weights) if weights.ndim == 3 else 1
    weights = weights.reshape(heads, *weights.shape[-2:])
    if head is not None and not -heads <= head < heads:
        raise IndexError(f"head {head} is outside weights of {heads} heads")
    labels = {"q_tokens": (q_tokens, weights.shape[1]), "k_tokens": (k_tokens, weights.shape[2])}
    for name, (tokens, size) in labels.items():
        if tokens is not None and len(tokens) != size:
            raise ValueError(f"{name} must have {size} labels for weights of shape {weights.shape}, got {len(tokens)}")
    title = f"head {head}" if head is not None else f"mean of {heads} heads" if heads > 1 else "weights"
    ax = _axes(ax, weights)
    ax.imshow(weights.mean(axis=0) if head is None else weights[head], cmap="Blues", vmin=0, interpolation="nearest")
    ax.set(xlabel="key", ylabel="query", title=title)
    if k_tokens is not None:
        ax.set_xticks(range(len(k_tokens)), k_tokens, rotation=60, ha="right", rotation_mode="anchor")
    if q_tokens is not None:
        ax.set_yticks(range(len(q_tokens)), q_tokens)
    return ax


def _axes(ax: Any, drawn: np.ndarray) -> Any:
    """Return axes to draw an array into: those given, or new ones."""
    if not drawn.size:
        raise ValueError(f"there is nothing to draw, the picture would have shape {drawn.shape}")
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("tegula.plot needs matplotlib: pip install tegula[plot]") from error
    return plt.subplots()[1]


def _numbers(x: Any) -> np.ndarray:
    """Return an array to draw of an array or tensor: bool as it is, floats as float32 or float64."""
    if checks.is_tensor(x):
        x = x.detach().cpu()
        x = (x.float() if x.is_floating_point() and x.itemsize < 4 else x).numpy()
    array = np.asarray(x)
    return array.astype(np.float32) if array.dtype.itemsize < 4 and array.dtype != np.bool_ else array


def _mask(mask: Any) -> Mask:
    return mask if isinstance(mask, Mask) else dense(mask)


def _table(table: Any, dim: int | None, options: dict[str, Any]) -> np.ndarray:
    """Return the table (P, D) that a picture of positions shows."""
    if isinstance(table, (int, np.integer)):
        if dim is None:
            raise ValueError(f"dim must be given with a number of positions, table={table}")
        sinusoidal: np.ndarray = positional_encoding(table, dim, **options)
        return sinusoidal
    for name in ("dim", *options) if dim is not None else options:
        raise ValueError(f"{name} goes with a number of positions, and table is an array")
    numbers = _numbers(table)
    if numbers.ndim != 2:
        raise ValueError(f"table must have shape (positions, dimensions), got {numbers.shape}")
    return numbers


def _entry(array: np.ndarray, batch: int, head: int) -> np.ndarray:
    """Pick one batch entry and head of (B or 1, H or 1, ...)."""
    for name, index, size in (("batch", batch, array.shape[0]), ("head", head, array.shape[1])):
        if not 0 <= index < size and (size != 1 or index < 0):
            raise IndexError(f"{name}={index} is outside the {size} that the mask tells apart")
    entry: np.ndarray = array[batch if len(array) > 1 else 0, head if array.shape[1] > 1 else 0]
    return entry


def _rows_of(
    mask: Mask, q_len: int, k_len: int, batch: int, head: int
) -> tuple[list[tuple[np.ndarray, np.ndarray]], bool]:
    """Return the runs of keys [lo, hi) of each query, one or two, each (q_len,), and whether they say only a part."""
    if mask._readable:
        lo, hi, pairs = mask._of_lengths(q_len, k_len)
    else:
        lo, hi, pairs = mask._lower_torch(mask._batch, mask._heads, q_len, k_len, mask._device)
    shape = (mask._batch, mask._heads, q_len)
    runs = [
        tuple(_entry(np.broadcast_to(_numbers(bound), shape), batch, head) for bound in run) for run in listed(lo, hi)
    ]
    return [(first, last) for first, last in runs], pairs is not None


def _tile_kinds(runs: list[tuple[np.ndarray, np.ndarray]], k_len: int, q_tile: int, k_tile: int) -> np.ndarray:
    """Return what each tile is, (query tiles, key tiles), from the extremes of its rows' runs."""
    lo, hi = runs[0][0], runs[-1][1]
    first = np.arange(0, len(lo), q_tile)
    begin = np.arange(0, k_len, k_tile)
    end = np.minimum(begin + k_tile, k_len)
    kinds = np.full((len(first), len(begin)), MIXED)
    if not kinds.size:
        return kinds

    def of_tiles(extreme: np.ufunc, bound: np.ndarray) -> np.ndarray:
        return extreme.reduceat(bound, first)[:, None]

    kinds[(of_tiles(np.maximum, lo) <= begin) & (end <= of_tiles(np.minimum, hi))] = FULL
    # A row without keys reaches nowhere, and has nothing against a gap.
    none = lo >= hi
    lo, hi = np.where(none, k_len, lo), np.where(none, 0, hi)
    kinds[(of_tiles(np.minimum, lo) >= end) | (of_tiles(np.maximum, hi) <= begin)] = SKIPPED
    if len(runs) == 2:
        gap_lo, gap_hi = runs[0][1], runs[1][0]
        gap = gap_lo < gap_hi
        met = (of_tiles(np.minimum, np.where(gap, gap_lo, k_len)) < end) & (
            begin < of_tiles(np.maximum, np.where(gap, gap_hi, 0))
        )
        kinds[met & (kinds == FULL)] = MIXED
        covered = of_tiles(np.maximum, np.where(none, 0, gap_lo)) <= begin
        kinds[covered & (end <= of_tiles(np.minimum, np.where(none, k_len, gap_hi)))] = SKIPPED
    return kinds
