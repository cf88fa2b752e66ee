"""Pictures of positions and masks; needs matplotlib (``pip install tegula[plot]``).

Every function draws into the given axes, or into new ones, and returns them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .masks import Mask, as_mask
from .positions import positional_encoding


def position_curves(length: int, dim: int, *, dims: Sequence[int] | None = None, ax: Any = None, **options: Any) -> Any:
    """Draw single dimensions of the sinusoidal encoding over positions 0 .. length - 1.

    Parameters
    ----------
    length, dim : int
        Number of positions, and size of the encoding.
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

    Examples
    --------
    >>> import tegula.plot
    >>> ax = tegula.plot.position_curves(100, 64)  # doctest: +SKIP
    """
    ax = _axes(ax)
    table = positional_encoding(length, dim, **options)
    if dims is None:
        dims = sorted({dim * part // 8 for part in range(4)})
    for index in dims:
        ax.plot(table[:, index], label=f"dimension {index}")
    ax.set(xlabel="position", ylabel="value", title="Sinusoidal positions")
    ax.legend(loc="lower right")
    return ax


def position_heatmap(length: int, dim: int, *, ax: Any = None, **options: Any) -> Any:
    """Draw the whole table of the sinusoidal encoding, (length, dim), as a heat map.

    Parameters
    ----------
    length, dim : int
        Number of positions, and size of the encoding.
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

    Examples
    --------
    >>> import tegula.plot
    >>> ax = tegula.plot.position_heatmap(100, 64)  # doctest: +SKIP
    """
    ax = _axes(ax)
    image = ax.imshow(positional_encoding(length, dim, **options), aspect="auto", cmap="RdBu", vmin=-1, vmax=1)
    ax.figure.colorbar(image, ax=ax)
    ax.set(xlabel="dimension", ylabel="position", title="Sinusoidal positions")
    return ax


def mask(mask: Mask | np.ndarray, q_len: int, k_len: int, *, ax: Any = None) -> Any:
    """Draw which key (across) each query (down) sees, for the first batch entry and head.

    Parameters
    ----------
    mask : Mask or bool ndarray
        True means "may attend".
    q_len, k_len : int
        Number of queries and keys.
    ax : matplotlib Axes, optional
        Where to draw.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ImportError
        Without matplotlib.

    Examples
    --------
    >>> import tegula as tg, tegula.plot
    >>> ax = tegula.plot.mask(tg.masks.sliding(4), 16, 16)  # doctest: +SKIP
    """
    ax = _axes(ax)
    visible = as_mask(mask).dense(q_len, k_len)
    ax.imshow(visible.reshape(-1, q_len, k_len)[0], cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    ax.set(xlabel="key", ylabel="query", title="visible keys")
    return ax


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("tegula.plot needs matplotlib: pip install tegula[plot]") from error
    return plt.subplots()[1]
