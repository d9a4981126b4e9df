"""Arguments that ask for what MLX cannot do, and what to do instead."""

from __future__ import annotations

from ..rules import Refused, any_of, at_most

__all__ = ["REFUSED"]

_ONE_MACHINE = "a model runs in one process on MLX"
_TORCH_KERNELS = Refused(
    "chooses an attention kernel of torch's, and MLX has its own",
    accepts=any_of("torch_native"),
)
_SPECULATIVE = Refused("speculative decoding is not available on MLX yet")
_NO_LORA = Refused(
    "LoRA adapters are not available on MLX yet",
    "fuse the adapter into the model (python -m mlx_lm fuse)",
)
_NO_TORCH_WEIGHTS = Refused(
    "needs a torch checkpoint quantiser",
    "serve a model that mlx-lm quantised (python -m mlx_lm convert -q)",
)
_NO_OFFLOAD = Refused(
    "moves weights between a GPU's memory and the host's, and MLX's memory is the host's",
    "choose a smaller or quantised model",
)
_NO_SECOND_CACHE = Refused(
    "keeps KV outside the device in a second cache, which does not work on MLX yet",
    "the radix cache on the device is on by default",
)
_NO_REMOTE_WEIGHTS = Refused(
    "loads weights through torch from elsewhere than a folder",
    "give a local folder with --model-path",
)
_NO_HIDDEN = Refused("hidden states and router decisions are not returned on MLX yet")

REFUSED: dict[str, Refused] = {
    "mamba_radix_cache_strategy": Refused(
        "keeps snapshots of recurrent states in buffers of a CUDA pool, and MLX needs none",
        accepts=any_of("auto", "no_buffer"),
    ),
    "tokenizer_worker_num": Refused(
        "starts workers in which SGLang loads no plugin, so nothing would check their requests",
        "use --tokenizer-worker-num 1",
        at_most(1),
    ),
    "tp_size": Refused(
        "tensor parallelism is not available on MLX yet: " + _ONE_MACHINE,
        "use --tp-size 1, and --dp-size for several replicas",
        at_most(1),
    ),
    "pp_size": Refused(
        "pipeline parallelism is not available on MLX yet: " + _ONE_MACHINE,
        "use --pp-size 1, and --dp-size for several replicas",
        at_most(1),
    ),
    "ep_size": Refused(
        "expert parallelism is not available on MLX: " + _ONE_MACHINE, "use 1", at_most(1)
    ),
    "dcp_size": Refused(
        "context parallelism is not available on MLX: " + _ONE_MACHINE, "use 1", at_most(1)
    ),
    "attn_cp_size": Refused(
        "context parallelism is not available on MLX: " + _ONE_MACHINE, "use 1", at_most(1)
    ),
    "attn_dp_size": Refused(
        "data-parallel attention needs tensor parallelism, which is not available on MLX yet",
        "use --dp-size for several replicas",
        at_most(1),
    ),
    "moe_dp_size": Refused("needs tensor parallelism: " + _ONE_MACHINE, "use 1", at_most(1)),
    "dwdp_size": Refused("needs tensor parallelism: " + _ONE_MACHINE, "use 1", at_most(1)),
    "nnodes": Refused(
        "serving over several machines is not available on MLX yet",
        "start a server on each machine",
        at_most(1),
    ),
    "enable_dp_attention": Refused(
        "data-parallel attention needs tensor parallelism, which is not available on MLX yet",
        "use --dp-size for several replicas",
    ),
    "enable_prefill_cp": Refused("context parallelism is not available on MLX"),
    "enable_kv_cache_sharding": Refused("one process holds all of the KV cache on MLX"),
    "use_ray": Refused("Ray actors are not tried with MLX"),
    "device": Refused(
        "is torch's device, which only keeps SGLang's books here",
        "leave it out (SGLANG_MLX_DEVICE=metal|cuda|cpu chooses MLX's device)",
        any_of("cpu"),
    ),
    "page_size": Refused(
        "the KV store on MLX is addressed token by token", "use --page-size 1", any_of(1)
    ),
    "kv_cache_dtype": Refused(
        "needs CUDA kernels for 8-bit and 4-bit keys and values",
        "use --kv-cache-dtype auto or bfloat16, or a vendor's KV store "
        "(examples/sglang-mlx-int8-kv)",
        any_of("bf16", "bfloat16"),
    ),
    "load_format": Refused(
        "MLX loads safetensors folders", "use --load-format auto", any_of("safetensors")
    ),
    "model_impl": Refused(
        "chooses a torch implementation of the model",
        "use --model-impl auto",
        any_of("sglang", "mlx"),
    ),
    "model_loader_extra_config": Refused(
        "configures a torch loader, and mlx-lm loads the model", accepts=any_of("{}")
    ),
    "custom_weight_loader": _NO_REMOTE_WEIGHTS,
    "startup_weight_load_mode": Refused("weights load before the KV cache is sized, on MLX"),
    "remote_instance_weight_loader_start_seed_via_transfer_engine": _NO_REMOTE_WEIGHTS,
    "weight_cache_mode": _NO_REMOTE_WEIGHTS,
    "checkpoint_engine_wait_weights_before_ready": _NO_REMOTE_WEIGHTS,
    "delete_ckpt_after_loading": Refused("mlx-lm reads weights lazily from their files"),
    "decrypted_config_file": Refused("encrypted checkpoints are a torch loader's"),
    "model_checksum": Refused(
        "is checked by torch's loader only", "check the folder before starting (hf cache verify)"
    ),
    "quantization": Refused(
        "quantises torch weights, and MLX models bring their quantisation along",
        "serve a model that mlx-lm quantised (python -m mlx_lm convert -q)",
        any_of("mlx", "auto"),
    ),
    "modelopt_quant": _NO_TORCH_WEIGHTS,
    "quantize_and_serve": _NO_TORCH_WEIGHTS,
    "enable_fp32_lm_head": Refused(
        "logits have the dtype that the model computes in, on MLX", "use --dtype float32"
    ),
    "attention_backend": _TORCH_KERNELS,
    "decode_attention_backend": _TORCH_KERNELS,
    "prefill_attention_backend": _TORCH_KERNELS,
    "sampling_backend": Refused(
        "chooses a sampling kernel of torch's, and MLX samples itself",
        accepts=any_of("pytorch"),
    ),
    "radix_cache_backend": Refused(
        "a radix cache of another kind would not know MLX's KV store",
        accepts=any_of("default"),
    ),
    "is_embedding": Refused("embedding models are not served on MLX yet"),
    "enable_multimodal": Refused(
        "images, audio and video are not served on MLX yet",
        "leave it out: the language model of a multimodal model is served as text",
    ),
    "speculative_algorithm": _SPECULATIVE,
    "speculative_draft_model_path": _SPECULATIVE,
    "decoupled_spec_role": _SPECULATIVE,
    "disaggregation_mode": Refused(
        "splitting prefill and decode over servers is not available on MLX",
        accepts=any_of("null"),
    ),
    "encoder_only": Refused("splitting off an encoder is not available on MLX"),
    "language_only": Refused("splitting off an encoder is not available on MLX"),
    "enable_pdmux": Refused("multiplexes prefill and decode on CUDA streams"),
    "enable_lora": _NO_LORA,
    "lora_paths": _NO_LORA,
    "enable_hierarchical_cache": _NO_SECOND_CACHE,
    "hicache_storage_backend": _NO_SECOND_CACHE,
    "enable_unified_cache_external_linker": _NO_SECOND_CACHE,
    "enable_hisparse": _NO_SECOND_CACHE,
    "enable_lmcache": _NO_SECOND_CACHE,
    "enable_flexkv": _NO_SECOND_CACHE,
    "enable_page_major_kv_layout": Refused("lays out torch's KV pool, and MLX has its own"),
    "enable_unified_memory": Refused("lays out torch's KV pool, and MLX has its own"),
    "prefill_only_disable_kv_cache": Refused("is for embedding models, not served on MLX yet"),
    "enable_session_radix_cache": Refused("sessions are not tried on MLX yet"),
    "enable_streaming_session": Refused("sessions are not tried on MLX yet"),
    "cpu_offload_gb": _NO_OFFLOAD,
    "offload_group_size": Refused(_NO_OFFLOAD.why, _NO_OFFLOAD.instead, at_most(0)),
    "ple_offload_embedding": _NO_OFFLOAD,
    "enable_paged_experts": _NO_OFFLOAD,
    "kt_weight_path": Refused("KTransformers runs experts of a torch model"),
    "dllm_algorithm": Refused("diffusion language models are not served on MLX"),
    "enable_two_batch_overlap": Refused("overlaps kernels with communication between GPUs"),
    "enable_single_batch_overlap": Refused("overlaps kernels with communication between GPUs"),
    "enable_torch_compile": Refused("compiles a torch model, and MLX compiles its own graphs"),
    "enable_deterministic_inference": Refused(
        "chooses torch kernels that do not depend on the batch",
        "give requests a sampling_seed: on MLX a draw depends on seed and position only",
    ),
    "rl_on_policy_target": Refused("chooses torch kernels that match a torch trainer"),
    "moe_a2a_backend": Refused(
        "moves tokens between GPUs, and experts run in one process on MLX",
        accepts=any_of("none"),
    ),
    "enable_eplb": Refused("balances experts between GPUs"),
    "ep_num_redundant_experts": Refused("balances experts between GPUs", accepts=at_most(0)),
    "elastic_ep_backend": Refused("balances experts between GPUs"),
    "enable_elastic_expert_backup": Refused("balances experts between GPUs"),
    "ep_join_mode": Refused("balances experts between GPUs"),
    "expert_distribution_recorder_mode": Refused("records torch's expert layers"),
    "expert_balancedness_report_mode": Refused(
        "records torch's expert layers", accepts=any_of("off")
    ),
    "enable_custom_logit_processor": Refused("custom logit processors do not run on MLX yet"),
    "enable_return_hidden_states": _NO_HIDDEN,
    "enable_return_aux_hidden_states": _NO_HIDDEN,
    "enable_return_routed_experts": _NO_HIDDEN,
    "enable_return_indexer_topk": _NO_HIDDEN,
    "enable_watermark": Refused("watermarks are put in by torch's sampler"),
    "watermark_config": Refused("watermarks are put in by torch's sampler"),
    "enable_mis": Refused("multi-item scoring needs a CUDA attention kernel"),
    "enable_memory_saver": Refused("releases torch's memory, and MLX holds the model"),
    "enable_weights_cpu_backup": Refused("copies torch's weights, and MLX holds the model"),
    "enable_prefill_delayer": Refused(
        "is for data-parallel attention, which is not available on MLX yet"
    ),
    "kv_canary": Refused("watches torch's KV pool, and MLX has its own"),
    "forward_hooks": Refused("attaches hooks to torch modules"),
    "msprobe_dump_config": Refused("dumps tensors of a torch model"),
    "debug_tensor_dump_output_folder": Refused("dumps tensors of a torch model"),
    "enable_layerwise_nvtx_marker": Refused("marks CUDA kernels of a torch model"),
    "enable_mfu_metrics": Refused("estimates the use of a GPU that SGLang knows"),
    "enable_amd_monokernel": Refused("is a kernel for AMD GPUs"),
    "enable_nvidia_megakernel": Refused("is a kernel for NVIDIA GPUs"),
}
