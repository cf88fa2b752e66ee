"""What one architecture needs other than the common small sizes, in groups by reason.

A value replaces the configuration's field; keys are model types, those of parts of larger models included.
"""

from __future__ import annotations

ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def sections(*sizes, **more):
    """Multimodal rotary positions: how the frequencies of a head are shared among time, height and width."""
    return {"rope_parameters": {**ROPE, "mrope_section": list(sizes), **more}}


MROPE = sections(2, 3, 3)
SERIES = {"prediction_length": 4, "context_length": 8, "num_time_features": 1}

OVERRIDES: dict[str, dict] = {
    # The default sections of rotary positions are those of heads of 128.
    "ernie4_5_vl_moe_text": sections(3, 3, 2),
    "glm46v_text": MROPE,
    "glm4v_moe_text": sections(2, 1, 1, partial_rotary_factor=0.5),
    "glm4v_text": MROPE,
    "glm_image_text": MROPE,
    "glm_ocr_text": MROPE,
    "paddleocr_vl_text": MROPE,
    "qwen2_5_omni_talker": MROPE,
    "qwen2_5_omni_text": MROPE,
    "qwen2_5_vl_text": MROPE,
    "qwen2_vl_text": MROPE,
    # By default, the kinds of layers that attend come after the two layers that are kept.
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE},
    },
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "intermediate_size": 96,
        "activation_sparsity_pattern": None,
    },
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_experts_per_tok": 2},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "sparse"],
        "index_block_size": 4,
        "index_topk_blocks": 2,
    },
    "mllama_text_model": {"num_hidden_layers": 3, "cross_attention_layers": [1]},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 64},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "mamba_dt_rank": 8,
    },
    "zamba2": {"attention_hidden_size": 128, "attention_head_dim": 32},
    # Fields without a default.
    "autoformer": {**SERIES, "label_length": 4},
    "blip-2": {"image_token_index": 127},
    "chameleon": {"vocabulary_map": {"<image>": 127, "IMGIMGBS00Z": 120, "IMGIMGCS00Z": 121}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 96},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "num_key_value_heads": 2},
    "emu3": {"vocabulary_map": {"<|extra_200|>": 120, "<image>": 127, "<|visual token 000000|>": 100}},
    "esm": {"vocab_size": 128, "mask_token_id": 100, "pad_token_id": 1},
    "granite4_vision": {"deepstack_layer_map": [[0, 0]], "spatial_layers": [], "downsample_rate": "1/2"},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hunyuan_vl_text": {"head_dim": 16},
    "informer": SERIES,
    "instructblip": {"image_token_index": 127},
    "instructblipvideo": {"video_token_index": 127},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 16},
    "pix2struct_text_model": {"initializer_range": 1.0},
    "step3p5": {"sliding_window": 5},
    "time_series_transformer": SERIES,
    "xmod": {"default_language": "en_XX"},
    # Every head has keys and values of its own.
    "dia_decoder": {"cross_num_key_value_heads": 4, "cross_head_dim": 16, "cross_hidden_size": 64},
    "dots3_note_text": {"num_key_value_heads": 4},
    "esmc": {"num_key_value_heads": 4},
    "glm5_next_text": {"num_key_value_heads": 4, "index_topk": 4, "index_kpool": 2},
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    # Sizes that follow from others.
    "clvp_encoder": {"projection_dim": 64, "num_attention_heads": 2},
    "dots3_note_audio_encoder": {"adapter_input_size": 64},
    "dots3_note_vision_encoder": {"adapter_in_dim": 64},
    "falcon_h1": {"mamba_d_head": 16},
    "kosmos-2": {"latent_query_num": 4},
    "lilt": {"hidden_size": 48},
    "llama4_vision_model": {
        "intermediate_size": 256,
        "vision_output_dim": 64,
        "projector_input_dim": 64,
        "projector_output_dim": 64,
    },
    "lw_detr_vit": {"num_windows": 4},
    "mistral4": {
        "rope_parameters": {
            **ROPE,
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 64,
            "partial_rotary_factor": 0.5,
        }
    },
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": (32, 32), "axial_pos_shape": (8, 16)},
    "rf_detr_dinov2": {"num_windows": 1},
    "sapiens2": {"num_key_value_heads_per_layer": [4, 2]},
    "swin": {"window_size": 4, "depths": (2, 2), "num_heads": (2, 4), "embed_dim": 32},
    # Without normalization, activations grow to thousands, and so do errors.
    "mobilebert": {"normalization_type": "layer_norm"},
    # Large for other reasons than the common sizes.
    "blt": {"encoder_hash_byte_group_vocab": 100},
    "emu3_vqgan": {"base_channels": 32, "hidden_size": 128},
    "mgp-str": {"num_bpe_labels": 128, "num_wordpiece_labels": 128},
    "patchtst": {"context_length": 16},
    "radio": {"max_img_size": 64},
    "vits": {"upsample_initial_channel": 32},
    "vjepa2": {
        "frames_per_clip": 4,
        "pred_hidden_size": 64,
        "pred_num_attention_heads": 4,
        "pred_num_hidden_layers": 2,
    },
    "vibevoice_acoustic_tokenizer": {"num_filters": 2},
    "vibevoice_acoustic_tokenizer_decoder": {"num_filters": 2},
    "vibevoice_acoustic_tokenizer_encoder": {"num_filters": 2},
}
