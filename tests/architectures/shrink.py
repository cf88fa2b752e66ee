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
    (HIDDEN, """hidden_size d_model n_embd embed_dim projection_dim out_hidden_size embedding_size encoder_hidden_size
        decoder_hidden_size text_embed_dim encoder_embed_dim decoder_embed_dim vision_embed_dim d_latents text_hidden_size
        hidden_dim dim n_state projector_hidden_size projection_hidden_size output_dim output_hidden_size entity_emb_size
        word_embed_proj_dim projection_size pooler_hidden_size conv_dim_out image_text_hidden_size encoder_hidden_dim
        vision_hidden_size audio_hidden_size attention_hidden_size backbone_hidden_size adapter_out_dim feat_proj_dim
        emb_dim embedding_dim cross_attention_hidden_size hidden_size_global hidden_act_dim project_dim resampler_dim
        output_proj_dims lm_hidden_size input_embedding_size output_embedding_size vision_output_dim cross_hidden_size
        text_config_hidden_size model_dim adapter_hidden_size input_hidden_size vision_feature_dim d_inner_hid
        dense_hidden_size projector_output_dim hidden_channels num_hidden_channels encoder_dim decoder_dim
        connector_hidden_size mm_hidden_size protein_encoder_hidden_size alignment_hidden_size t2u_d_model"""),
    (HEADS, """num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads heads
        encoder_num_attention_heads decoder_num_attention_heads attention_heads num_encoder_attention_heads
        num_decoder_attention_heads resampler_heads resampler_n_heads num_self_attention_heads num_cross_attention_heads
        swa_num_attention_heads num_sliding_attention_heads num_global_attention_heads index_n_heads
        protein_encoder_num_attention_heads speech_encoder_attention_heads t2u_encoder_attention_heads
        t2u_decoder_attention_heads linear_num_value_heads linear_num_heads cross_num_attention_heads
        memory_attention_num_attention_heads decoder_num_heads"""),
    (KV_HEADS, """num_key_value_heads swa_num_key_value_heads encoder_num_key_value_heads decoder_num_key_value_heads
        num_global_key_value_heads n_head_kv num_kv_heads multi_query_group_num linear_num_key_heads
        resampler_num_key_value_heads num_key_value_attention_heads cross_num_key_value_heads"""),
    (HEAD_DIM, """head_dim d_kv dim_head attention_head_size qk_nope_head_dim qk_rope_head_dim swa_head_dim d_head
        index_head_dim v_head_dim global_head_dim cross_head_dim kv_channels resampler_head_dim resampler_dim_head linear_head_dim
        linear_key_head_dim linear_value_head_dim rotary_dim head_size attention_key_dim attention_value_dim"""),
    (FEED_FORWARD, """intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff n_inner d_inner mlp_dim dim_ff
        moe_intermediate_size feed_forward_size shared_expert_intermediate_size share_expert_dim ffn_hidden_size
        expert_ffn_hidden_size moe_hidden_size block_ff_dim dense_intermediate_size dim_feedforward
        decoder_intermediate_size protein_encoder_intermediate_size speech_encoder_intermediate_size
        moe_shared_expert_intermediate_size encoder_intermediate_size prompt_intermediate_size t2u_encoder_ffn_dim
        t2u_decoder_ffn_dim alignment_intermediate_size encoder_dim_feedforward decoder_dim_feedforward
        projector_intermediate_size shared_intermediate_size encoder_feedforward_dim
        memory_attention_feed_forward_hidden_size intermediate_size_mlp"""),
    (32, "kv_lora_rank q_lora_rank o_lora_rank moe_latent_size hidden_size_per_layer_input laurel_rank"),
    (VOCABULARY, """vocab_size n_vocab text_vocab_size encoder_vocab_size decoder_vocab_size src_vocab_size tgt_vocab_size
        pronunciation_vocab_size shape_vocab_size entity_vocab_size vocab_size_per_layer_input t2u_vocab_size
        unit_hifi_gan_vocab_size char_vocab_size text_encoder_vocab_size unpadded_vocab_size num_text_tokens
        protein_encoder_vocab_size codebook_size num_embeddings audio_vocab_size"""),
    (LAYERS, """num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers depth num_encoder_layers
        num_decoder_layers encoder_num_hidden_layers decoder_num_hidden_layers layers speech_encoder_layers
        t2u_encoder_layers t2u_decoder_layers text_encoder_num_layers num_global_layers decoder_num_layers
        perceiver_n_layers resampler_depth protein_encoder_num_hidden_layers num_self_attends_per_block
        memory_attention_num_layers num_transformer_layers num_block_layers"""),
    (128, """max_position_embeddings n_positions max_seq_len n_ctx max_sequence_length seq_length
        max_target_positions encoder_max_position_embeddings decoder_max_position_embeddings n_text_ctx
        max_text_positions max_speech_positions t2u_max_position_embeddings text_encoder_context_length
        max_2d_position_embeddings original_max_position_embeddings max_position_embeddings_t2u"""),
    (32, "max_source_positions"),
    (IMAGE, "image_size img_size input_size crop_size max_image_size"),
    (PATCH, "patch_size"),
    (WINDOW, """sliding_window attention_chunk_size attention_window_size sliding_window_size local_attention_window_len
        window_length"""),
    (8, "local_attention num_mel_bins"),
    (4, """num_experts num_local_experts n_routed_experts moe_num_experts num_frames n_experts index_topk
        num_latents num_query_tokens num_queries resampler_n_latents resampler_num_latents"""),
    (2, """num_experts_per_tok num_experts_per_token moe_topk moe_k top_k_experts moe_top_k n_group num_expert_group
        num_experts_per_group"""),
    (1, """topk_group first_k_dense_replace n_shared_experts moe_num_shared_experts num_dense_layers
        num_nextn_predict_layers"""),
)
SIZE_OF = {name: size for size, names in SIZES for name in names.split()}

# Fields that other fields decide when they are left out.
DERIVED = {"qk_head_dim", "num_hidden_layers_per_stage", "stage_names", "_out_features", "_out_indices"}

# No dropout and no skipped layers, whatever the mode.
TOKEN = re.compile(r"(_token_id|_token_index|_token_ids|_patch_id)$")
COMMON_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}


def tiny_config(model_type: str) -> PreTrainedConfig:
    """A small configuration of this type, the same on every call."""
    return shrink(CONFIG_MAPPING[model_type])


def shrink(kind: type[PreTrainedConfig], default: PreTrainedConfig | None = None) -> PreTrainedConfig:
    """The smaller sister of a configuration, by default of its class's own default."""
    own = OVERRIDES.get(kind.model_type, {})
    changes = {}
    if default is None:
        default = kind()
    else:  # what the whole decides about its part
        plain = vars(kind())
        changes = {name: value for name, value in vars(default).items() if name in plain and plain[name] != value}
        changes = {name: value for name, value in changes.items() if name[0] != "_" and name not in DERIVED}
    fields = {name: value for name, value in vars(default).items() if name not in DERIVED}
    layers = chosen_layers(fields)
    for name, value in fields.items():
        small = smaller(name, value, layers)
        if small is not value or name in SIZE_OF:
            changes[name] = small
    changes.update(special_tokens(fields))
    for name, sub in fields.items():
        if isinstance(sub, PreTrainedConfig):
            changes[name] = shrink(type(sub), sub)
    if "kv_lora_rank" in fields and "num_key_value_heads" in fields:  # latent attention: keys of every head are made
        changes["num_key_value_heads"] = HEADS
    for name, value in own.items():
        changes[name] = value(changes) if callable(value) else value
    return kind(**changes)


def smaller(name, value, layers):
    """What a field becomes, or the value itself where it stays."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, list | tuple) and len(value) == layers.before and layers.before > LAYERS:
        return type(value)(value[index] for index in layers.kept)
    if name in layers.counts:
        return len(layers.kept)
    if name == "rope_parameters" or name == "rope_scaling":
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


class chosen_layers:
    """Which layers stay: the first of each kind, and at least two."""

    def __init__(self, fields):
        counts = [name for name in ("num_hidden_layers", "n_layer", "num_layers", "depth") if isinstance(fields.get(name), int)]
        self.before = fields[counts[0]] if counts else -1
        kinds = [
            value
            for name, value in fields.items()
            if isinstance(value, list | tuple) and len(value) == self.before and "layer" in name
        ]
        kept = []
        seen = set()
        for index in range(max(self.before, 0)):
            kind = tuple(str(each[index]) for each in kinds)
            if kind not in seen:
                seen.add(kind)
                kept.append(index)
        if len(kept) < LAYERS:
            kept = sorted({*kept, *range(min(LAYERS, max(self.before, 0)))})[:LAYERS]
        self.kept = kept
        self.counts = counts if self.before > 0 else []


def special_tokens(fields):
    """Ids inside the small vocabulary, each its own, far from those that inputs draw."""
    tokens = {}
    free = VOCABULARY - 1
    for name, value in fields.items():
        if not TOKEN.search(name):
            continue
        if name in COMMON_TOKENS:
            if value is not None:
                tokens[name] = COMMON_TOKENS[name]
        elif isinstance(value, int):
            tokens[name] = free
            free -= 1
    return tokens
