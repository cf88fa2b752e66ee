"""Inputs by what `forward` asks for: ids, pictures, sound, in the layout that the model's configuration implies."""

from __future__ import annotations

import inspect
import re

import torch
from transformers import PreTrainedConfig

BATCH, LENGTH, DECODER_LENGTH, FRAMES, SAMPLES = 2, 14, 9, 64, 2000


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
        vision = self.vision()
        channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
        channels = channels if isinstance(channels, int) else 3
        patch = getattr(vision, "patch_size", 8)
        patch = patch if isinstance(patch, int) else patch[-1]
        size = getattr(vision, "image_size", None) or 4 * patch
        height, width = (size, size) if isinstance(size, int) else size[:2]
        found = {}
        grid = {"image_grid_thw", "grid_thw"} & set(self.names)
        if grid:
            temporal = getattr(vision, "temporal_patch_size", 1)
            rows = self.normal(BATCH * 16, channels * temporal * patch * patch)
            name = "hidden_states" if "hidden_states" in self.names else "pixel_values"
            found[name] = rows
            found[grid.pop()] = torch.tensor([[1, 4, 4]] * BATCH)
        elif "pixel_values" in self.names:
            frames = getattr(vision, "num_frames", None)
            shape = (BATCH, frames, channels, height, width) if frames else (BATCH, channels, height, width)
            found["pixel_values"] = self.normal(*shape)
            if "image_sizes" in self.names:
                found["image_sizes"] = torch.tensor([[height, width]] * BATCH)
        elif "pixel_values_videos" in self.names:
            frames = getattr(vision, "num_frames", None) or getattr(vision, "frames_per_clip", None) or 4
            found["pixel_values_videos"] = self.normal(BATCH, frames, channels, height, width)
        return found

    def sound(self):
        found = {}
        if "input_features" in self.names:
            mel = setting(self.config, "num_mel_bins", "feature_size", "feat_dim", "input_dim", "feature_projection_input_dim",
                          "input_feat_per_channel", default=80)
            found["input_features"] = self.normal(BATCH, mel, FRAMES)
        if "input_values" in self.names:
            found["input_values"] = self.normal(BATCH, SAMPLES)
        return found

    def required(self, found):
        """What must be given and is neither text nor picture nor sound."""
        for name, needed in self.names.items():
            if needed and name not in found and name in ("encoder_hidden_states", "query_embeds"):
                found[name] = self.normal(BATCH, LENGTH, setting(self.config, "encoder_hidden_size", "hidden_size"))
        return found


def candidates(model, seed=0):
    """Sets of inputs to try, the richest first: the first one that the model runs on is its own."""
    draw = Inputs(model, seed)
    text, decoder, pictures, sound = draw.text(), draw.decoder(), draw.pictures(), draw.sound()
    media = {**pictures, **sound}
    tried = []
    for found in ({**text, **media, **decoder}, {**text, **decoder}, {**media, **decoder}, {**text, **pictures, **decoder},
                  {**text, **sound, **decoder}, {**pictures}, {**sound}):
        if not found:
            continue
        if "input_features" in found:
            transposed = {**found, "input_features": found["input_features"].transpose(1, 2).contiguous()}
            both = [found, transposed]
        else:
            both = [found]
        for each in both:
            each = draw.required(dict(each))
            if not any(same(each, other) for other in tried):
                tried.append(each)
                yield each


def same(left, right):
    return left.keys() == right.keys() and all(left[name].shape == right[name].shape for name in left)



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
            except Exception as error:  # noqa: BLE001 - what a model dislikes about inputs can be anything
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
    places = torch.full((ids.shape[0], int(features) // ids.shape[0]), token)
    ids = torch.cat([ids[:, :1], places, ids[:, 1:]], dim=1)
    changed = {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "mm_token_type_ids" in inputs:
        changed["mm_token_type_ids"] = (ids == token).long()
    return changed
