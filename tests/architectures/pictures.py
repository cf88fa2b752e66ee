"""Pictures in the layouts that models take them in."""

from __future__ import annotations

import torch

from .inputs_sizes import BATCH

GRID = 4  # patches along each side, for models that take pictures of any size


def layouts_of_pictures(draw):
    """Sets of inputs to try for a model's pictures, those first that its signature says most about."""
    names = set(draw.names)
    vision = draw.vision()
    channels = first_int(getattr(vision, "num_channels", None), getattr(vision, "in_channels", None), 3)
    patch = first_int(getattr(vision, "patch_size", None), 8)
    size = getattr(vision, "image_size", None) or GRID * patch
    height, width = (size, size) if isinstance(size, int) else size[-2:]
    if "pixel_values_videos" in names and "pixel_values" not in names:
        frames = first_int(getattr(vision, "num_frames", None), getattr(vision, "frames_per_clip", None), 4)
        return [{"pixel_values_videos": draw.normal(BATCH, frames, channels, height, width)}]

    layouts = patches_with_grids(draw, vision, channels, patch)
    if "pixel_values" not in names:
        return layouts
    if "spatial_shapes" in names:
        layouts.append(
            {
                "pixel_values": draw.normal(BATCH, GRID * GRID, channels * patch * patch),
                "pixel_attention_mask": torch.ones(BATCH, GRID * GRID, dtype=torch.long),
                "spatial_shapes": torch.tensor([[GRID, GRID]] * BATCH),
            }
        )
    if "aspect_ratio_ids" in names:
        tiles = draw.setting("max_num_tiles")
        layouts.append(
            {
                "pixel_values": draw.normal(BATCH, 1, tiles, channels, height, width),
                "aspect_ratio_ids": torch.ones(BATCH, 1, dtype=torch.long),
                "aspect_ratio_mask": torch.ones(BATCH, 1, tiles, dtype=torch.long),
            }
        )
    if "target_sizes" in names:
        strips = draw.normal(1, channels, patch, BATCH * GRID * GRID * patch)
        layouts.append({"pixel_values": strips, "target_sizes": torch.tensor([[GRID, GRID]] * BATCH)})
    frames = getattr(vision, "num_frames", None)
    axes = (frames, channels, height, width) if frames else (channels, height, width)
    plain = draw.normal(BATCH, *axes)
    if "image_sizes" in names:
        layouts.append({"pixel_values": plain, "image_sizes": torch.tensor([[height, width]] * BATCH)})
    return [*layouts, {"pixel_values": plain}, {"pixel_values": plain[:, None]}]


def patches_with_grids(draw, vision, channels, patch):
    """The patches of all pictures one after the other, and how many each has along time, height and width."""
    grids = [name for name in ("image_grid_thw", "grid_thw", "image_grid_hw") if name in draw.names]
    name = next((name for name in ("pixel_values", "hidden_states") if name in draw.names), None)
    if not grids or name is None:
        return []
    count = BATCH * GRID * GRID
    temporal = first_int(getattr(vision, "temporal_patch_size", None), getattr(vision, "patch_temporal", None), 1)
    grid = torch.tensor([[1, GRID, GRID]] * BATCH)[:, 1 if grids[0].endswith("_hw") else 0 :]
    rows = draw.normal(count, temporal * channels * patch * patch)
    merges = {more: torch.tensor([2] * BATCH) for more in ("merge_sizes", "image_merge_sizes") if more in draw.names}
    return [
        {name: rows, grids[0]: grid, **merges},
        {name: rows.reshape(count, -1, patch, patch), grids[0]: grid},
        {name: rows.reshape(1, count, -1, patch, patch), grids[0]: grid},
    ]


def first_int(*values):
    """The first that is a number, or the last entry of a list of numbers."""
    for value in values:
        if isinstance(value, list | tuple) and value and isinstance(value[-1], int):
            return value[-1]
        if isinstance(value, int) and value:
            return value
    raise TypeError(f"no number among {values}")
