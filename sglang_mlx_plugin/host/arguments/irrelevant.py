"""Arguments that cannot matter on MLX, and why."""

from __future__ import annotations

from ..rules import Irrelevant

__all__ = ["IRRELEVANT"]

_CUDA_GRAPH = Irrelevant("MLX builds its own graphs and captures no CUDA graphs", silent=True)
_CUDA_GRAPH_TUNING = Irrelevant("MLX builds its own graphs and captures no CUDA graphs")
_COMM = Irrelevant("one process runs the whole model, so nothing is reduced between GPUs")
_COMM_OFF = Irrelevant(_COMM.why, silent=True)
_KERNEL = Irrelevant("it tunes a CUDA or ROCm kernel, and MLX has its own")
_MOE = Irrelevant("experts are run by MLX in one process, without torch's expert kernels")
_IDS = Irrelevant("MLX has one device, shared by all processes of the host")


def _only_with(flag: str) -> Irrelevant:
    """For what only tunes a feature whose own switch is refused."""
    return Irrelevant(f"it only matters with {flag}, which MLX does not serve")


_ROWS: tuple[tuple[Irrelevant, str], ...] = (
    (_CUDA_GRAPH, "disable_cuda_graph disable_prefill_cuda_graph disable_decode_cuda_graph"),
    (_CUDA_GRAPH, "disable_cuda_graph_padding"),
    (
        _CUDA_GRAPH_TUNING,
        "cuda_graph_config cuda_graph_backend_decode cuda_graph_backend_prefill "
        "cuda_graph_max_bs_decode cuda_graph_max_bs_prefill cuda_graph_bs_decode "
        "cuda_graph_bs_prefill cuda_graph_prefill_max_context cuda_graph_max_seq_len_prefill "
        "cuda_graph_tc_compiler enable_profile_cuda_graph enable_cudagraph_gc debug_cuda_graph",
    ),
    (_COMM_OFF, "disable_custom_all_reduce enforce_disable_flashinfer_allreduce_fusion"),
    (
        _COMM,
        "enable_nccl_nvls enable_symm_mem enable_mscclpp enable_torch_symm_mem "
        "enable_scattered_sconv pre_warm_nccl boundary_reduction enable_quant_communications "
        "enable_flashinfer_allreduce_fusion flashinfer_allreduce_fusion_backend "
        "enable_aiter_allreduce_fusion disable_aiter_allreduce_fusion_in_prefill "
        "disable_aiter_allreduce_fusion_in_decode enable_p2p_check dcp_comm_backend "
        "dcp_replicate_q_proj cp_strategy enable_dp_attention_local_control_broadcast "
        "enable_dp_lm_head enable_tp_lm_head_all_to_all enable_attn_tp_input_scattered "
        "enable_shared_experts_attn_tp shared_experts_tp_size enable_dense_mlp_attn_tp "
        "enable_layernorm_sp disable_attn_tp_gather enable_cp_decode_attn_tp "
        "enable_cp_tp_group_sharing enable_megamoe_for_layernorm_sp moe_dense_tp_size "
        "enable_dsa_cache_layer_split pp_max_micro_batch_size pp_async_batch_depth "
        "enable_dynamic_chunking node_rank",
    ),
    (
        _KERNEL,
        "enable_lean_attention disable_flashinfer_autotune flashinfer_autotune_skip_ops "
        "triton_attention_reduce_in_fp32 triton_attention_num_kv_splits "
        "triton_attention_split_tile_size flashinfer_mla_disable_ragged "
        "enable_fused_qk_norm_rope disable_chunked_prefix_cache fp8_gemm_runner_backend "
        "fp4_gemm_runner_backend bf16_gemm_backend dsa_prefill_backend dsv4_prefill_backend "
        "dsa_decode_backend dsa_paged_mqa_logits_backend dsa_topk_backend dsv4_attn_backend "
        "dsa_triton_union enable_dsa_fused_indexer qsa_indexer_dtype c128_page_size "
        "enable_deepseek_v4_fp4_indexer prefill_kv_cache_dequant_dtype mamba_backend "
        "linear_attn_backend linear_attn_decode_backend linear_attn_prefill_backend "
        "linear_attn_verify_backend enable_tf32_matmul",
    ),
    (
        _MOE,
        "enable_fused_moe_sum_all_reduce enable_w4a4_mxfp4_megamoe deepep_v2_mode "
        "moe_runner_backend flashinfer_mxfp4_moe_precision deepep_mode fuseep_mode "
        "deepep_dispatcher_output_dtype ep_dispatch_algorithm "
        "init_expert_location eplb_algorithm eplb_rebalance_num_iterations "
        "eplb_rebalance_layers_per_chunk eplb_min_rebalancing_utilization_threshold "
        "expert_distribution_recorder_buffer_size deepep_config mooncake_ib_device "
        "ep_join_rank_offset elastic_ep_initial_size max_ep_size elastic_ep_scale_timeout "
        "disable_flashinfer_cutlass_moe_fp4_allgather disable_shared_experts_fusion "
        "enforce_shared_experts_fusion flashinfer_a2a_dispatch_type enable_waterfill "
        "paged_experts_num_resident",
    ),
    (_IDS, "base_gpu_id gpu_id_step numa_node"),
    (
        _only_with("--speculative-algorithm"),
        "speculative_draft_model_revision speculative_draft_load_format speculative_num_steps "
        "speculative_eagle_topk speculative_num_draft_tokens speculative_dflash_block_size "
        "speculative_dspark_block_size speculative_dspark_sps_table_path "
        "speculative_dspark_confidence_sts_path "
        "speculative_dspark_align_verify_tokens_to_graph_tier "
        "speculative_accept_threshold_single speculative_accept_threshold_acc "
        "speculative_use_rejection_sampling speculative_token_map speculative_attention_mode "
        "speculative_draft_attention_backend speculative_dsa_topk_backend "
        "speculative_draft_kv_cache_dtype speculative_draft_window_size "
        "speculative_draft_sink_size speculative_moe_runner_backend speculative_moe_a2a_backend "
        "speculative_enable_w4a4_mxfp4_megamoe speculative_draft_model_quantization "
        "_speculative_draft_quantization_explicitly_set enable_multi_layer_eagle "
        "speculative_adaptive speculative_adaptive_config spec_trace_dir "
        "speculative_ngram_min_bfs_breadth speculative_ngram_max_bfs_breadth "
        "speculative_ngram_match_type speculative_ngram_max_trie_depth "
        "speculative_ngram_capacity speculative_ngram_external_corpus_path "
        "speculative_ngram_external_sam_budget speculative_ngram_external_corpus_max_tokens "
        "speculative_domino_candidate_pool_size speculative_boundary_reduction "
        "speculative_use_block_verification speculative_skip_dp_mlp_sync "
        "decrypted_draft_config_file enable_draft_weights_cpu_backup "
        "enable_linear_replayssm_spec uno_lora_path",
    ),
    (
        _only_with("--disaggregation-mode"),
        "disaggregation_transfer_backend disaggregation_bootstrap_port disaggregation_ib_device "
        "disaggregation_decode_enable_radix_cache disaggregation_decode_enable_offload_kvcache "
        "disaggregation_decode_retraction_backup num_reserved_decode_tokens "
        "disaggregation_decode_extra_slots disaggregation_decode_polling_interval "
        "optimistic_prefill_attempts disaggregation_enable_kv_checksum enable_pd_role_switch "
        "disaggregation_decode_host_receive_threshold disaggregation_decode_allocation_policy "
        "decoupled_spec_bind_endpoint decoupled_spec_connect_endpoints decoupled_spec_rank",
    ),
    (
        _only_with("--encoder-only or --language-only"),
        "encoder_transfer_backend encoder_urls encoder_bootstrap_port encoder_register_urls "
        "enable_adaptive_dispatch_to_encoder enable_encoder_swa_bounded_replay",
    ),
    (_only_with("--enable-pdmux"), "pdmux_config_path sm_group_num"),
    (
        _only_with("--enable-hierarchical-cache"),
        "hicache_host_memory_mode hicache_host_memory_fraction hicache_ratio hicache_size "
        "hicache_write_policy hicache_io_backend hicache_mem_layout "
        "hicache_storage_prefetch_policy hicache_storage_backend_extra_config "
        "hicache_storage_prefetch_retry_poll_interval hicache_storage_prefetch_retry_max_attempts",
    ),
    (
        _only_with("--enable-unified-cache-external-linker"),
        "unified_cache_external_linker_backend unified_cache_external_linker_config "
        "enable_linker_mla_dedup",
    ),
    (_only_with("--enable-hisparse"), "hisparse_config"),
    (_only_with("--enable-lmcache"), "lmcache_config_file"),
    (_only_with("--enable-flexkv"), "flexkv_config_file"),
    (
        _only_with("--enable-multimodal"),
        "mm_attention_backend enable_broadcast_mm_inputs_process enable_prefix_mm_cache "
        "mm_enable_dp_encoder mm_process_config mm_processor_worker_num mm_io_worker_num "
        "allowed_media_domains media_url_max_file_size_mb mm_preprocess_cache_size_mb "
        "trust_mm_content_hashes limit_mm_data_per_request enable_mm_global_cache "
        "image_processor_backend mm_global_cache_backend disable_fast_image_processor "
        "mm_feature_transport enable_precise_embedding_interpolation",
    ),
    (
        Irrelevant("only the language model is loaded on MLX", silent=True),
        "language_model_only",
    ),
    (
        _only_with("--enable-lora"),
        "enable_lora_overlap_loading max_lora_rank lora_target_modules max_loaded_loras "
        "max_loras_per_batch lora_eviction_policy lora_backend max_lora_chunk_size "
        "experts_shared_outer_loras lora_use_virtual_experts lora_strict_loading "
        "lora_drain_wait_threshold",
    ),
    (_only_with("--enable-two-batch-overlap"), "tbo_token_distribution_threshold"),
    (
        _only_with("--cpu-offload-gb"),
        "offload_num_in_group offload_prefetch_step offload_mode ple_offload_backend "
        "ple_offload_dir",
    ),
    (
        _only_with("--kt-weight-path"),
        "kt_method kt_cpuinfer kt_threadpool_count kt_num_gpu_experts "
        "kt_max_deferred_experts_per_token",
    ),
    (_only_with("--dllm-algorithm"), "dllm_algorithm_config dllm_fdfo"),
    (
        _only_with("--remote-instance-weight-loader-start-seed-via-transfer-engine"),
        "remote_instance_weight_loader_seed_instance_ip "
        "remote_instance_weight_loader_seed_instance_service_port "
        "remote_instance_weight_loader_send_weights_group_ports "
        "remote_instance_weight_loader_backend engine_info_bootstrap_port modelexpress_config",
    ),
    (_only_with("--weight-cache-mode"), "weight_cache_socket weight_cache_timeout"),
    (
        Irrelevant("mlx-lm reads safetensors files lazily, in its own way"),
        "weight_loader_disable_mmap weight_loader_prefetch_checkpoints "
        "weight_loader_prefetch_num_threads weight_loader_drop_cache_after_load",
    ),
    (
        _only_with("--enable-prefill-delayer"),
        "prefill_delayer_max_delay_passes prefill_delayer_token_usage_low_watermark "
        "prefill_delayer_forward_passes_buckets prefill_delayer_wait_seconds_buckets "
        "prefill_delayer_queue_min_ratio prefill_delayer_max_delay_ms",
    ),
    (_only_with("--kv-canary"), "kv_canary_real_data kv_canary_sweep_interval"),
    (
        _only_with("--debug-tensor-dump-output-folder"),
        "debug_tensor_dump_layers debug_tensor_dump_input_file",
    ),
    (
        _only_with("--enable-torch-compile"),
        "enable_torch_compile_debug_mode torch_compile_max_bs",
    ),
    (
        _only_with("--enable-watermark"),
        "watermark_key watermark_key_b watermark_context_window watermark_mixing_probability "
        "watermark_max_probability watermark_default_enabled watermark_enforce_all",
    ),
    (
        _only_with("--enable-return-aux-hidden-states"),
        "aux_hidden_state_capture return_aux_hidden_state_layer_ids",
    ),
    (_only_with("--enable-return-hidden-states"), "return_hidden_states_mode"),
    (
        Irrelevant("sliding windows share the one KV memory of all layers on MLX"),
        "swa_full_tokens_ratio _swa_full_tokens_ratio_explicitly_set disable_hybrid_swa_memory "
        "swa_prefix_tails enable_decoder_swa_bounded_replay",
    ),
    (
        Irrelevant("the states of recurrent layers are MLX's arrays, as the model makes them"),
        "mamba_ssm_dtype enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds "
        "uses_mamba_radix_cache mamba_track_interval enable_int8_mamba_checkpoint "
        "int8_mamba_ckpt_size enable_linear_replayssm linear_replayssm_cache_len",
    ),
    (
        Irrelevant("sampling is always on with this plugin", silent=True),
        "mlx_enable_sampling",
    ),
    (
        Irrelevant("masks of sampled tokens are not returned on MLX"),
        "sampling_mask_max_tokens",
    ),
    (
        Irrelevant("the model's own quantisation is read from its config.json"),
        "quantization_param_path modelopt_checkpoint_restore_path "
        "modelopt_checkpoint_save_path modelopt_export_path rl_quant_profile",
    ),
)

IRRELEVANT: dict[str, Irrelevant] = {name: rule for rule, names in _ROWS for name in names.split()}
