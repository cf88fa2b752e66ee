"""What one architecture needs other than the common small sizes, one line each with the reason.

A value replaces the configuration's field; keys are model types, those of parts of larger models included.
"""

from __future__ import annotations


def sections(*sizes):
    """Multimodal rotary positions: how the 8 frequencies of a head are shared among time, height and width."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sizes)}}


MROPE = sections(2, 3, 3)
PARTIAL_MROPE = {"rope_parameters": {**MROPE["rope_parameters"], "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}}

OVERRIDES: dict[str, dict] = {
    # The default sections of rotary positions are those of heads of 128.
    "qwen2_vl_text": MROPE,
    "qwen2_5_vl_text": MROPE,
    "qwen2_5_omni_text": MROPE,
    "qwen2_5_omni_talker": MROPE,
    "paddleocr_vl_text": MROPE,
    "glm_ocr_text": MROPE,
    "glm4v_text": MROPE,
    "glm46v_text": MROPE,
    "glm_image_text": MROPE,
    "glm4v_moe_text": PARTIAL_MROPE,
    "ernie4_5_vl_moe_text": sections(3, 3, 2),
    # Layers that attend come late by default, after the two that are kept.
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 8},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 64},
    "zamba": {"layer_types": ["linear_attention", "hybrid", "linear_attention", "hybrid"], "num_hidden_layers": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    # Fields without a default.
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hunyuan_vl_text": {"head_dim": 16},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 16},
    "esm": {"vocab_size": 128, "mask_token_id": 100, "pad_token_id": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "num_key_value_heads": 2},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 96},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "autoformer": {"prediction_length": 4, "context_length": 8},
    "informer": {"prediction_length": 4, "context_length": 8},
    "time_series_transformer": {"prediction_length": 4, "context_length": 8},
    "step3p5": {"sliding_window": 5},
    "granite4_vision": {"deepstack_layer_map": [[0, 0]], "spatial_layers": []},
    # Every head has its own keys and values.
    "dots3_note_text": {"num_key_value_heads": 4},
    "esmc": {"num_key_value_heads": 4},
    "glm5_next_text": {"num_key_value_heads": 4},
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    # Sizes that follow from others.
    "clvp_encoder": {"projection_dim": 64, "num_attention_heads": 2},
    "dia_decoder": {"cross_num_key_value_heads": 4, "cross_head_dim": 16, "cross_hidden_size": 64},
    "fun_asr_nano_adaptor": {"intermediate_size": 16},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": (32, 32), "axial_pos_shape": (8, 16)},
    "sapiens2": {"num_key_value_heads_per_layer": [4, 2]},
    "zoedepth": {},
}
