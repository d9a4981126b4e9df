"""Typed calls of the hooks, each answer validated where it enters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from . import checks
from .checks import (
    CheckedAttention,
    CheckedLogitsProcessor,
    CheckedSampler,
    CheckedSwiGLU,
    check_sampled,
)
from .manager import HookManager, get_manager

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

__all__ = ["Hooks", "check_sampled", "get_hooks"]


def get_hooks() -> Hooks:
    """The hooks of this process, vendors loaded.

    Raises:
        HookError: If a vendor cannot be used; the launch should stop with its text.
    """
    return Hooks(get_manager())


class Hooks:
    """One method for each hook: ask, validate, return.

    Every method raises `HookError` if a vendor raised or answered what cannot be used;
    built-ins' own errors pass unchanged. `sglang_mlx_plugin.hooks.specs` says what each
    hook means.

    Args:
        manager: Who is asked.
    """

    def __init__(self, manager: HookManager) -> None:
        self.manager = manager

    def device(self, environ: Mapping[str, str]) -> DeviceChoice:
        """Ask ``sglang_mlx_device``."""
        answer, who = self.manager.ask("sglang_mlx_device", environ=environ)
        return checks.check_device(answer, who)

    def server_args_defaults(self, server_args: Any) -> dict[str, object]:
        """Ask ``sglang_mlx_server_args_defaults``."""
        answer, who = self.manager.ask("sglang_mlx_server_args_defaults", server_args=server_args)
        return checks.check_server_args_defaults(answer, who, server_args)

    def load_model(self, request: LoadRequest) -> LoadedModel:
        """Ask ``sglang_mlx_load_model``."""
        answer, who = self.manager.ask("sglang_mlx_load_model", request=request)
        return checks.check_loaded_model(answer, who)

    def create_kv_store(self, spec: KVStoreSpec) -> KVStore:
        """Ask ``sglang_mlx_create_kv_store``."""
        answer, who = self.manager.ask("sglang_mlx_create_kv_store", spec=spec)
        return checks.check_kv_store(answer, who, spec)

    def kv_bytes_per_token(self, spec: KVStoreSpec) -> int:
        """Bytes that one token takes, as a store of one token tells.

        The capacity of `spec` is ignored: it is what the budget is divided by this number
        to find.
        """
        return self.create_kv_store(dataclasses.replace(spec, capacity=1)).bytes_per_token

    def create_attention(self, spec: AttentionSpec) -> Attention:
        """Ask ``sglang_mlx_create_attention``.

        Returns:
            The kernel; a vendor's in a `CheckedAttention` that looks at its first answer.
        """
        answer, who = self.manager.ask("sglang_mlx_create_attention", spec=spec)
        kernel = checks.check_attention(answer, who)
        return kernel if who.plugin.builtin else CheckedAttention(kernel, who)

    def create_swiglu(self, spec: SwiGLUSpec) -> SwiGLU:
        """Ask ``sglang_mlx_create_swiglu``.

        Returns:
            The gate; a vendor's in a `CheckedSwiGLU` that looks at its first answer.
        """
        answer, who = self.manager.ask("sglang_mlx_create_swiglu", spec=spec)
        gate = checks.check_swiglu(answer, who)
        return gate if who.plugin.builtin else CheckedSwiGLU(gate, who)

    def create_logits_processor(self, spec: LogitsProcessorSpec) -> LogitsProcessor:
        """Ask ``sglang_mlx_create_logits_processor``.

        Returns:
            The processor, in a `CheckedLogitsProcessor` that looks at each answer.
        """
        answer, who = self.manager.ask("sglang_mlx_create_logits_processor", spec=spec)
        return CheckedLogitsProcessor(checks.check_logits_processor(answer, who), who)

    def create_sampler(self, spec: SamplerSpec) -> Sampler:
        """Ask ``sglang_mlx_create_sampler``.

        Returns:
            The sampler, in a `CheckedSampler` that looks at each answer's shape and dtype.
        """
        answer, who = self.manager.ask("sglang_mlx_create_sampler", spec=spec)
        return CheckedSampler(checks.check_sampler(answer, who), who)

    def create_request_pool(self, spec: RequestPoolSpec) -> Any:
        """Ask ``sglang_mlx_create_request_pool``."""
        answer, who = self.manager.ask("sglang_mlx_create_request_pool", spec=spec)
        return checks.check_request_pool(answer, who, spec)

    def auxiliary_slots_per_request(self, limits: ConcurrencyLimits) -> int:
        """Ask ``sglang_mlx_auxiliary_slots_per_request``."""
        asked = dataclasses.replace(limits, auxiliary_slots_per_request=None)
        answer, who = self.manager.ask("sglang_mlx_auxiliary_slots_per_request", limits=asked)
        return checks.check_positive_int(answer, who)

    def with_auxiliary_slots(self, limits: ConcurrencyLimits) -> ConcurrencyLimits:
        """`limits` with the slots of a hybrid model filled in, if they are not yet."""
        if not limits.is_hybrid or limits.auxiliary_slots_per_request is not None:
            return limits
        slots = self.auxiliary_slots_per_request(limits)
        return dataclasses.replace(limits, auxiliary_slots_per_request=slots)

    def resolve_max_running_requests(self, limits: ConcurrencyLimits) -> int:
        """Ask ``sglang_mlx_resolve_max_running_requests``, the slots filled in before."""
        limits = self.with_auxiliary_slots(limits)
        answer, who = self.manager.ask("sglang_mlx_resolve_max_running_requests", limits=limits)
        return checks.check_positive_int(answer, who, limits.max_total_num_tokens)

    def alloc_memory_pool(
        self, runner: Any, memory_pool_config: Any = None, draft_parallel_layout: Any = None
    ) -> None:
        """Ask ``sglang_mlx_alloc_memory_pool``; when this returns, the memory is there."""
        answer, who = self.manager.ask(
            "sglang_mlx_alloc_memory_pool",
            runner=runner,
            memory_pool_config=memory_pool_config,
            draft_parallel_layout=draft_parallel_layout,
        )
        checks.check_true(cast(object, answer), who)
