"""Inputs by what `forward` asks for: ids, pictures, sound, in the layout that the model's configuration implies."""

from __future__ import annotations

import inspect
import re

import torch
from transformers import PreTrainedConfig

from .inputs_sizes import BATCH, DECODER_LENGTH, FRAMES, LENGTH, SAMPLES
from .pictures import layouts_of_pictures
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

    def setting(self, *names, default=None):
        return setting(self.config, *names, default=default)

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
            hidden = self.setting("hidden_size", "d_model")
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

    def sound(self):
        """Layouts of sound to try: spectra either way round, waves with and without an axis of channels."""
        layouts = []
        if "input_features" in self.names:
            masks = self.time_masks(FRAMES)
            mels = {self.setting(name) for name in SPECTRUM_SIZES}
            for mel in sorted(mels - {None}, key=str) or [80]:
                spectrum = self.normal(BATCH, mel, FRAMES)
                for found in (spectrum, spectrum.transpose(1, 2).contiguous(), spectrum[:, None].transpose(2, 3)):
                    layouts.append({"input_features": found, **masks})
        if "input_values" in self.names:
            wave = self.normal(BATCH, SAMPLES)
            masks = self.time_masks(SAMPLES)
            layouts += [{"input_values": wave, **masks}, {"input_values": wave}, {"input_values": wave[:, None]}]
            mel = self.setting("num_mel_bins", default=8)
            layouts.append({"input_values": self.normal(BATCH, self.setting("max_length", default=32), mel)})
        return layouts

    def time_masks(self, length):
        """Which moments are real: all. A model that reads text has its attention_mask for that."""
        names = {"input_features_mask", "feature_attention_mask"}
        if "input_ids" not in self.names:
            names.add("attention_mask")
        return {name: torch.ones(BATCH, length, dtype=torch.long) for name in sorted(names & set(self.names))}

    def required(self, found):
        """What must be given besides."""
        hidden = self.setting("encoder_hidden_size", "hidden_size", "d_model")
        for name, needed in self.names.items():
            if name in found:
                continue
            if needed and name in ("encoder_hidden_states", "query_embeds"):
                found[name] = self.normal(BATCH, LENGTH, hidden)
            elif needed and name in ("qformer_input_ids", "input_ids"):
                found[name] = self.ids(BATCH, LENGTH)
        return found


def candidates(model, seed=0):
    """Sets of inputs to try, the richest first: the first one that the model runs on is its own."""
    draw = Inputs(model, seed)
    special = SPECIAL.get(model.config.model_type)
    if special is not None:
        yield special(draw)
        return
    text, decoder = draw.text(), draw.decoder()
    pictures, sound = layouts_of_pictures(draw), draw.sound()
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
