"""Fields of the OpenAI requests: SGLang's request classes, and what OpenAI's API has beyond them.

SGLang's classes drop a field that they do not have without a word. Here such a field is in
`BEYOND`, with what becomes of it, or it is a mistake that the client is told of.
"""

from __future__ import annotations

from ..rules import Honoured, Irrelevant, Refused, Rule, any_of
from .native import GENERATE, MEDIA_OPTIONS, ROUTING, SAMPLING, rows

__all__ = ["BEYOND", "OPENAI"]

_EMBEDDINGS = Refused(
    "embeddings, classes, scores and rankings are not served on MLX yet",
    "ask for text or logprobs",
)
_TAG = Irrelevant("it is a tag for the caller's own books")
_CACHE = Irrelevant("prefixes are found in the radix cache by their tokens")


def _as_native(names: str) -> dict[str, Rule]:
    """Fields that become the field of the same name of SGLang's own request."""
    return {name: {**GENERATE, **SAMPLING}[name] for name in names.split()}


_SHARED: dict[str, Rule] = {
    **rows(
        "model stream stream_options seed stop temperature top_p n response_format max_tokens "
        "min_tokens logprobs return_cached_tokens_details return_token_ids",
        Honoured(),
    ),
    **_as_native(
        "frequency_penalty presence_penalty repetition_penalty logit_bias top_k min_p regex ebnf "
        "stop_token_ids stop_regex no_stop_trim ignore_eos skip_special_tokens custom_params rid "
        "session_id session_params extra_key cache_salt priority data_parallel_rank "
        "routed_dp_rank custom_logit_processor watermark lora_path return_hidden_states "
        "return_routed_experts routed_experts_start_len images_config mm_processor_kwargs"
    ),
    "user": _TAG,
    "return_spec_tokens_details": Irrelevant("speculative decoding is refused at start-up"),
    **{
        name: ROUTING[name]
        for name in ("bootstrap_host", "bootstrap_port", "bootstrap_room", "disagg_prefill_dp_rank")
    },
}

_CHAT: dict[str, Rule] = {
    **_SHARED,
    **rows(
        "messages max_completion_tokens top_logprobs tools tool_choice parallel_tool_calls "
        "reasoning reasoning_effort thinking chat_template_kwargs continue_final_message "
        "separate_reasoning stream_reasoning task return_meta_info return_input_ids_in_sglext "
        "return_output_ids_in_sglext",
        Honoured(),
    ),
    **_as_native(
        "input_ids return_prompt_token_ids return_flat_raw_output_top_logprobs "
        "return_flat_raw_top_logprobs_b64 return_sampling_mask sampling_logprobs_mode"
    ),
    **{
        name: MEDIA_OPTIONS[name]
        for name in ("max_dynamic_patch", "min_dynamic_patch", "use_audio_in_video", "video_config")
    },
}

_COMPLETION: dict[str, Rule] = {
    **_SHARED,
    **rows("prompt echo json_schema", Honoured()),
    **_as_native("custom_labels"),
    "best_of": Refused(
        "SGLang ranks no answers against each other", "sample several with n", any_of(1)
    ),
    "suffix": Refused(
        "a template puts a suffix into a prompt, and no model served on MLX brings one",
        "write the model's own fill-in-the-middle tokens into the prompt",
        any_of(""),
    ),
}

# Those of `_SHARED` that it has too.
_ALSO_IN_RESPONSES = (
    "bootstrap_host bootstrap_port bootstrap_room cache_salt data_parallel_rank "
    "disagg_prefill_dp_rank extra_key frequency_penalty min_p model presence_penalty priority "
    "repetition_penalty routed_dp_rank session_id stop stream temperature top_k top_p user"
)

_RESPONSES: dict[str, Rule] = {
    **{name: _SHARED[name] for name in _ALSO_IN_RESPONSES.split()},
    **rows(
        "input instructions max_output_tokens chat_template_kwargs reasoning text tool_choice "
        "tools parallel_tool_calls top_logprobs include previous_response_id background store "
        "request_id max_tool_calls",
        Honoured(),
    ),
    "metadata": _TAG,
    "service_tier": Irrelevant("one server has one tier"),
    "truncation": Refused(
        "a prompt over the context is refused whole", "shorten it", any_of("disabled")
    ),
}

OPENAI: dict[str, dict[str, Rule]] = {
    "ChatCompletionRequest": _CHAT,
    "CompletionRequest": _COMPLETION,
    "ResponsesRequest": _RESPONSES,
    "EmbeddingRequest": rows(
        "model input encoding_format dimensions user rid priority lora_path "
        "embed_override_token_id embed_overrides",
        _EMBEDDINGS,
    ),
    "ClassifyRequest": rows("model input user rid priority", _EMBEDDINGS),
    "ScoringRequest": rows(
        "model query items label_token_ids apply_softmax item_first temperature "
        "embed_override_token_id item_embed_overrides query_embed_overrides "
        "return_pooled_hidden_states return_token_logprobs score_extraction_token",
        _EMBEDDINGS,
    ),
    "V1RerankReqInput": rows("query documents instruct top_n return_documents", _EMBEDDINGS),
    "TokenizeRequest": rows(
        "model prompt messages add_special_tokens add_generation_prompt chat_template_kwargs "
        "continue_final_message reasoning_effort tool_choice tools",
        Honoured(),
    ),
    "DetokenizeRequest": rows("model tokens skip_special_tokens", Honoured()),
}

# Fields of OpenAI's own API that SGLang's classes do not have, for all of its routes.
BEYOND: dict[str, Rule] = {
    **rows("metadata safety_identifier", _TAG),
    **rows("prompt_cache_key prompt_cache_retention", _CACHE),
    "service_tier": Irrelevant("one server has one tier"),
    "prediction": Irrelevant("it may only make an answer come sooner"),
    "store": Refused("answers are not kept", "leave it out, or use /v1/responses"),
    "verbosity": Refused("no open model has such a setting", "say it in the prompt"),
    "audio": Refused("answers are text on MLX", "leave it out"),
    "modalities": Refused(
        "answers are text on MLX", "leave it out", lambda value: value in (["text"], "text")
    ),
    "web_search_options": Refused("the server searches nothing", "give a tool for it"),
    **rows(
        "functions function_call",
        Refused("OpenAI has replaced it, and SGLang never had it", "use tools and tool_choice"),
    ),
}
