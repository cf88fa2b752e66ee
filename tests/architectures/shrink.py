"""A tiny configuration of any architecture: its default one with every size replaced by name.

All models share one set of sizes, so that parts of a multimodal model fit together: hidden size 64, 4 heads of 16,
2 key/value heads where there is a choice, 2 layers or as many as it takes to have each kind of layer.
"""

from __future__ import annotations

import re

from transformers import CONFIG_MAPPING, PreTrainedConfig

from .overrides import OVERRIDES

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD, VOCABULARY, LAYERS = 64, 4, 2, 16, 96, 128, 2
IMAGE, PATCH, WINDOW = 32, 8, 5

# Field names, matched as a whole, with the size that they get. A field keeps its own value where that is smaller.
SIZES = (
    (
        HIDDEN,
        """hidden_size d_model n_embd embed_dim projection_dim out_hidden_size embedding_size encoder_hidden_size
        decoder_hidden_size d_latents text_hidden_size hidden_dim dim projector_hidden_size
        projection_hidden_size output_dim output_hidden_size entity_emb_size word_embed_proj_dim projection_size
        pooler_hidden_size image_text_hidden_size encoder_hidden_dim vision_hidden_size attention_hidden_size
        backbone_hidden_size adapter_out_dim emb_dim embedding_dim hidden_size_global project_dim
        output_proj_dims input_embedding_size output_embedding_size vision_output_dim cross_hidden_size
        projector_output_dim conv_dim""",
    ),
    (
        HEADS,
        """num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads
        encoder_num_attention_heads decoder_num_attention_heads attention_heads num_encoder_attention_heads
        num_decoder_attention_heads resampler_heads resampler_n_heads num_self_attention_heads
        num_cross_attention_heads swa_num_attention_heads num_sliding_attention_heads index_n_heads
        speech_encoder_attention_heads t2u_encoder_attention_heads t2u_decoder_attention_heads
        linear_num_value_heads linear_num_heads cross_num_attention_heads memory_attention_num_attention_heads
        decoder_num_heads""",
    ),
    (
        KV_HEADS,
        """num_key_value_heads swa_num_key_value_heads encoder_num_key_value_heads decoder_num_key_value_heads
        num_kv_heads linear_num_key_heads num_key_value_attention_heads cross_num_key_value_heads""",
    ),
    (
        HEAD_DIM,
        """head_dim d_kv dim_head attention_head_size qk_nope_head_dim qk_rope_head_dim swa_head_dim d_head
        index_head_dim v_head_dim cross_head_dim kv_channels resampler_head_dim resampler_dim_head
        linear_head_dim linear_key_head_dim linear_value_head_dim rotary_dim""",
    ),
    (
        FEED_FORWARD,
        """intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff d_inner mlp_dim dim_ff
        moe_intermediate_size feed_forward_size shared_expert_intermediate_size share_expert_dim ffn_hidden_size
        expert_ffn_hidden_size moe_hidden_size dense_intermediate_size dim_feedforward decoder_intermediate_size
        speech_encoder_intermediate_size moe_shared_expert_intermediate_size prompt_intermediate_size
        t2u_encoder_ffn_dim t2u_decoder_ffn_dim alignment_intermediate_size encoder_dim_feedforward
        decoder_dim_feedforward shared_intermediate_size encoder_feedforward_dim
        memory_attention_feed_forward_hidden_size intermediate_size_mlp""",
    ),
    (32, "kv_lora_rank q_lora_rank o_lora_rank hidden_size_per_layer_input laurel_rank"),
    (
        VOCABULARY,
        """vocab_size text_vocab_size decoder_vocab_size src_vocab_size tgt_vocab_size pronunciation_vocab_size
        shape_vocab_size entity_vocab_size vocab_size_per_layer_input t2u_vocab_size unit_hifi_gan_vocab_size
        char_vocab_size text_encoder_vocab_size unpadded_vocab_size codebook_size num_embeddings
        audio_vocab_size""",
    ),
    (
        LAYERS,
        """num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers depth num_encoder_layers
        num_decoder_layers encoder_num_hidden_layers decoder_num_hidden_layers layers speech_encoder_layers
        t2u_encoder_layers t2u_decoder_layers text_encoder_num_layers num_global_layers decoder_num_layers
        resampler_depth num_self_attends_per_block memory_attention_num_layers""",
    ),
    (
        128,
        """max_position_embeddings n_positions max_seq_len n_ctx max_target_positions max_text_positions
        max_speech_positions t2u_max_position_embeddings text_encoder_context_length max_2d_position_embeddings
        original_max_position_embeddings""",
    ),
    (32, "max_source_positions"),
    (IMAGE, "image_size input_size crop_size max_image_size"),
    (PATCH, "patch_size"),
    (
        WINDOW,
        "sliding_window attention_chunk_size attention_window_size sliding_window_size local_attention_window_len",
    ),
    (8, "local_attention num_mel_bins mamba_n_heads mamba_num_heads"),
    (16, "mamba_d_head mamba_head_dim mamba_d_state ssm_state_size mamba_chunk_size chunk_size"),
    (128, "mamba_d_ssm"),
    (
        4,
        """num_experts num_local_experts n_routed_experts moe_num_experts num_frames index_topk num_latents
        num_query_tokens num_queries resampler_n_latents resampler_num_latents""",
    ),
    (2, "num_experts_per_tok num_experts_per_token moe_topk moe_k n_group num_expert_group"),
    (
        1,
        """topk_group first_k_dense_replace n_shared_experts moe_num_shared_experts num_dense_layers
        num_nextn_predict_layers""",
    ),
)
SIZE_OF = {name: size for size, names in SIZES for name in names.split()}

# What other fields decide when it is left out.
DERIVED = {"qk_head_dim", "stage_names", "_out_features", "_out_indices"}

LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "depth")

# Ids of special tokens get a place inside the small vocabulary.
TOKEN = re.compile(r"(_token_id|_token_index|_token_ids|_patch_id)$")
COMMON_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}


def tiny_config(model_type: str) -> PreTrainedConfig:
    """A small configuration of this type, the same on every call."""
    return shrink(CONFIG_MAPPING[model_type])


def shrink(kind, default=None):
    """The smaller sister of a configuration: of `default`, where it is part of another one, or of its class's own."""
    changes = {}
    if default is None:
        default = kind()
    else:  # what the whole decides about its part
        plain = vars(kind())
        changes = {
            name: value
            for name, value in vars(default).items()
            if name in plain and plain[name] != value and name[0] != "_" and name not in DERIVED
        }
    fields = {name: value for name, value in vars(default).items() if name not in DERIVED}
    count, layers = chosen_layers(fields)
    for name, value in fields.items():
        small = len(layers) if name in LAYER_COUNTS and layers else smaller(name, value, count, layers)
        if small is not value or name in SIZE_OF:
            changes[name] = small
        if isinstance(value, PreTrainedConfig):
            changes[name] = shrink(type(value), value)
    changes.update(special_tokens(fields))
    if "kv_lora_rank" in fields and "num_key_value_heads" in fields:  # latent attention makes keys for every head
        changes["num_key_value_heads"] = HEADS
    changes.update(OVERRIDES.get(kind.model_type, {}))
    return kind(**changes)


def smaller(name, value, count, layers):
    """What a field becomes, or the value itself where it stays. `layers` of `count` layers are kept."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, list | tuple) and len(value) == count > LAYERS:
        if list(value) == list(range(count)):
            return type(value)(range(len(layers)))
        return type(value)(value[index] for index in layers)
    if name in ("rope_parameters", "rope_scaling"):
        return smaller_rope(value)
    size = SIZE_OF.get(name)
    if size is None:
        return value
    if isinstance(value, int):
        return min(size, value)
    if isinstance(value, list | tuple) and all(isinstance(entry, int) for entry in value):
        return type(value)(min(size, entry) for entry in value)
    return value


def smaller_rope(value):
    """Sections of a head's frequencies shrink as the head does."""
    if not isinstance(value, dict):
        return value
    value = {name: smaller_rope(entry) for name, entry in value.items()}
    sections = value.get("mrope_section")
    if sections:
        half = HEAD_DIM // 2
        rest = [max(1, round(entry * half / sum(sections))) for entry in sections[1:]]
        value["mrope_section"] = [half - sum(rest), *rest]
    return value


def chosen_layers(fields):
    """How many layers there are, and which stay: the first of each kind, and at least two."""
    count = next((fields[name] for name in LAYER_COUNTS if isinstance(fields.get(name), int)), 0)
    kinds = [
        value
        for name, value in fields.items()
        if isinstance(value, list | tuple)
        and len(value) == count
        and "layer" in name
        and list(value) != list(range(count))
    ]
    first = {}
    for index in range(count):
        first.setdefault(tuple(str(kind[index]) for kind in kinds), index)
    kept = sorted(first.values())
    if len(kept) < LAYERS:
        kept = sorted({*kept, *range(min(LAYERS, count))})[:LAYERS]
    return count, kept


def special_tokens(fields):
    """Ids inside the small vocabulary, each its own, far from those that inputs draw."""
    tokens = {}
    for name, value in fields.items():
        if TOKEN.search(name) and isinstance(value, int):
            tokens[name] = COMMON_TOKENS.get(name, VOCABULARY - 1 - len(tokens))
    return tokens
