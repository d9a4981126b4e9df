"""Hooks: every part of the backend that a vendor may replace, one by one.

For the rest of the package:

>>> from sglang_mlx_plugin.hooks import get_hooks
>>> hooks = get_hooks()                                   # vendors are loaded here, once

Each method asks one hook, validates the answer and returns it, or raises `HookError`, whose
text names the hook, the plugin, its distribution and version:

``hooks.device(environ) -> DeviceChoice``
``hooks.server_args_defaults(server_args) -> dict[str, object]``
``hooks.load_model(request: LoadRequest) -> LoadedModel``
``hooks.create_kv_store(spec: KVStoreSpec) -> KVStore``
``hooks.kv_bytes_per_token(spec: KVStoreSpec) -> int`` (asks for a store of one token)
``hooks.create_swiglu(spec: SwiGLUSpec) -> SwiGLU`` (a vendor's is checked at its first answer)
``hooks.create_logits_processor(spec: LogitsProcessorSpec) -> LogitsProcessor`` (likewise, always)
``hooks.create_sampler(spec: SamplerSpec) -> Sampler`` (checks shape and dtype of each answer)
``hooks.create_request_pool(spec: RequestPoolSpec) -> pool``
``hooks.auxiliary_slots_per_request(limits: ConcurrencyLimits) -> int``
``hooks.with_auxiliary_slots(limits) -> ConcurrencyLimits`` (the same limits, slots filled in)
``hooks.resolve_max_running_requests(limits: ConcurrencyLimits) -> int`` (fills in the slots)
``hooks.alloc_memory_pool(runner, memory_pool_config, draft_parallel_layout) -> None``

The memory-pool size that belongs to the cap is
``sglang_mlx_plugin.host.concurrency.auxiliary_pool_size(limits, max_running)``.
Built-ins raise their own errors (`RuntimeError` sentences for the user), unchanged; whatever a
vendor raises becomes a `HookError` (a `RuntimeError` too).

`get_manager` gives the `HookManager` beneath: plugins, implementations, call order. This
package imports pluggy and the standard library, never SGLang, MLX, torch or numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .call import Hooks, check_sampled, get_hooks
    from .errors import HookError
    from .manager import HookManager, get_manager
    from .markers import hookimpl, hookspec
    from .plugins import Implementation, Plugin

__all__ = [
    "HookError",
    "HookManager",
    "Hooks",
    "Implementation",
    "Plugin",
    "check_sampled",
    "get_hooks",
    "get_manager",
    "hookimpl",
    "hookspec",
]

_HOMES = {
    "HookError": "errors",
    "HookManager": "manager",
    "Hooks": "call",
    "Implementation": "plugins",
    "Plugin": "plugins",
    "check_sampled": "call",
    "get_hooks": "call",
    "get_manager": "manager",
    "hookimpl": "markers",
    "hookspec": "markers",
}


def __getattr__(name: str) -> Any:
    # Lazy, because the engine imports `hooks.types` alone and needs no manager.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
