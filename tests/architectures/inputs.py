"""Inputs by what `forward` asks for: ids, pictures, sound, in the layout that the model's configuration implies."""

from __future__ import annotations

import inspect
import re

import torch
from transformers import PreTrainedConfig

from .inputs_sizes import BATCH, DECODER_LENGTH, FRAMES, LENGTH, SAMPLES
from .special_inputs import SPECIAL


def parameters_of(model):
    """Names of what `forward` takes, and whether it must be given."""
    found = inspect.signature(model.forward).parameters.values()
    return {p.name: p.default is p.empty for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def configs(config):
    """A configuration and all its parts, the outer ones first."""
    yield config
    for value in vars(config).values():
        if isinstance(value, PreTrainedConfig):
            yield from configs(value)


def setting(config, *names, default=None):
    """The first of these settings that the configuration or a part of it has."""
    for part in configs(config):
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return default


SPECTRUM_SIZES = (
    "num_mel_bins",
    "feature_size",
    "feat_dim",
    "input_dim",
    "feature_projection_input_dim",
    "input_feat_per_channel",
    "mel_bins",
)


class Inputs:
    """Draws the inputs of one model from a seed."""

    def __init__(self, model, seed=0):
        self.config = model.config
        self.names = parameters_of(model)
        self.generator = torch.Generator().manual_seed(seed)

    # --- kinds of numbers ---------------------------------------------------------------------------

    def ids(self, *shape, high=90):
        high = min(high, setting(self.config.get_text_config(), "vocab_size", default=high) - 1)
        return torch.randint(5, high, shape, generator=self.generator)

    def normal(self, *shape):
        return torch.randn(shape, generator=self.generator)

    def vision(self):
        for part in configs(self.config):
            if hasattr(part, "patch_size") or hasattr(part, "image_size"):
                return part
        return self.config

    # --- names --------------------------------------------------------------------------------------

    def text(self):
        found = {}
        if "input_ids" in self.names:
            found["input_ids"] = self.ids(BATCH, LENGTH)
            if "attention_mask" in self.names:
                found["attention_mask"] = torch.ones(BATCH, LENGTH, dtype=torch.long)
        elif self.names.get("inputs_embeds"):
            hidden = setting(self.config, "hidden_size", "d_model")
            found["inputs_embeds"] = self.normal(BATCH, LENGTH, hidden)
        if "mm_token_type_ids" in self.names and found:
            found["mm_token_type_ids"] = torch.zeros(BATCH, LENGTH, dtype=torch.long)
        if "bbox" in self.names:
            corner = torch.randint(0, 50, (BATCH, LENGTH, 2), generator=self.generator)
            found["bbox"] = torch.cat([corner, corner + 9], dim=-1)
        return found

    def decoder(self):
        if "decoder_input_ids" in self.names:
            return {"decoder_input_ids": self.ids(BATCH, DECODER_LENGTH)}
        return {}

    def pictures(self):
        """Layouts of pictures to try, the usual one first."""
        vision = self.vision()
        channels = first_int(getattr(vision, "num_channels", None), getattr(vision, "in_channels", None), 3)
        patch = first_int(getattr(vision, "patch_size", None), 8)
        size = getattr(vision, "image_size", None) or 4 * patch
        height, width = (size, size) if isinstance(size, int) else size[-2:]
        sizes = torch.tensor([[height, width]] * BATCH)
        layouts = []
        if "pixel_values_videos" in self.names and "pixel_values" not in self.names:
            frames = first_int(getattr(vision, "num_frames", None), getattr(vision, "frames_per_clip", None), 4)
            layouts.append({"pixel_values_videos": self.normal(BATCH, frames, channels, height, width)})
        if not {"pixel_values", "hidden_states"} & set(self.names):
            return layouts
        name = "pixel_values" if "pixel_values" in self.names else "hidden_states"
        grids = [grid for grid in ("image_grid_thw", "grid_thw", "image_grid_hw") if grid in self.names]
        if grids:
            temporal = first_int(
                getattr(vision, "temporal_patch_size", None), getattr(vision, "patch_temporal", None), 1
            )
            grid = torch.tensor([[1, 4, 4]] * BATCH)[:, 1 if grids[0].endswith("_hw") else 0 :]
            rows = self.normal(BATCH * 16, temporal * channels * patch * patch)
            merges = {"merge_sizes": torch.tensor([2] * BATCH), "image_merge_sizes": torch.tensor([2] * BATCH)}
            merges = {extra: value for extra, value in merges.items() if extra in self.names}
            layouts.append({name: rows, grids[0]: grid, **merges})
            layouts.append({name: rows.reshape(BATCH * 16, -1, patch, patch), grids[0]: grid})
            layouts.append({name: rows.reshape(1, BATCH * 16, -1, patch, patch), grids[0]: grid})
        if name == "hidden_states":
            return layouts
        if "spatial_shapes" in self.names:
            layouts.append(
                {
                    name: self.normal(BATCH, 16, channels * patch * patch),
                    "pixel_attention_mask": torch.ones(BATCH, 16, dtype=torch.long),
                    "spatial_shapes": torch.tensor([[4, 4]] * BATCH),
                }
            )
        if "aspect_ratio_ids" in self.names:
            tiles = setting(self.config, "max_num_tiles")
            layouts.append(
                {
                    name: self.normal(BATCH, 1, tiles, channels, height, width),
                    "aspect_ratio_ids": torch.ones(BATCH, 1, dtype=torch.long),
                    "aspect_ratio_mask": torch.ones(BATCH, 1, tiles, dtype=torch.long),
                }
            )
        if "target_sizes" in self.names:
            strips = self.normal(1, channels, patch, BATCH * 16 * patch)
            layouts.append({name: strips, "target_sizes": torch.tensor([[4, 4]] * BATCH)})
        frames = getattr(vision, "num_frames", None)
        axes = (frames, channels, height, width) if frames else (channels, height, width)
        plain = {name: self.normal(BATCH, *axes)}
        if "image_sizes" in self.names:
            layouts.append({**plain, "image_sizes": sizes})
        layouts.append(plain)
        layouts.append({name: plain[name][:, None]})
        return layouts

    def sound(self):
        """Layouts of sound to try: spectra either way round, waves with and without an axis of channels."""
        layouts = []
        if "input_features" in self.names:
            masks = self.time_masks(FRAMES)
            mels = {setting(self.config, name) for name in SPECTRUM_SIZES}
            for mel in sorted(mels - {None}, key=str) or [80]:
                spectrum = self.normal(BATCH, mel, FRAMES)
                for found in (spectrum, spectrum.transpose(1, 2).contiguous(), spectrum[:, None].transpose(2, 3)):
                    layouts.append({"input_features": found, **masks})
        if "input_values" in self.names:
            wave = self.normal(BATCH, SAMPLES)
            masks = self.time_masks(SAMPLES)
            layouts += [{"input_values": wave, **masks}, {"input_values": wave}, {"input_values": wave[:, None]}]
            mel = setting(self.config, "num_mel_bins", default=8)
            layouts.append({"input_values": self.normal(BATCH, setting(self.config, "max_length", default=32), mel)})
        return layouts

    def time_masks(self, length):
        """Which moments are real: all. A model that reads text has its attention_mask for that."""
        names = {"input_features_mask", "feature_attention_mask"}
        if "input_ids" not in self.names:
            names.add("attention_mask")
        return {name: torch.ones(BATCH, length, dtype=torch.long) for name in sorted(names & set(self.names))}

    def required(self, found):
        """What must be given besides."""
        hidden = setting(self.config, "encoder_hidden_size", "hidden_size", "d_model")
        for name, needed in self.names.items():
            if name in found:
                continue
            if needed and name in ("encoder_hidden_states", "query_embeds"):
                found[name] = self.normal(BATCH, LENGTH, hidden)
            elif needed and name in ("qformer_input_ids", "input_ids"):
                found[name] = self.ids(BATCH, LENGTH)
        return found


def first_int(*values):
    """The first that is a number, or the last entry of a list of numbers."""
    for value in values:
        if isinstance(value, list | tuple) and value and isinstance(value[-1], int):
            return value[-1]
        if isinstance(value, int) and value:
            return value
    raise TypeError(f"no number among {values}")


def candidates(model, seed=0):
    """Sets of inputs to try, the richest first: the first one that the model runs on is its own."""
    draw = Inputs(model, seed)
    special = SPECIAL.get(model.config.model_type)
    if special is not None:
        yield special(draw)
        return
    text, decoder = draw.text(), draw.decoder()
    pictures, sound = draw.pictures(), draw.sound()
    both = [{**picture, **wave} for picture in pictures for wave in sound]
    for media in (*both, *pictures, *sound):
        yield draw.required({**text, **media, **decoder})
    if text:
        yield draw.required({**text, **decoder})
    for media in (*both, *pictures, *sound):
        yield draw.required({**media, **decoder})
        if decoder:
            yield draw.required(dict(media))
    yield draw.required({})


# More places than the features of a tiny picture take.
TOO_MANY = 100
MISMATCH = re.compile(
    r"(Image|Video|Audio|Multimodal)\D*tokens: (?:torch\.Size\(\[)?(\d+)\D+features:? (?:torch\.Size\(\[)?(\d+)"
)
TOKENS = {
    "Image": ("image_token_id", "image_token_index", "media_placeholder_token_id", "image_patch_id"),
    "Video": ("video_token_id", "video_token_index"),
    "Audio": ("audio_token_id", "audio_token_index", "audio_input_token_id"),
    "Multimodal": ("image_token_id", "audio_token_id", "image_token_index", "audio_token_index"),
}


def settle(model, seed=0):
    """The first set of inputs that a model runs on, or the errors of all of them.

    A multimodal model says how many places in its text the features of a picture take; they are put behind the first
    token of every row.
    """
    errors = []
    for found in candidates(model, seed):
        for _ in range(3):
            try:
                with torch.no_grad():
                    model(**found)
                return found, errors
            except Exception as error:
                errors.append(f"{sorted(found)}: {type(error).__name__}: {error}")
                found = with_places(model.config, found, str(error))
                if found is None:
                    break
    return None, errors


def with_places(config, inputs, error):
    """Inputs with as many placeholder tokens as an error asks for; None where it asks for none."""
    told = MISMATCH.search(error)
    if told is None or "input_ids" not in inputs:
        return None
    kind, _, features = told.groups()
    token = setting(config, *TOKENS[kind])
    if token is None:
        return None
    ids = inputs["input_ids"]
    count = int(features) // ids.shape[0]
    if count > TOO_MANY:  # numbers were counted, not features
        count //= config.get_text_config().hidden_size
    places = torch.full((ids.shape[0], count), token)
    ids = torch.cat([ids[:, :1], places, ids[:, 1:]], dim=1)
    changed = {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "mm_token_type_ids" in inputs:
        changed["mm_token_type_ids"] = (ids == token).long()
    return changed
