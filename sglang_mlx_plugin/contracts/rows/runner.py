"""Rows of the runner, and of what it builds."""

from ..contract import Contract, group

_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
_OURS = "sglang_mlx_plugin.host.runner.MlxModelRunner"


def _overrides(*names: str, why: str, breaks: str, gone_when: str = "") -> tuple[Contract, ...]:
    return tuple(
        Contract(
            target=f"{_RUNNER}.{name}",
            use="override",
            ours=f"{_OURS}.{name}",
            why=why,
            breaks=breaks,
            gone_when=gone_when,
        )
        for name in names
    )


ROWS: tuple[Contract, ...] = (
    Contract(
        target=_RUNNER,
        use="construct",
        why="the base's constructor keeps SGLang's bookkeeping, then calls initialize",
        breaks="the scheduler dies while it builds the runner",
    ),
    *_overrides(
        "initialize",
        why="loads the MLX model and sizes the pools; nothing of torch is set up",
        breaks="a torch model is loaded",
    ),
    *_overrides(
        "load_model",
        why="loads the model through the hook sglang_mlx_load_model",
        breaks="a torch model is loaded",
    ),
    *_overrides(
        "alloc_memory_pool",
        why="MLX owns the KV memory; the base would build CUDA pools",
        breaks="the server dies at start-up in the base's pool allocation, as 0.5.14 did",
        gone_when="SGLang asks the platform whether it allocates KV memory at all",
    ),
    *_overrides(
        "init_attention_backends",
        "init_cuda_graphs",
        "prewarm_sampling",
        "check_quantized_moe_compatibility",
        why="set-up of torch kernels that the engine replaces",
        breaks="the scheduler dies at start-up, for want of CUDA",
    ),
    *_overrides(
        "forward",
        why="refuses a torch forward pass by name",
        breaks="a feature that needs torch ends in an obscure error",
    ),
    *_overrides(
        "preloaded_weights_bytes",
        "logical_max_total_num_tokens",
        why="computed by the base from objects that the base's allocation makes",
        breaks="the scheduler dies while it sizes the pools",
    ),
    *_overrides(
        "canary_manager",
        "prefill_aware_swa",
        "eplb_manager",
        "decode_cuda_graph_runner",
        "prefill_cuda_graph_runner",
        "graph_shared_output",
        "memory_saver_adapter",
        why="set by the base on paths that never run here, and read by the scheduler",
        breaks="the scheduler dies with an AttributeError",
    ),
    *group(
        _RUNNER,
        "write",
        "attn_backend",
        "decode_cuda_graph_capture_bs",
        "decode_cuda_graph_captured",
        "dtype",
        "is_hybrid_swa",
        "kv_cache_dtype",
        "layer_info",
        "model",
        "sampler",
        "sliding_window_size",
        "weight_load_mem_usage",
        "weight_load_time",
        why="set by the base while it loads a torch model, and read by the scheduler",
        breaks="the scheduler dies with an AttributeError, or reports a wrong number",
    ),
    *group(
        _RUNNER,
        "write",
        "max_total_num_tokens",
        "req_to_token_pool",
        "token_to_kv_pool",
        "token_to_kv_pool_allocator",
        why="the pools and their sizes; the scheduler and the radix tree are built from them",
        breaks="the scheduler dies while it builds the radix tree",
    ),
    Contract(
        target=f"{_RUNNER}.max_running_requests",
        use="write",
        why="the concurrency cap of the hook sglang_mlx_resolve_max_running_requests",
        breaks="the cap is ignored, or the scheduler dies",
    ),
    *group(
        _RUNNER,
        "read",
        "mem_fraction_static",
        "model_config",
        "sampling_prewarm_result",
        why="what the base's constructor keeps for us",
        breaks="the scheduler dies while it builds the runner",
    ),
    Contract(
        target=f"{_RUNNER}.init_ngram_embedding_manager",
        use="call",
        why="sets an attribute that the scheduler reads",
        breaks="the scheduler dies with an AttributeError",
    ),
    Contract(
        target="sglang.srt.model_executor.model_runner.SamplingPrewarmResult",
        use="import",
        why="what prewarm_sampling returns",
        breaks="the runner cannot be imported",
    ),
    Contract(
        target="sglang.srt.model_executor.model_runner_components.layer_setup.ModelLayerInfo",
        use="construct",
        why="the layers that this rank holds, for the scheduler's bookkeeping",
        breaks="the scheduler dies while it builds the runner",
    ),
    Contract(
        target="sglang.srt.model_executor.pool_configurator.MemoryPoolConfig",
        use="import",
        why="annotation of alloc_memory_pool",
        breaks="nothing at run time; the checker loses sight of a type",
    ),
    *group(
        "sglang.srt.configs.model_config.ModelConfig",
        "read",
        "context_len",
        "model_path",
        why="which folder to load and how long a sequence may be",
        breaks="the scheduler dies while it loads the model",
    ),
    Contract(
        target="sglang.srt.utils.torch_memory_saver_adapter.TorchMemorySaverAdapter.create",
        use="call",
        why="SGLang asks the runner for one; ours is switched off",
        breaks="the scheduler dies while it builds the runner",
    ),
)
