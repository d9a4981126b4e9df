"""Arguments that do on MLX what they do elsewhere, and who sees to it."""

from __future__ import annotations

from ..rules import Honoured

__all__ = ["HONOURED"]

# What the scheduler, the tokenizer, the detokenizer and the HTTP server do by themselves.
_BY_SGLANG = """
tokenizer_path tokenizer_mode tokenizer_backend detokenizer_worker_num
skip_tokenizer_init context_length model_config_parser
max_queued_requests chunked_prefill_size prefill_decode_interval prefill_decode_interval_min_bs
max_prefill_tokens prefill_max_requests schedule_policy enable_priority_scheduling
disable_priority_preemption default_priority_value abort_on_priority_when_disabled
schedule_low_priority_values_first priority_scheduling_preemption_threshold retraction_policy
schedule_conservativeness radix_eviction_policy radix_eviction_policy_config
_radix_eviction_policy_explicitly_set disable_radix_cache disable_overlap_schedule
num_continuous_decode_steps scheduler_recv_interval enable_mixed_chunk min_free_slots_delay
nccl_port dist_timeout dist_init_addr gated_launch_port load_balance_method
watchdog_timeout soft_watchdog_timeout sleep_on_idle custom_sigquit_handler gc_threshold
host port fastapi_root_path smg_grpc_mode grpc_mode grpc_port grpc_worker_threads
grpc_response_timeout_secs sidecar sidecar_args skip_server_warmup warmups enable_http2
http2_max_concurrent_streams http2_initial_connection_window_size enable_http_worker_reuseport
ssl_keyfile ssl_certfile ssl_ca_certs ssl_keyfile_password enable_ssl_refresh api_key
admin_api_key served_model_name weight_version chat_template trust_request_chat_template
hf_chat_template_name completion_template file_storage_path enable_cache_report return_input_ids
return_output_ids reasoning_parser default_chat_template_kwargs strip_thinking_cache
enable_strict_thinking tool_call_parser tool_server sampling_defaults preferred_sampling_params
allow_auto_truncate stream_interval batch_notify_size stream_response_default_include_usage
incremental_streaming_output enable_response_store
log_level log_level_http log_requests log_requests_level log_requests_format log_requests_target
uvicorn_access_log_exclude_prefixes show_time_cost enable_metrics smg_http_sidecar_port
enable_metrics_for_all_schedulers load_snapshot_publish_interval
tokenizer_metrics_custom_labels_header tokenizer_metrics_allowed_custom_labels
extra_metric_labels bucket_time_to_first_token bucket_inter_token_latency
bucket_e2e_request_latency prompt_tokens_buckets generation_tokens_buckets
gc_warning_threshold_secs decode_log_interval enable_request_time_stats_logging kv_events_config
load_publish_endpoint enable_forward_pass_metrics forward_pass_metrics_worker_id
forward_pass_metrics_ipc_name enable_trace trace_modules otlp_traces_endpoint otlp_service_name
export_metrics_to_file export_metrics_to_file_dir stat_loggers crash_dump_folder
grammar_backend constrained_json_whitespace_pattern constrained_json_disable_any_whitespace
constrained_json_max_whitespace_cnt disable_outlines_disk_cache
enable_dynamic_batch_tokenizer dynamic_batch_tokenizer_batch_size
dynamic_batch_tokenizer_batch_timeout enable_tokenizer_batch_encode
disable_tokenizer_batch_decode asr_max_buffer_seconds asr_max_concurrent_sessions
"""

_BY_US = {
    "sglang_mlx_plugin.host.launch": "model_path revision download_dir",
    "sglang_mlx_plugin.host.runner": "dtype json_model_override_args max_total_tokens "
    "trust_remote_code",
    "sglang_mlx_plugin.host.concurrency": "max_running_requests max_mamba_cache_size",
    "sglang_mlx_plugin.host.sizing": "mamba_full_memory_ratio",
    "sglang_mlx_plugin.host.radix": "mamba_max_states_per_path",
    "sglang_mlx_plugin.host.worker": "random_seed",
    "sglang_mlx_plugin.engine.memory": "mem_fraction_static",
    # Each replica is a process with its own engine.
    "sglang_mlx_plugin.host.arguments": "dp_size",
}

HONOURED: dict[str, Honoured] = {
    **{name: Honoured() for name in _BY_SGLANG.split()},
    **{name: Honoured(module) for module, names in _BY_US.items() for name in names.split()},
}
