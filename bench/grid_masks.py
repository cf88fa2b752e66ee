"""The masks of the grid, as a caller of the package writes them and as torch takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from grid_cases import GridCase

SEED = 2017


def mask_of(tg: Any, case: GridCase) -> Any:
    """A mask object; None for none."""
    masks, (kind, number) = tg.masks, case.mask
    q_len, k_len = case.lengths
    rng = np.random.default_rng(SEED)
    if kind == "full":
        return None
    if kind == "causal":
        return masks.causal()
    if kind == "causal bottom right":
        return masks.causal(align="bottom_right")
    if kind == "sliding":
        return masks.sliding(int(number))
    if kind == "window":
        return masks.window(int(number), int(number))
    if kind == "chunked":
        return masks.chunked(int(number)) & masks.causal()
    if kind == "prefix":
        return masks.prefix(min(int(number), k_len)) if number else masks.causal()
    if kind == "padding":
        return masks.padding(padded_lengths(case.batch, k_len, number, rng))
    if kind == "left padding":
        lengths = padded_lengths(case.batch, k_len, number, rng)
        return masks.padding(keep=np.arange(k_len) >= k_len - lengths[:, None])
    if kind == "documents":
        borders = np.sort(rng.choice(np.arange(1, q_len), int(number) - 1, replace=False))
        return masks.documents(cu_seqlens=[0, *borders.tolist(), q_len], causal="top_left")
    if kind in ("dense", "dense per head"):
        shape = (q_len, k_len) if kind == "dense" else (1, case.heads, q_len, k_len)
        seen = rng.random(shape) < number
        seen[..., 0] = True  # torch gives NaN for a row without keys
        return masks.dense(seen)
    raise ValueError(f"unknown kind of mask {kind!r}")


def padded_lengths(batch: int, longest: int, fill: float, rng: np.random.Generator) -> np.ndarray:
    """(B,) lengths around fill * longest; the first is the longest possible where there are others."""
    lengths = np.clip(rng.uniform(fill - 0.25, fill + 0.25, batch) * longest, 1, longest).astype(np.int64)
    if batch > 1:
        lengths[0] = longest
    return lengths


def visible_of(mask: Any, case: GridCase) -> np.ndarray | None:
    """The mask as the smallest bool array (B, H, Lq, Lk), with axes of 1, that says the same."""
    if mask is None or is_causal(case):
        return None
    seen = mask.dense(*case.lengths)
    seen = seen.reshape((1,) * (4 - seen.ndim) + seen.shape)
    same_rows = seen.shape[2] > 1 and bool((seen == seen[:, :, :1]).all())
    return np.ascontiguousarray(seen[:, :, :1] if same_rows else seen)


def is_causal(case: GridCase) -> bool:
    """Whether torch has a name for the mask."""
    return case.mask[0] == "causal"
