"""Draw the pictures of README.md into docs/images.

python tools/pictures.py
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import tegula as tg
import tegula.plot
from PIL import Image

FOLDER = Path(__file__).parents[1] / "docs" / "images"
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "legend.fontsize": 8,
    "savefig.dpi": 110,
    "figure.figsize": (8.6, 3.4),
}


def masks() -> None:
    """What packed documents and a sliding window over left-padded texts cost."""
    _, (left, right) = plt.subplots(ncols=2, layout="constrained")
    packed = tg.masks.documents(cu_seqlens=[0, 260, 420, 830, 1024], causal="bottom_right")
    tegula.plot.mask_tiles(packed, 1024, 1024, tile=32, ax=left)
    left.set_title("four packed documents, causal")
    padded = tg.masks.sliding(300) & tg.masks.padding(keep=np.arange(1024)[None] >= 200)
    tegula.plot.mask_tiles(padded, 1024, 1024, tile=32, ax=right)
    right.set_title("sliding window, left padding")
    save("masks")


def positions() -> None:
    """The sinusoidal table, and how alike two of its rows are."""
    _, (left, right) = plt.subplots(ncols=2, layout="constrained")
    tegula.plot.position_heatmap(100, 128, ax=left)
    left.set_title("sinusoidal positions")
    tegula.plot.position_similarity(401, 128, at=[200], ax=right)
    right.get_legend().remove()
    right.set_title("similarity depends on distance alone")
    save("positions")


def save(name: str) -> None:
    """Write the current figure in 128 colours, which keeps the file small."""
    drawn = io.BytesIO()
    plt.savefig(drawn, format="png")
    plt.close()
    path = FOLDER / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    with plt.rc_context(STYLE):
        masks()
        positions()
