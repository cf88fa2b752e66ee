"""Inputs of architectures that ask for more than text, pictures and sound in their usual layouts."""

from __future__ import annotations

import torch

from .inputs_sizes import BATCH, DECODER_LENGTH, FRAMES, LENGTH
from .pictures import layouts_of_pictures


def states(draw):
    """A decision transformer: states, actions and rewards of a few steps."""
    config, steps = draw.config, 6
    return {
        "states": draw.normal(BATCH, steps, config.state_dim),
        "actions": draw.normal(BATCH, steps, config.act_dim),
        "rewards": draw.normal(BATCH, steps, 1),
        "returns_to_go": draw.normal(BATCH, steps, 1),
        "timesteps": torch.arange(steps).expand(BATCH, steps),
        "attention_mask": torch.ones(BATCH, steps, dtype=torch.long),
    }


def series(draw):
    """A probabilistic forecaster: a past as long as its context and lags, and a future to predict."""
    config = draw.config
    past, features = config.context_length + max(config.lags_sequence), config.num_time_features
    return {
        "past_values": draw.normal(BATCH, past).abs(),
        "past_time_features": draw.normal(BATCH, past, features),
        "past_observed_mask": torch.ones(BATCH, past),
        "future_values": draw.normal(BATCH, config.prediction_length).abs(),
        "future_time_features": draw.normal(BATCH, config.prediction_length, features),
    }


def codes(books):
    """Ids of sound, one row per book of codes."""
    return lambda draw: {
        "input_ids": draw.ids(BATCH * books(draw.config), LENGTH),
        "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long),
    }


def spectrum_lengths(draw):
    """Spectra one after the other, and how long each is."""
    return {
        "input_features": draw.normal(draw.config.num_mel_bins, 2 * FRAMES),
        "feature_lens": torch.tensor([FRAMES, FRAMES]),
    }


def rows(name, *sizes):
    """One float tensor of these sizes; a string names the configuration's field."""
    return lambda draw: {
        name: draw.normal(*(getattr(draw.config, size) if isinstance(size, str) else size for size in sizes))
    }


def together(*parts):
    return lambda draw: {name: value for part in parts for name, value in part(draw).items()}


def ones(name, *sizes):
    return lambda draw: {name: torch.ones(*sizes, dtype=torch.bool)}


def chosen(name, low, high, *sizes):
    return lambda draw: {name: torch.randint(low, high, sizes, generator=draw.generator)}


TEXT_MASK = ones("attention_mask", BATCH, LENGTH)

# Each replaces all other inputs.
SPECIAL = {
    "decision_transformer": states,
    "time_series_transformer": series,
    "informer": series,
    "autoformer": series,
    "patchtst": rows("past_values", BATCH, "context_length", "num_input_channels"),
    "patchtsmixer": rows("past_values", BATCH, "context_length", "num_input_channels"),
    "timesfm2_5": rows("past_values", BATCH, 128),
    "musicgen_decoder": codes(lambda config: config.num_codebooks),
    "musicgen_melody_decoder": codes(lambda config: config.num_codebooks),
    "moshi_depth": together(chosen("input_ids", 5, 90, BATCH, 4), rows("last_hidden_state", BATCH, 1, "input_size")),
    "granite_speech_encoder": rows("hidden_states", BATCH, FRAMES, "input_dim"),
    "granite_speech_plus_encoder": rows("hidden_states", BATCH, FRAMES, "input_dim"),
    "qwen2_5_omni_audio_encoder": spectrum_lengths,
    "qwen3_omni_moe_audio_encoder": spectrum_lengths,
    "gemma3n_audio": together(
        rows("audio_mel", BATCH, FRAMES, "input_feat_size"),
        lambda draw: {"audio_mel_mask": torch.zeros(BATCH, FRAMES).bool()},
    ),
    "gemma4_vision": lambda draw: {
        "pixel_values": draw.normal(BATCH, 16, 3 * draw.config.patch_size**2),
        "pixel_position_ids": torch.cartesian_prod(torch.arange(4), torch.arange(4)).expand(BATCH, 16, 2),
    },
    "pix2struct": lambda draw: {
        "flattened_patches": patches_with_places(draw, draw.config.vision_config),
        "decoder_input_ids": draw.ids(BATCH, DECODER_LENGTH),
    },
    "pix2struct_vision_model": lambda draw: {"flattened_patches": patches_with_places(draw, draw.config)},
    "kosmos-2": lambda draw: {
        **draw.text(),
        **layouts_of_pictures(draw)[0],
        "image_embeds_position_mask": (torch.arange(LENGTH) < draw.config.latent_query_num).expand(BATCH, LENGTH),
    },
    "lxmert": lambda draw: {
        **draw.text(),
        "visual_feats": draw.normal(BATCH, 5, draw.config.visual_feat_dim),
        "visual_pos": draw.normal(BATCH, 5, draw.config.visual_pos_dim),
    },
    "idefics": lambda draw: {
        **draw.text(),
        "pixel_values": draw.normal(BATCH, 1, 3, 32, 32),
        "image_attention_mask": torch.ones(BATCH, LENGTH, 1, dtype=torch.long),
    },
    "idefics2_perceiver": together(rows("context", BATCH, LENGTH, "hidden_size"), TEXT_MASK),
    "molmo2_vision": lambda draw: {"pixel_values": draw.normal(BATCH, 16, 3 * draw.config.patch_size**2)},
    "sam3_detr_decoder": lambda draw: {
        "vision_features": draw.normal(BATCH, 16, 64),
        "text_features": draw.normal(BATCH, LENGTH, 64),
        "vision_pos_encoding": draw.normal(BATCH, 16, 64),
        "text_mask": torch.ones(BATCH, LENGTH, dtype=torch.bool),
        "spatial_shapes": torch.tensor([[4, 4]]),
    },
    "bridgetower_vision_model": rows("image", BATCH, 3, 32, 32),
    "blip_2_qformer": together(
        rows("query_embeds", BATCH, 4, "hidden_size"),
        rows("encoder_hidden_states", BATCH, LENGTH, "encoder_hidden_size"),
    ),
    "unlimited_ocr_vision_encoder": rows("patch_embeds", BATCH, 64, 4, 4),
    "flava_multimodal_model": rows("hidden_states", BATCH, LENGTH, "hidden_size"),
    "perceiver": lambda draw: {"inputs": draw.normal(BATCH, LENGTH, draw.config.d_model)},
    "lightglue": rows("pixel_values", BATCH, 2, 3, 32, 32),
    "qwen3_omni_moe_talker_code_predictor": lambda draw: {"inputs_embeds": draw.normal(BATCH, LENGTH, 64)},
}


def patches_with_places(draw, config):
    """Patches that begin with their row and column."""
    size = config.patch_embed_hidden_size if hasattr(config, "patch_embed_hidden_size") else 768
    places = torch.cartesian_prod(torch.arange(1, 5), torch.arange(1, 5)).expand(BATCH, 16, 2)
    return torch.cat([places.float(), draw.normal(BATCH, 16, size)], dim=-1)
