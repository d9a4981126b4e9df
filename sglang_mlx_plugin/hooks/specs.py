"""The hooks: what a vendor may answer instead of the built-in parts.

Every hook is ``firstresult``: implementations are asked one after the other, vendors before
built-ins, and the first answer that is not None is taken. An implementation names only the
arguments it wants, so it goes on working when a later version passes more. All calls happen
at start-up; none is made while requests are served.

The docstrings below are the reference: ``docs/hooks.md`` is made from them, and a test sees
that each has every section.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .markers import hookspec

if TYPE_CHECKING:
    from .types import (
        Attention,
        AttentionSpec,
        ConcurrencyLimits,
        DeviceChoice,
        KVStore,
        KVStoreSpec,
        LoadedModel,
        LoadRequest,
        LogitsProcessor,
        LogitsProcessorSpec,
        RequestPoolSpec,
        Sampler,
        SamplerSpec,
        SwiGLU,
        SwiGLUSpec,
    )

__all__ = [
    "sglang_mlx_alloc_memory_pool",
    "sglang_mlx_auxiliary_slots_per_request",
    "sglang_mlx_create_attention",
    "sglang_mlx_create_kv_store",
    "sglang_mlx_create_logits_processor",
    "sglang_mlx_create_request_pool",
    "sglang_mlx_create_sampler",
    "sglang_mlx_create_swiglu",
    "sglang_mlx_device",
    "sglang_mlx_load_model",
    "sglang_mlx_resolve_max_running_requests",
    "sglang_mlx_server_args_defaults",
]

# Sections that each docstring must have, in this order; `hooks.docs` reads them.
SECTIONS = (
    "When called",
    "Process and thread",
    "Args",
    "Answer",
    "None",
    "Exceptions",
    "Since",
)


@hookspec(firstresult=True)
def sglang_mlx_device(environ: Mapping[str, str]) -> DeviceChoice | None:
    """Choose the MLX device, and whether this backend takes part at all.

    When called:
        Once in each process of a server, when SGLang first asks its platform plugins who
        they are; once more in a scheduler process, before the model is loaded; once by
        ``sglang-mlx doctor``.

    Process and thread:
        Every process of the server (main, scheduler, detokenizer, data-parallel
        controller), in the thread that first touches SGLang's platform, usually the main
        one. MLX need not be imported yet, and importing it here slows every process down.

    Args:
        environ: The process's environment, str to str, read only.

    Answer:
        A `DeviceChoice`. ``active=False`` leaves SGLang to its other platforms; ``kind`` is
        one of ``"metal"``, ``"cuda"``, ``"cpu"``; ``reason`` is one clause, not empty. Every
        process of one server must come to the same choice.

    None:
        The built-in chooses: Metal if there, else MLX's CUDA build, else CPU; beside another
        accelerator only with ``SGLANG_PLATFORM=mlx``.

    Exceptions:
        Stop the launch with the plugin's name.

    Since:
        0.1.0
    """


@hookspec(firstresult=True)
def sglang_mlx_server_args_defaults(server_args: Any) -> dict[str, object] | None:
    """Give defaults for SGLang's arguments where MLX wants others.

    When called:
        Once for each resolution of the arguments: when a server or an ``sglang.Engine``
        starts, before SGLang derives anything from them.

    Process and thread:
        The main process, in the thread that starts the server or the engine.

    Args:
        server_args: SGLang's ``ServerArgs`` as the user gave them, unresolved; to be read,
            not changed. Its fields differ between SGLang releases.

    Answer:
        A dict of field name (str, without dashes) to value. Every name must be a field of
        ``server_args``. A value is applied only where the user left the field at SGLang's
        own default; where the user set it, the user's value stays. An empty dict changes
        nothing. The answer replaces the built-in's whole dict: to add to that one, write a
        ``hookimpl(wrapper=True)`` that returns ``{**(yield), "field": value}``.

    None:
        The built-in's defaults are used.

    Exceptions:
        Stop the launch with the plugin's name.

    Since:
        0.1.0
    """


@hookspec(firstresult=True)
def sglang_mlx_load_model(request: LoadRequest) -> LoadedModel | None:
    """Load the model.

    When called:
        Once for each engine, at start-up.

    Process and thread:
        Each scheduler process, in the engine's MLX thread: the one that runs every later
        step, since MLX streams belong to threads.

    Args:
        request: A `LoadRequest`. ``path`` is a folder with ``config.json``; ``dtype`` is
            ``"auto"``, ``"float32"``, ``"float16"`` or ``"bfloat16"``;
            ``memory_limit_bytes`` is in bytes, None for no limit. Python from the folder
            may run only with ``trust_remote_code``.

    Answer:
        A `LoadedModel`. ``model(tokens, cache=caches)`` takes int32 (B, N) and gives logits
        (B, N, vocab_size); ``model`` works with `mlx_lm.models.cache.make_prompt_cache`;
        ``vocab_size`` is above 0; ``weight_bytes`` is what the evaluated parameters take,
        in bytes, and is subtracted from the memory budget; ``eos_token_ids`` is a tuple of
        int.

    None:
        The built-in loads the folder with mlx-lm.

    Exceptions:
        Stop the launch with the plugin's name.

    Since:
        0.1.0
    """


@hookspec(firstresult=True)
def sglang_mlx_create_kv_store(spec: KVStoreSpec) -> KVStore | None:
    """Create the store of keys and values.

    When called:
        Once or twice for each engine that has attention layers, at start-up: with the
        capacity that the memory budget gives, and before that, where the budget must be
        divided by the bytes per token, with ``capacity=1`` (that store is dropped).

    Process and thread:
        Each scheduler process, in the engine's MLX thread.

    Args:
        spec: A `KVStoreSpec`: one `KVLayerSpec` for each attention layer (``heads`` KV
            heads, ``key_dim`` and ``value_dim`` numbers a head and token), ``capacity`` in
            tokens, the model's ``dtype``, ``kv_cache_dtype`` as the user gave it.

    Answer:
        A `KVStore`. ``capacity`` equals ``spec.capacity``; ``bytes_per_token`` is an int, the
        same for any capacity, between one bit and eight bytes for each number that
        ``spec.layers`` describes; ``nbytes`` never passes ``bytes_per_token`` times
        (``capacity`` + 1), one per cent and one MiB aside; ``caches(view)`` gives one object
        with mlx-lm's cache protocol for each layer, in order; ``arrays()`` gives the arrays
        that hold the state. Slots are numbered 1 to capacity, slot 0 takes padding.

    None:
        The built-in token-slot store is used.

    Exceptions:
        Stop the launch with the plugin's name.

    Since:
        0.1.0
    """


@hookspec(firstresult=True)
def sglang_mlx_create_attention(spec: AttentionSpec) -> Attention | None:
    """Create the attention kernel.

    When called:
        Once for each engine, at start-up. What it answers is called once for each attention
        layer of each forward pass, by models that attend through
        ``mlx_lm.models.base.scaled_dot_product_attention``.

    Process and thread:
        Each scheduler process, in the engine's MLX thread; its answer likewise, while a
        step's graph is built.

    Args:
        spec: An `AttentionSpec`: ``layers``, ``dtype``, ``device``.

    Answer:
        An `Attention`, called as ``attention(queries, keys, values, scale=, mask=, sinks=)``
        with queries (B, heads, N, key_dim), keys (B, kv_heads, S, key_dim) and values (B,
        kv_heads, S, value_dim). It returns (B, heads, N, value_dim) of the queries' dtype,
        lazy: a kernel that evaluates keeps the scheduler waiting meanwhile. It may hand what
        it does not support to ``mx.fast.scaled_dot_product_attention``. The first answer's
        shape and dtype are checked.

    None:
        The built-in: MLX's own kernel on Metal and CUDA; on a CPU grouped products, and for
        wide passes torch's kernel.

    Exceptions:
        From the hook: stop the launch with the plugin's name. From the kernel itself: end
        the scheduler, as any failure of a step does.

    Since:
        0.1.0
    """


@hookspec(firstresult=True)
def sglang_mlx_create_swiglu(spec: SwiGLUSpec) -> SwiGLU | None:
    """Create the gate of feed-forward layers.

    When called:
        Once for each engine, at start-up. What it answers is called once for each gated
        layer of each forward pass, by models whose gate is
        ``mlx_lm.models.activations.swiglu``.

    Process and thread:
        Each scheduler process, in the engine's MLX thread; its answer likewise, while a
        step's graph is built.

    Args:
        spec: A `SwiGLUSpec`: ``dtype`` of the activations, ``device``.

    Answer:
        A `SwiGLU`, called as ``swiglu(gate, x)`` with two arrays of one shape (..., width)
        and one dtype. It returns ``silu(gate) * x`` of that shape and dtype, lazy: a gate
        that evaluates keeps the scheduler waiting meanwhile. The first answer's shape and
        dtype are checked.

    None:
        The built-in: mlx-lm's own on Metal and CUDA; on a CPU one with a faster exponential,
        and for wide passes torch's kernel.

    Exceptions:
        From the hook: stop the launch with the plugin's name. From the gate itself: end the
        scheduler, as any failure of a step does.

    Since:
        0.1.0
    """


@hookspec(firstresult=True)
def sglang_mlx_create_logits_processor(spec: LogitsProcessorSpec) -> LogitsProcessor | None:
    """Create the logits processor: what edits logits before they are sampled.

    When called:
        Once for each engine, at start-up. What it answers is called once a step that samples.

    Process and thread:
        Each scheduler process, in the engine's MLX thread; its answer likewise, while a
        step's graph is built.

    Args:
        spec: A `LogitsProcessorSpec`: ``vocab_size`` logits a row, ``device``.

    Answer:
        A `LogitsProcessor`, called as ``process(logits, rows)`` with logits float32 (B,
        vocab_size) that penalties were applied to, and ``rows`` a `SamplingRows` of B
        entries. It must apply ``rows.allowed`` (grammar masks) and ``rows.bias``, may edit
        more, and returns a lazy float32 (B, vocab_size) of which tokens are sampled and
        logprobs are taken; it reads nothing back from the device. Shape and dtype are
        checked at every call, without evaluating anything.

    None:
        The built-in: the grammar mask, then the bias.

    Exceptions:
        From the hook: stop the launch with the plugin's name. From the processor itself: end
        the scheduler, as any failure of a step does.

    Since:
        0.1.0
    """


@hookspec(firstresult=True)
def sglang_mlx_create_sampler(spec: SamplerSpec) -> Sampler | None:
    """Create the sampler: logits in, tokens out.

    When called:
        Once for each engine, at start-up. What it answers is called once a step.

    Process and thread:
        Each scheduler process, in the engine's MLX thread; its answer likewise.

    Args:
        spec: A `SamplerSpec`: ``vocab_size`` logits a row, ``device``.

    Answer:
        A `Sampler`, called as ``sampler(logits, rows, positions)`` with logits float32 (B,
        vocab_size), ``rows`` a `SamplingRows` of B entries, ``positions`` int32 (B,). It
        returns a lazy int32 (B,) and reads nothing back from the device. A row with a seed
        gives the same token whatever else is in the batch. Shape and dtype are checked at
        every call, without evaluating anything.

    None:
        The built-in batched sampler is used.

    Exceptions:
        From the hook: stop the launch with the plugin's name. From the sampler itself: end
        the scheduler, as any failure of a step does.

    Since:
        0.1.0
    """


@hookspec(firstresult=True)
def sglang_mlx_create_request_pool(spec: RequestPoolSpec) -> Any:
    """Create the request-to-token pool, with the auxiliary-state pool of hybrid models.

    When called:
        Once for each model runner, at start-up, after the concurrency cap is known.

    Process and thread:
        Each scheduler process, in the thread that builds the scheduler.

    Args:
        spec: A `RequestPoolSpec`: ``size`` requests, ``max_context_len`` tokens a request,
            and for hybrid models ``auxiliary_size`` slots of ``auxiliary_slot_bytes`` bytes.

    Answer:
        A pool as SGLang's ``ReqToTokenPool``: callables ``alloc(reqs)`` (list of int, or None
        when there is no room), ``free(req)``, ``available_size()`` (int, at least
        ``spec.size`` while nothing is allocated) and ``clear()``. With ``is_hybrid``,
        ``alloc`` also gives each request a live auxiliary slot, and exactly one owner
        releases it: ``free(req)`` with ``disable_radix_cache``, else the radix tree.

    None:
        The built-in pool is used: plain for full-attention models, with auxiliary slots for
        hybrid ones.

    Exceptions:
        Stop the launch with the plugin's name.

    Since:
        0.1.0
    """


@hookspec(firstresult=True)
def sglang_mlx_auxiliary_slots_per_request(limits: ConcurrencyLimits) -> int | None:
    """Say how many auxiliary-state slots each running request may hold.

    When called:
        Once for each model runner of a hybrid model, at start-up, before
        ``sglang_mlx_resolve_max_running_requests``.

    Process and thread:
        Each scheduler process, in the thread that builds the scheduler.

    Args:
        limits: `ConcurrencyLimits`, with ``auxiliary_slots_per_request`` None.

    Answer:
        An int above 0. It divides an explicit ``--max-mamba-cache-size`` into running
        requests, and multiplies the cap into a pool size where that flag is unset.

    None:
        The built-in answers 4 with the radix cache (one live, the rest snapshots and chunk
        tracking) and 1 without.

    Exceptions:
        Stop the launch with the plugin's name.

    Since:
        0.1.0
    """


@hookspec(firstresult=True)
def sglang_mlx_resolve_max_running_requests(limits: ConcurrencyLimits) -> int | None:
    """Decide how many requests run at once.

    When called:
        Once for each model runner, at start-up, when the KV capacity is known.

    Process and thread:
        Each scheduler process, in the thread that builds the scheduler.

    Args:
        limits: `ConcurrencyLimits`: ``max_total_num_tokens`` in tokens, ``requested`` as
            the user gave the flag or None, ``attn_dp_size`` workers, and what concerns
            auxiliary state; for hybrid models ``auxiliary_slots_per_request`` is filled in.

    Answer:
        An int from 1 to ``limits.max_total_num_tokens``: the cap of this worker, handed to
        SGLang's scheduler.

    None:
        The built-in rule applies
        (`sglang_mlx_plugin.host.concurrency.resolve_max_running_requests`, which an
        implementation may call).

    Exceptions:
        Stop the launch with the plugin's name; the built-in's `RuntimeError` tells the user
        which flag to change.

    Since:
        0.1.0
    """


@hookspec(firstresult=True)
def sglang_mlx_alloc_memory_pool(
    runner: Any, memory_pool_config: Any, draft_parallel_layout: Any
) -> bool | None:
    """Answer SGLang's request that the model runner allocate its KV memory.

    When called:
        Each time SGLang calls ``ModelRunner.alloc_memory_pool``: once for each model runner,
        at start-up, when model, KV store and request pool exist already.

    Process and thread:
        Each scheduler process, in the thread that builds the scheduler.

    Args:
        runner: Our model runner. ``max_total_num_tokens`` (int, tokens),
            ``req_to_token_pool`` and ``token_to_kv_pool_allocator`` are set.
        memory_pool_config: SGLang's ``MemoryPoolConfig`` or None.
        draft_parallel_layout: SGLang's ``DraftParallelLayout`` or None; always None before
            SGLang 0.5.23.

    Answer:
        True: the memory is taken care of. SGLang's own allocation is never entered.

    None:
        The built-in answers True and does nothing, since MLX owns the memory.

    Exceptions:
        Stop the launch with the plugin's name.

    Since:
        0.1.0
    """
