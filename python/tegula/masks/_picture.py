"""A mask as a picture, for notebooks: SVG written by hand, without any plotting package.

Rows are queries, columns are keys; a filled stretch is what a row may see. Long masks are shown by
every n-th row, and a stretch is drawn as one rectangle, so that a picture stays small.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from ._runs import listed

if TYPE_CHECKING:
    from ._mask import Mask

SIDE = 180  # pixels of a panel's longer side
MOST_ROWS = 64
MOST_PANELS = 4
MARGIN = 28


def svg(mask: Mask) -> str:
    """Draw up to four batch entries or heads side by side."""
    q_len, k_len = shown_sizes(mask)
    batch, heads = mask._batch, mask._heads
    lo, hi, dense = mask._lower(batch, heads, q_len, k_len)
    panels = [(b, h) for b in range(batch) for h in range(heads)][:MOST_PANELS]
    scale = SIDE / max(q_len, k_len, 1)
    width, height = scale * k_len, scale * q_len
    rows = np.linspace(0, q_len, min(q_len, MOST_ROWS), endpoint=False).astype(int).tolist()
    body = []
    for number, (b, h) in enumerate(panels):
        x = MARGIN + number * (width + MARGIN)
        title = f"batch {b}" * (batch > 1) + " " * (batch > 1 and heads > 1) + f"head {h}" * (heads > 1)
        body.append(f'<g transform="translate({x:.2f},{MARGIN})">')
        body.append(f'<rect width="{width:.2f}" height="{height:.2f}" fill="#eef1f5"/>')
        body.append(f'<text x="0" y="-{MARGIN / 4:.0f}">{title or "keys"}</text>')
        for n, row in enumerate(rows):
            until = rows[n + 1] if n + 1 < len(rows) else q_len
            for first, last in stretches(lo, hi, dense, (b, h, row)):
                body.append(
                    f'<rect x="{first * scale:.2f}" y="{row * scale:.2f}" '
                    f'width="{(last - first) * scale:.2f}" height="{(until - row) * scale:.2f}"/>'
                )
        body.append("</g>")
    more = batch * heads - len(panels)
    caption = f"{mask!r}: {q_len} queries (down) x {k_len} keys (across), filled = may attend"
    caption += f"; {more} more not shown" * (more > 0)
    total = max(MARGIN + len(panels) * (width + MARGIN), 8.0 * len(caption))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total:.0f}" height="{height + 2 * MARGIN:.0f}" '
        f'font-family="sans-serif" font-size="12" shape-rendering="crispEdges" fill="#2b6cb0">'
        f"<title>{escape(caption)}</title>"
        + "".join(body)
        + f'<text x="{MARGIN}" y="{height + 1.7 * MARGIN:.0f}" fill="#444">{escape(caption)}</text></svg>'
    )


def shown_sizes(mask: Mask) -> tuple[int, int]:
    """Lengths that the mask accepts."""
    q_len, k_len = mask._sizes()
    if q_len is None:  # as many queries as keys, where either is free: then every mask is aligned
        q_len = mask._reach() if k_len is None else k_len
    return q_len, q_len if k_len is None else k_len


def stretches(
    lo: np.ndarray, hi: np.ndarray, dense: np.ndarray | None, place: tuple[int, int, int]
) -> list[tuple[int, int]]:
    """The runs [first, last) of keys that one row may see."""

    def pick(array: np.ndarray) -> np.ndarray:
        index = tuple(0 if size == 1 else i for i, size in zip(place, array.shape, strict=False))
        picked: np.ndarray = array[index]
        return picked

    runs = [(int(pick(first)), int(pick(last))) for first, last in listed(lo, hi)]
    runs = [(first, last) for first, last in runs if first < last]
    if dense is None or not runs:
        return runs
    # Where a row of 0 and 1, with 0 on both sides, changes.
    padded = np.zeros(dense.shape[-1] + 2, np.int8)
    for first, last in runs:
        padded[first + 1 : last + 1] = pick(dense)[first:last]
    borders = np.flatnonzero(np.diff(padded))
    return list(zip(borders[::2].tolist(), borders[1::2].tolist(), strict=True))
