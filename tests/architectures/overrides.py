"""What one architecture needs other than the common small sizes, one line each with the reason.

A value replaces the configuration's field; keys are model types, those of parts of larger models included.
"""

from __future__ import annotations


def sections(*sizes):
    """Multimodal rotary positions: how the 8 frequencies of a head are shared among time, height and width."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sizes)}}


MROPE = sections(2, 3, 3)
PARTIAL_MROPE = {"rope_parameters": {**MROPE["rope_parameters"], "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}}

BY_LAYER = {
    kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")
}

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
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "mamba_dt_rank": 8,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_experts_per_tok": 2},
    "cohere_compass_text": {"layer_types": ["sliding_attention", "full_attention"], "rope_parameters": BY_LAYER},
    "gemma3n_text": {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "intermediate_size": 96, "activation_sparsity_pattern": 0.0},
    "gemma4_text": {"hidden_size_per_layer_input": 16},
    # Fields without a default.
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hunyuan_vl_text": {"head_dim": 16},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 16},
    "esm": {"vocab_size": 128, "mask_token_id": 100, "pad_token_id": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_key_value_heads": 2, "num_experts_per_tok": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 96},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
    "step3p5": {"sliding_window": 5},
    "granite4_vision": {"deepstack_layer_map": [[0, 0]], "spatial_layers": [], "downsample_rate": "1/2"},
    "blip-2": {"image_token_index": 127},
    "instructblip": {"image_token_index": 127},
    "instructblipvideo": {"video_token_index": 127},
    "zamba2": {"attention_hidden_size": 128, "attention_head_dim": 32},
    "xmod": {"default_language": "en_XX"},
    "chameleon": {"vocabulary_map": {"<image>": 127, "IMGIMGBS00Z": 120, "IMGIMGCS00Z": 121}},
    "emu3": {"vocabulary_map": {"<|extra_200|>": 120, "<image>": 127, "<|visual token 000000|>": 100}},
    "pix2struct_text_model": {"initializer_range": 1.0},
    # Every head has its own keys and values.
    "dots3_note_text": {"num_key_value_heads": 4},
    "esmc": {"num_key_value_heads": 4},
    "glm5_next_text": {"num_key_value_heads": 4, "index_topk": 4, "index_kpool": 2},
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    # Sizes that follow from others.
    "clvp_encoder": {"projection_dim": 64, "num_attention_heads": 2},
    "dia_decoder": {"cross_num_key_value_heads": 4, "cross_head_dim": 16, "cross_hidden_size": 64},
    "fun_asr_nano_adaptor": {"intermediate_size": 16},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": (32, 32), "axial_pos_shape": (8, 16)},
    "sapiens2": {"num_key_value_heads_per_layer": [4, 2]},
    "lilt": {"hidden_size": 48},
    "kosmos-2": {"latent_query_num": 4},
    "dots3_note_vision_encoder": {"adapter_in_dim": 64},
    "dots3_note_audio_encoder": {"adapter_input_size": 64},
    "mllama_text_model": {"num_hidden_layers": 3, "cross_attention_layers": [1]},
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
    "time_series_transformer": {"prediction_length": 4, "context_length": 8, "num_time_features": 1},
    "informer": {"prediction_length": 4, "context_length": 8, "num_time_features": 1},
    "autoformer": {"prediction_length": 4, "context_length": 8, "num_time_features": 1, "label_length": 4},
    "timesfm2_5": {"patch_length": 32},
    "mistral4": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64, "partial_rotary_factor": 0.5}},
    "swin": {"window_size": 4, "depths": (2, 2), "num_heads": (2, 4), "embed_dim": 32},
    "llama4_vision_model": {"pixel_shuffle_ratio": 0.5, "vision_output_dim": 64, "projector_output_dim": 64, "projector_input_dim": 64, "hidden_size": 64, "intermediate_size": 256},
    "efficientloftr": {"hidden_size": 256},
    "xclip": {"mit_hidden_size": 64, "mit_intermediate_size": 96, "mit_num_hidden_layers": 2, "mit_num_attention_heads": 4},
    "patchtst": {"context_length": 16},
    "lw_detr_vit": {"num_windows": 4},
    "rf_detr_dinov2": {"num_windows": 1},
}
