"""A table of numbers as a picture, for notebooks: SVG around a PNG, written without any plotting package.

Rows are positions, columns are dimensions. One pixel is one number; a long table is shown by every n-th row and
column, so that a picture stays small.
"""

from __future__ import annotations

import base64
import struct
import zlib
from html import escape
from typing import Any

import numpy as np

SIDE = 240  # pixels of the longer side
MOST_CELLS = 256  # rows, and columns, of the PNG
MARGIN = 28
LOW, MIDDLE, HIGH = (178, 24, 43), (247, 247, 247), (33, 102, 172)  # red, nearly white, blue
NO_NUMBER = (128, 128, 128)


def svg(table: Any, caption: str, *, limit: float | None = None) -> str:
    """Draw a table (P, D) of floats as a heat map: red below 0, blue above.

    `limit` is the size at which colours end, by default the largest one that occurs. What is not finite is grey.
    """
    table = np.asarray(table, np.float32)
    rows, columns = table.shape
    table = table[np.ix_(picked(rows), picked(columns))]
    if limit is None:
        limit = float(np.max(np.abs(table), where=np.isfinite(table), initial=0)) or 1.0
    scale = SIDE / max(rows, columns, 1)
    # A narrow table is widened: a strip of a few pixels shows nothing.
    width, height = (max(scale * size, SIDE / 4) for size in (columns, rows))
    caption += f"; red is -{limit:.3g}, blue {limit:.3g}"
    axes = f"dimensions 0 .. {columns - 1} (across), positions 0 .. {rows - 1} (down)"
    body = ""
    if table.size:
        data = base64.b64encode(png(table, limit)).decode()
        body = (
            f'<image x="{MARGIN}" y="{MARGIN}" width="{width:.2f}" height="{height:.2f}" preserveAspectRatio="none" '
            f'style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>'
        )
    total = max(width + 2 * MARGIN, 8.0 * max(len(caption), len(axes)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total:.0f}" height="{height + 2 * MARGIN:.0f}" '
        f'font-family="sans-serif" font-size="12" fill="#444"><title>{escape(caption)}</title>'
        f'<text x="{MARGIN}" y="{0.75 * MARGIN:.0f}">{axes}</text>{body}'
        f'<text x="{MARGIN}" y="{height + 1.7 * MARGIN:.0f}">{escape(caption)}</text></svg>'
    )


def png(table: np.ndarray, limit: float) -> bytes:
    """Write float32 (rows, columns) as a PNG of that size with a palette of 255 colours from -limit to limit."""
    rows, columns = table.shape
    level = np.clip(np.nan_to_num(table) / limit, -1, 1)
    # Byte 0 is "no number", and stands before each row as the PNG filter "none", too.
    pixels = np.zeros((rows, columns + 1), np.uint8)
    pixels[:, 1:] = np.where(np.isfinite(table), 128 + np.rint(127 * level), 0)
    share = np.linspace(-1, 1, 255)[:, None]
    ends = np.where(share < 0, LOW, HIGH)
    palette = np.rint(MIDDLE + (ends - MIDDLE) * np.abs(share)).astype(np.uint8)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in (
            (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),  # 8 bits, indices of a palette
            (b"PLTE", bytes(NO_NUMBER) + palette.tobytes()),
            (b"IDAT", zlib.compress(pixels.tobytes(), 9)),
            (b"IEND", b""),
        )
    )


def picked(size: int) -> np.ndarray:
    """Return the indices that are shown of an axis."""
    return np.linspace(0, size, min(size, MOST_CELLS), endpoint=False).astype(int)
