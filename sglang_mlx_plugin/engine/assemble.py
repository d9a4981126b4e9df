"""Puts an engine together from a loaded model and the parts that hooks supply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from sglang_mlx_plugin.engine import memory
from sglang_mlx_plugin.engine.aux_store import OVERLAPPED_VERSIONS, AuxStore
from sglang_mlx_plugin.engine.device import memory_bytes
from sglang_mlx_plugin.engine.head import HeadGate
from sglang_mlx_plugin.engine.kernels import Kernels
from sglang_mlx_plugin.engine.layout_check import choose_layout
from sglang_mlx_plugin.engine.step import Engine
from sglang_mlx_plugin.hooks.types import (
    AttentionSpec,
    KVStoreSpec,
    LogitsProcessorSpec,
    SamplerSpec,
    SwiGLUSpec,
)

if TYPE_CHECKING:
    from sglang_mlx_plugin.engine.caches import CacheLayout
    from sglang_mlx_plugin.hooks.types import (
        Attention,
        DeviceKind,
        KVStore,
        LoadedModel,
        LogitsProcessor,
        Sampler,
        SwiGLU,
    )

__all__ = ["Prepared", "build_engine", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """A model whose caches are known, before any KV memory is taken.

    Attributes:
        loaded: The model.
        layout: How its caches map onto the stores.
        head: The gate in front of its output head.
        budget: The memory budget.
    """

    loaded: LoadedModel
    layout: CacheLayout
    head: HeadGate
    budget: memory.MemoryBudget

    def kv_spec(self, capacity: int, kv_cache_dtype: str, device: DeviceKind) -> KVStoreSpec:
        """What a KV store of `capacity` tokens must hold."""
        return KVStoreSpec(
            layers=self.layout.layers,
            capacity=capacity,
            dtype=self.loaded.dtype,
            kv_cache_dtype=kv_cache_dtype,
            device=device,
        )


def prepare(
    loaded: LoadedModel,
    *,
    device: DeviceKind,
    mem_fraction_static: float,
    context_len: int = 0,
) -> Prepared:
    """Probe the model and set up MLX's memory limits.

    Args:
        loaded: The model.
        device: MLX back end.
        mem_fraction_static: ``--mem-fraction-static``.
        context_len: Tokens of the longest sequence, for the size of states that grow.

    Raises:
        UnsupportedModelError: If the model cannot be served exactly.
    """
    working_set = memory_bytes(device)
    budget = memory.MemoryBudget(
        working_set=working_set,
        static=int(working_set * mem_fraction_static),
        weights=loaded.weight_bytes,
    )
    memory.apply_limits(device, budget)
    layout = choose_layout(loaded, context_len=context_len)
    head = HeadGate(loaded.model)
    head.verify(loaded.model, make_prompt_cache(loaded.model), mx.array([[1, 2, 3]]))
    return Prepared(loaded=loaded, layout=layout, head=head, budget=budget)


def build_engine(
    prepared: Prepared,
    *,
    capacity: int,
    kv_cache_dtype: str,
    max_rows: int,
    device: DeviceKind,
    create_kv_store: Callable[[KVStoreSpec], KVStore],
    create_attention: Callable[[AttentionSpec], Attention],
    create_swiglu: Callable[[SwiGLUSpec], SwiGLU],
    create_logits_processor: Callable[[LogitsProcessorSpec], LogitsProcessor],
    create_sampler: Callable[[SamplerSpec], Sampler],
    auxiliary_slots: int = 0,
    auxiliary_versions: int = OVERLAPPED_VERSIONS,
) -> Engine:
    """Take the KV memory and build the engine.

    Args:
        prepared: What `prepare` found out.
        capacity: Tokens that the KV store holds.
        kv_cache_dtype: ``--kv-cache-dtype``.
        max_rows: Highest request row.
        device: MLX back end.
        create_kv_store: Answers ``sglang_mlx_create_kv_store``.
        create_attention: Answers ``sglang_mlx_create_attention``.
        create_swiglu: Answers ``sglang_mlx_create_swiglu``.
        create_logits_processor: Answers ``sglang_mlx_create_logits_processor``.
        create_sampler: Answers ``sglang_mlx_create_sampler``.
        auxiliary_slots: Slots for state that is not sliceable by token; at least one for
            each row, where the model has such state.
        auxiliary_versions: Lengths that a slot remembers the state of.
    """
    store = None
    if prepared.layout.has_kv:
        store = create_kv_store(prepared.kv_spec(capacity, kv_cache_dtype, device))
    states = None
    if prepared.layout.has_state:
        states = AuxStore(prepared.layout.states, auxiliary_slots or max_rows, auxiliary_versions)
    dtype, vocab = prepared.loaded.dtype, prepared.loaded.vocab_size
    kernels = Kernels.of(
        create_attention(AttentionSpec(layers=prepared.layout.layers, dtype=dtype, device=device)),
        create_swiglu(SwiGLUSpec(dtype=dtype, device=device)),
    )
    kernels.install(prepared.loaded.model)
    return Engine(
        prepared.loaded,
        layout=prepared.layout,
        kv_store=store,
        process_logits=create_logits_processor(
            LogitsProcessorSpec(vocab_size=vocab, device=device)
        ),
        sampler=create_sampler(SamplerSpec(vocab_size=vocab, device=device)),
        head=prepared.head,
        max_rows=max_rows,
        aux_store=states,
        kernels=kernels,
    )
