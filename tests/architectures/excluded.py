"""Which model types of transformers are not compared, and why; and which are compared in another way."""

from __future__ import annotations

TRANSFORMERS = "5.24.0"  # the release whose model types these are


def words(text):
    return text.split()


# {reason: model types}
EXCLUDED = {
    "inputs or sizes of a kind of their own": """
        align bark blt blt_local_decoder blt_local_encoder chmv2 clap clvp deepseek_ocr2_encoder
        deepseek_ocr2_vision deimv2 depth_anything dia_decoder dory dots3_note_audio_encoder edgetam_video
        efficientnet eomt eomt_dinov3 fastspeech2_conformer_hifigan fastspeech2_conformer_with_hifigan
        florence_vision fun_asr_nano_encoder gemma4_audio glm_image_vqmodel granite_speech5_ctc
        granite_speech5_encoder hunyuan_vl hunyuan_vl_text inkling2_vision inkling_audio inkling_vision
        janus_vqgan jev kosmos_2_5_vision_model levit llama4 lw_detr mask2former mobilevitv2 molmo2_adapter
        moss_transcribe_diarize_audio muse_glimmer_assistant nemotron3_5_transcribe_asr_audio
        nemotron3_5_transcribe_word_timestamp nemotron3_diarization_audio neucodec oneformer
        phi4_multimodal_audio pi0 pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 pp_ocrv5_mobile_det
        pp_ocrv5_mobile_rec pp_ocrv5_server_rec pp_ocrv6_small_det pp_ocrv6_small_rec pp_ocrv6_tiny_rec
        prompt_depth_anything qwen2_5_omni qwen2_5_omni_bigvgan qwen2_5_omni_dit qwen2_5_omni_thinker
        qwen2_5_omni_token2wav qwen2_audio_encoder qwen3_asr_encoder qwen3_omni_moe_thinker rag rt_detr
        rt_detr_v2 sam sam2 sam2_hiera_det_model sam2_video sam2_vision_model sam3 sam3_detr_encoder
        sam3_lite_text sam3_lite_text_detr_decoder sam3_lite_text_detr_encoder sam3_lite_text_mask_decoder
        sam3_mask_decoder sam3_tracker sam3_tracker_video sam3_video sam_hq seggpt slanet speecht5_hifigan
        superglue timesfm tipsv2_dpt tvp unlimited_ocr unlimited_ocr_text unlimited_ocr_vision uvdoc
        vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_decoder vibevoice_acoustic_tokenizer_encoder
        voxtral_encoder voxtral_realtime voxtral_realtime_text xclip xclip_vision_model xcodec2 xlstm zoedepth
    """,
    "neither attention nor masks go through the interface": """
        align_vision_model bit blip_vision_model bridgetower_vision_model clap_audio_model convnext convnextv2
        cpmant dac deberta deberta-v2 dinov3_convnext encodec falcon_mamba fastspeech2_conformer flaubert
        flava_image_codebook flava_image_model fnet focalnet fsmt funnel gemma3n_audio glpn got_ocr2_vision
        granite_speech_encoder granite_speech_plus_encoder groupvit_vision_model hgnet_v2 hiera lxmert mamba
        mgp-str mobilenet_v1 mobilenet_v2 mobilevit mra muse_spark_audio openai-gpt patchtsmixer poolformer
        pp_formulanet_vision pp_lcnet pp_lcnet_v3 pp_lcnet_v4 prophetnet pvt pvt_v2 reformer regnet resnet
        rt_detr_resnet rwkv sew-d slanext slanext_vision superpoint swiftformer textnet timesformer univnet
        uvdoc_backbone vitdet wavlm xlm xlnet yoso
    """,
    "sizes that have rules of their own": """
        apertus1p5 csm cvt d_fine dbrx depth_pro donut-swin efficientloftr esmfold2 fun_asr_nano
        gemma4_assistant gemma4_unified_assistant gradium_phonon_tts kyutai_speech_to_text mamba2 maskformer
        maskformer-swin mimi mimi_decoder molmo2 moonshine_streaming mpt musicgen musicgen_melody nemo_speechlm
        nemotron3_5_transcribe_audio nemotron3_diarization pocket_tts pocket_tts_audio_tokenizer
        pocket_tts_audio_tokenizer_decoder pp_ocrv5_server_det pp_ocrv6_medium_det qwen3_omni_moe
        qwen3_omni_moe_talker_text qwen4_exp qwen4_exp_text swin2sr swinv2 t5gemma2_decoder t5gemma2_encoder
        t5gemma2_text upernet vitmatte wavtokenizer wavtokenizer_encoder
    """,
    "no model class takes the configuration of such a part alone": """
        apertus1p5_vision_tokenizer blip_text_model chameleon_vqgan edgetam_mask_decoder edgetam_prompt_encoder
        edgetam_video_mask_decoder edgetam_video_prompt_encoder emu3_vqgan gemma4_unified_audio
        gemma4_unified_vision idefics_perciever idefics_vision sam2_mask_decoder sam2_prompt_encoder
        sam2_video_mask_decoder sam2_video_prompt_encoder sam3_geometry_encoder sam3_lite_text_geometry_encoder
        sam3_tracker_mask_decoder sam3_tracker_prompt_encoder sam3_tracker_video_mask_decoder
        sam3_tracker_video_prompt_encoder sam_hq_mask_decoder sam_hq_prompt_encoder sam_mask_decoder
        sam_prompt_encoder sapiens2_head t5_gemma_module vibevoice_diffusion
    """,
    "needs timm": """
        conditional_detr dab-detr deformable_detr detr edgetam edgetam_vision_model fast_vlm gemma3n
        gemma3n_vision omdet-turbo pe_audio_video pe_audio_video_encoder pe_video pe_video_encoder perception_lm
        table-transformer timm_backbone timm_wrapper
    """,
    "attention classes come from a table by name: another name is a KeyError": """
        data2vec-vision deepseek_ocr2 deepseek_ocr2_sam_vision_model deepseek_vl_hybrid falcon git gpt_neo
        sam_hq_vision_model sam_vision_model unlimited_ocr_sam_vision_model
    """,
    "a configuration without a model": """
        layoutxlm nougat pp_chart2table_vision
    """,
    "eager attention gives NaN at these sizes": """
        nemotron3_5_asr nemotron_asr_streaming nemotron_asr_streaming_encoder
    """,
    "needs natten": """
        dinat
    """,
    "needs torchaudio": """
        higgs_audio_v2_tokenizer
    """,
    "needs detectron2": """
        layoutlmv2
    """,
}

# Their attention is never replaced, but their masks are made by a registered function.
OWN_ATTENTION = words("""
    autoformer big_bird blip bloom bros canine clvp_decoder clvp_encoder convbert flava
    flava_multimodal_model flava_text_model gpt_neox_japanese groupvit groupvit_text_model ibert imagegpt
    led lilt longformer luke megatron-bert mpnet mvp nystromformer perceiver rembert roformer
    sam3_lite_text_text_model speecht5 squeezebert tapas trocr vilt visual_bert vits xglm
""")

# Models whose results hardly change when attention gives all keys the same weight.
ATTENTION_MATTERS_LITTLE = words("""
    segformer xcodec
""")

# Checks that say nothing about a model.
PADDING_AMONG_RESULTS = (
    "rows of padding are among the results: they see no key, where eager gives the mean of all values"
)
NOT_COMPARABLE = {
    ("videoprism", "left"): PADDING_AMONG_RESULTS,
    ("videoprism_text_model", "left"): PADDING_AMONG_RESULTS,
}

# Of each family one, for checks that take longer.
REPRESENTATIVES = words("""
    afmoe aria bamba bart bitnet blenderbot cohere2 deepseek_v3 deepseek_v4 doge exaone4 falcon_h1 gemma
    gemma2 gemma3 gemma3_text gemma4_text glm4 gpt2 gpt_neox gpt_oss granite granitemoe idefics3 internvl
    jamba kimi_linear lfm2 llama llama4_text llava m2m_100 mbart minimax mistral mixtral modernbert-decoder
    mllama olmo2 olmoe paligemma phi3 phimoe qwen2 qwen2_5_vl qwen2_moe qwen3 qwen3_next qwen3_vl smollm3
    speech_to_text starcoder2 t5 t5gemma whisper zamba2
""")


def names_in(groups):
    """The model types of all groups."""
    return {name for names in groups.values() for name in names.split()}
