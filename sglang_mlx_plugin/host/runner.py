"""SGLang's `ModelRunner`, with MLX where torch was.

SGLang's scheduler reads pools, sizes and flags off the runner; those are answered here. The
model, its weights and its KV memory are the engine's.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.model_executor.model_runner import ModelRunner, SamplingPrewarmResult
from sglang.srt.model_executor.model_runner_components.layer_setup import ModelLayerInfo
from sglang.srt.runtime_context import get_memory, get_model, get_parallel, get_schedule
from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter

from sglang_mlx_plugin.engine import assemble
from sglang_mlx_plugin.engine.aux_store import OVERLAPPED_VERSIONS
from sglang_mlx_plugin.engine.device import lend_blas, memory_bytes, use_device
from sglang_mlx_plugin.hooks import get_hooks
from sglang_mlx_plugin.hooks.types import ConcurrencyLimits, LoadRequest, RequestPoolSpec
from sglang_mlx_plugin.host import hybrid
from sglang_mlx_plugin.host.pools import SlotNumbers
from sglang_mlx_plugin.host.sizing import Costs, size_pools

if TYPE_CHECKING:
    from sglang.srt.model_executor.pool_configurator import MemoryPoolConfig

    from sglang_mlx_plugin.engine.step import Engine

__all__ = ["MlxModelRunner"]

logger = logging.getLogger(__name__)


class _TorchModelFace:
    """Stands where SGLang expects a torch model, for the few reads of its attributes."""

    def forward(self) -> NoReturn:
        """Refused: the model is MLX's."""
        raise RuntimeError(
            "SGLang called the torch model, but MLX runs the model: a feature that needs torch "
            "is switched on and does not work on MLX."
        )


class MlxModelRunner(ModelRunner):
    """Loads the model into an MLX engine and keeps SGLang's bookkeeping.

    Attributes:
        engine: The engine, once `initialize` has run.
        max_total_num_tokens: KV capacity in tokens.
        max_running_requests: Requests that may run at once.
    """

    engine: Engine

    # What the base sets on paths that never run here; the scheduler reads each.
    canary_manager = None
    prefill_aware_swa = False
    eplb_manager = None
    decode_cuda_graph_runner = None
    prefill_cuda_graph_runner = None
    graph_shared_output = None
    memory_saver_adapter: Any

    def initialize(self) -> None:
        """Load the model, size everything, and create the bookkeeping pools."""
        self.memory_saver_adapter = TorchMemorySaverAdapter.create(enable=False)
        self.sampler = None
        self.hooks = get_hooks()
        self.load_model()
        self.kv_cache_dtype = self.dtype
        self.attn_backend = None
        self.is_hybrid_swa = False
        self.sliding_window_size = None
        self.decode_cuda_graph_capture_bs: list[int] = []
        self.decode_cuda_graph_captured = False
        self._size_and_create_pools()
        self.init_ngram_embedding_manager()
        self._build_engine()

    def load_model(self) -> None:
        """Load the model through ``sglang_mlx_load_model``.

        Raises:
            ModelLoadError: If the folder cannot be served.
        """
        started = time.perf_counter()
        device = self.hooks.device(os.environ)
        blas = lend_blas(device.kind)
        use_device(device.kind)
        working_set = memory_bytes(device.kind)
        settings = get_model()
        loaded = self.hooks.load_model(
            LoadRequest(
                path=Path(self.model_config.model_path),
                device=device.kind,
                dtype=_requested_dtype(settings.dtype),
                trust_remote_code=settings.trust_remote_code,
                config_overrides=_overrides(settings.json_model_override_args),
                memory_limit_bytes=int(working_set * self.mem_fraction_static),
            )
        )
        self.device_choice, self.blas_report = device, blas
        self.prepared = assemble.prepare(
            loaded,
            device=device.kind,
            mem_fraction_static=self.mem_fraction_static,
            context_len=self.model_config.context_len,
        )
        hybrid.mark(self.model_config, self.prepared.layout.has_state)
        self.model = _TorchModelFace()
        self.dtype = getattr(torch, loaded.dtype)
        self.weight_load_mem_usage = loaded.weight_bytes / (1 << 30)
        self.weight_load_time = time.perf_counter() - started
        layers = max(len(self.prepared.layout.nodes), 1)
        self.layer_info = ModelLayerInfo(
            start_layer=0, end_layer=layers, num_effective_layers=layers
        )

    def _size_and_create_pools(self) -> None:
        prepared = self.prepared
        self.kv_bytes_per_token = 0
        if prepared.layout.has_kv:
            # Asked of the store that will be used: a vendor's may be smaller, or larger.
            spec = prepared.kv_spec(1, get_model().kv_cache_dtype, self.device_choice.kind)
            self.kv_bytes_per_token = self.hooks.kv_bytes_per_token(spec)
        limits = ConcurrencyLimits(
            max_total_num_tokens=0,
            requested=get_schedule().max_running_requests,
            attn_dp_size=get_parallel().attn_dp_size,
            is_hybrid=prepared.layout.has_state,
            max_mamba_cache_size=get_schedule().max_mamba_cache_size,
            disable_radix_cache=get_memory().disable_radix_cache,
        )
        # Without a tree nobody asks for a state once the next step has been launched.
        self.auxiliary_versions = 1 if limits.disable_radix_cache else OVERLAPPED_VERSIONS
        self.sizes = size_pools(
            prepared.budget,
            Costs(
                token=self.kv_bytes_per_token,
                slot=prepared.layout.slot_bytes,
                # And the one that the next step is making.
                versions=self.auxiliary_versions + 1,
            ),
            self.hooks.with_auxiliary_slots(limits),
            max_total_tokens=get_schedule().max_total_tokens,
            context_len=self.model_config.context_len,
            memory_ratio=get_schedule().mamba_full_memory_ratio,
            resolve=self.hooks.resolve_max_running_requests,
        )
        self.max_total_num_tokens = self.sizes.tokens
        self.max_running_requests = self.sizes.running
        self.req_to_token_pool = self.hooks.create_request_pool(
            RequestPoolSpec(
                size=self.max_running_requests,
                # SGLang writes a few slots past the context while a request finishes.
                max_context_len=self.model_config.context_len + 4,
                is_hybrid=limits.is_hybrid,
                auxiliary_size=self.sizes.auxiliary,
                auxiliary_slot_bytes=prepared.layout.slot_bytes,
                disable_radix_cache=get_memory().disable_radix_cache,
            )
        )
        self.token_to_kv_pool = SlotNumbers(
            self.max_total_num_tokens,
            1,
            self.kv_cache_dtype,
            len(prepared.layout.layers),
            "cpu",
            False,
            bytes_per_token=self.kv_bytes_per_token,
        )
        self.token_to_kv_pool_allocator = TokenToKVPoolAllocator(
            self.max_total_num_tokens,
            dtype=self.kv_cache_dtype,
            device="cpu",
            kvcache=self.token_to_kv_pool,
            need_sort=False,
        )

    def _build_engine(self) -> None:
        self.engine = assemble.build_engine(
            self.prepared,
            capacity=self.max_total_num_tokens,
            kv_cache_dtype=get_model().kv_cache_dtype,
            max_rows=self.max_running_requests,
            device=self.device_choice.kind,
            create_kv_store=self.hooks.create_kv_store,
            create_attention=self.hooks.create_attention,
            create_swiglu=self.hooks.create_swiglu,
            create_logits_processor=self.hooks.create_logits_processor,
            create_sampler=self.hooks.create_sampler,
            auxiliary_slots=self.sizes.auxiliary,
            auxiliary_versions=self.auxiliary_versions,
        )
        bind = getattr(self.req_to_token_pool, "bind", None)
        if bind is not None:
            bind(self.engine.aux_store)
        loaded = self.prepared.loaded
        logger.info(
            "MLX serves %s: device %s (%s), BLAS %s, dtype %s, weights %.2f GB, KV budget %d "
            "tokens (%.2f GB, %d bytes a token), at most %d running requests.",
            loaded.family,
            self.device_choice.kind,
            self.device_choice.reason,
            self.blas_report.reason,
            loaded.dtype,
            loaded.weight_bytes / 1e9,
            self.max_total_num_tokens,
            self.max_total_num_tokens * self.kv_bytes_per_token / 1e9,
            self.kv_bytes_per_token,
            self.max_running_requests,
        )
        if self.sizes.auxiliary:
            logger.info(
                "Auxiliary state: %d slots of %d bytes, %.2f GB at most.",
                self.sizes.auxiliary,
                self.prepared.layout.slot_bytes,
                self.sizes.auxiliary_bytes / 1e9,
            )

    def alloc_memory_pool(
        self,
        memory_pool_config: MemoryPoolConfig | None = None,
        *,
        draft_parallel_layout: Any = None,
    ) -> None:
        """Answer SGLang's request to allocate KV memory through the hook.

        The built-in answer is to do nothing: MLX owns the memory. Without this override the
        base would build CUDA pools and its draft-worker assertion would end the server, as
        0.5.14 did.
        """
        self.hooks.alloc_memory_pool(
            runner=self,
            memory_pool_config=memory_pool_config,
            draft_parallel_layout=draft_parallel_layout,
        )

    def init_attention_backends(self) -> None:
        """Nothing to do: attention runs inside the engine."""

    def init_cuda_graphs(self, capture_decode_cuda_graph: bool = True) -> None:
        """Nothing to do: MLX builds its own graphs."""

    def prewarm_sampling(self) -> SamplingPrewarmResult:
        """Nothing to do: SGLang's torch sampler is not used."""
        return self.sampling_prewarm_result

    def check_quantized_moe_compatibility(self) -> None:
        """Nothing to check: the rule is about CUDA kernels."""

    @property
    def preloaded_weights_bytes(self) -> int:
        """No weights were loaded by torch before this runner."""
        return 0

    @property
    def logical_max_total_num_tokens(self) -> int:
        """KV capacity in tokens; slots are tokens here."""
        return self.req_to_token_pool.schedulable_token_capacity(self.max_total_num_tokens)

    def forward(
        self,
        forward_batch: Any,
        skip_attn_backend_init: bool | None = None,
        pp_proxy_tensors: Any = None,
        reinit_attn_backend: bool = False,
        split_forward_count: int = 1,
    ) -> NoReturn:
        """Refused: batches reach the engine through the worker."""
        raise RuntimeError(
            "SGLang asked for a torch forward pass, but MLX runs the model: a feature that "
            "needs torch (embeddings, split prefill) is switched on and does not work on MLX."
        )


def _requested_dtype(dtype: str) -> str:
    """SGLang's ``--dtype`` in MLX's words."""
    return {"half": "float16", "float": "float32"}.get(dtype, dtype)


def _overrides(text: Any) -> dict[str, Any]:
    if not text:
        return {}
    return dict(text) if isinstance(text, dict) else json.loads(text)
