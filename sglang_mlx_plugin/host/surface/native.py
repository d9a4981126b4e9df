"""Fields of SGLang's own requests: `SamplingParams`, `GenerateReqInput`, `EmbeddingReqInput`."""

from __future__ import annotations

from ..rules import Honoured, Irrelevant, Refused, Rule

__all__ = ["EMBEDDING", "GENERATE", "MEDIA_OPTIONS", "ROUTING", "SAMPLING", "rows"]

_REQUESTS = "sglang_mlx_plugin.host.requests"

_NO_MEDIA = Refused(
    "images, audio and video are not served on MLX yet",
    "send text, which the language model of a multimodal model answers",
)
_NO_LORA = Refused(
    "LoRA adapters are not available on MLX yet",
    "fuse the adapter into the model (python -m mlx_lm fuse) and serve that",
)
_NO_EMBEDDINGS = Refused(
    "embeddings, classes and rewards are not served on MLX yet",
    "ask for text or logprobs",
)
_NO_VECTORS = Refused(
    "a prompt is token ids on MLX, not vectors", "send it as text or as input_ids"
)
_NO_CAPTURE = Refused(
    "what a model computes inside is not returned on MLX yet", "ask for the tokens' logprobs"
)
_NO_MASK = Refused(
    "what a sampler's filters left is not returned on MLX yet", "ask for top logprobs"
)
_NO_PROCESSOR = Refused(
    "custom logit processors do not run on MLX yet", "use logit_bias, a grammar or min_p"
)
_NO_WATERMARK = Refused("watermarks are put in by torch's sampler, and MLX has its own")
_INTERNAL = Irrelevant("SGLang fills it itself")


def rows(names: str, rule: Rule) -> dict[str, Rule]:
    """The fields `names`, a text of words, with one rule."""
    return dict.fromkeys(names.split(), rule)


# Put into every request by a router in front of several servers. It cannot change an answer
# where one server both prefills and decodes, and a refusal would break the router.
ROUTING = rows(
    "bootstrap_host bootstrap_port bootstrap_room bootstrap_pair_key decode_tp_size "
    "disagg_prefill_dp_rank",
    Irrelevant("it routes between prefill and decode servers, which are one server here"),
)
MEDIA_OPTIONS = rows(
    "modalities mm_hashes mm_content_hashes use_audio_in_video video_config max_dynamic_patch "
    "min_dynamic_patch image_max_dynamic_patch video_max_dynamic_patch images_config "
    "mm_processor_kwargs need_wait_for_mm_inputs num_items_assigned encoder_urls",
    Irrelevant("it configures images, audio or video, which are refused themselves"),
)

SAMPLING: dict[str, Rule] = {
    **rows(
        "temperature top_p top_k min_p frequency_penalty presence_penalty repetition_penalty "
        "min_new_tokens logit_bias sampling_seed",
        Honoured(_REQUESTS),
    ),
    **rows(
        "max_new_tokens stop stop_token_ids stop_regex no_stop_trim ignore_eos n json_schema "
        "regex ebnf structural_tag ebnf_full_assistant skip_special_tokens "
        "spaces_between_special_tokens stream_interval custom_params",
        Honoured(),
    ),
    "beam_width": Refused(
        "beam search is not available on MLX yet", "sample several answers with n"
    ),
    "watermark": _NO_WATERMARK,
    **rows(
        "stop_strs stop_regex_strs stop_str_max_len stop_regex_max_len is_normalized", _INTERNAL
    ),
}

GENERATE: dict[str, Rule] = {
    **rows(
        "rid session_id text input_ids sampling_params stream log_metrics no_logs custom_labels "
        "external_trace_header conversation_id routing_key routed_dp_rank data_parallel_rank "
        "priority extra_key cache_salt background require_reasoning max_thinking_tokens "
        "return_prompt_token_ids return_text_in_logprobs return_flat_raw_top_logprobs "
        "return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 session_params",
        Honoured(),
    ),
    **rows(
        "return_logprob logprob_start_len top_logprobs_num token_ids_logprob",
        Honoured(_REQUESTS),
    ),
    **rows("input_embeds positional_embed_overrides", _NO_VECTORS),
    **rows("image_data video_data audio_data", _NO_MEDIA),
    **rows("return_hidden_states return_routed_experts return_indexer_topk", _NO_CAPTURE),
    **rows("return_sampling_mask sampling_logprobs_mode", _NO_MASK),
    "routed_experts_start_len": Irrelevant("it goes with return_routed_experts"),
    "return_entropy": Refused("SGLang itself computes no entropy", "ask for top logprobs"),
    "custom_logit_processor": _NO_PROCESSOR,
    "watermark": _NO_WATERMARK,
    **rows("lora_path lora_id", _NO_LORA),
    "token_indices_to_pool": Refused("readouts inside a prompt are not available on MLX yet"),
    "multi_item_delimiter_indices": Refused("multi-item scoring needs a CUDA attention kernel"),
    "kv_hints": Irrelevant("it is read by caches outside the device, and MLX has none"),
    "return_bytes": Irrelevant("it is for models that make images"),
    **rows("http_worker_ipc received_time", _INTERNAL),
    **ROUTING,
    **MEDIA_OPTIONS,
}

# Refused as a whole, whatever its fields say.
EMBEDDING: dict[str, Rule] = rows(
    "rid text input_ids input_embeds image_data video_data audio_data embed_override_token_id "
    "embed_overrides sampling_params log_metrics modalities is_cross_encoder_request lora_path "
    "lora_id positional_embed_overrides routing_key http_worker_ipc background priority "
    "dimensions return_pooled_hidden_states return_prompt_token_ids external_trace_header "
    "received_time multi_item_delimiter_indices token_indices_to_pool decision_layout",
    _NO_EMBEDDINGS,
)
