"""Hooks that make SGLang treat a model as hybrid exactly when MLX's caches say so.

SGLang knows hybrid models by the classes of their configurations and settles for them, before
any model is loaded, how its CUDA pools keep snapshots: that switches the overlapped scheduler
off, or asks for buffers that are not there. Here the layout of the loaded model decides, and
snapshots need no buffers, since MLX's arrays do not change once made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["create_unified_radix_cache", "handle_mamba_radix_cache", "mark", "uses_ssm_state"]

_MARK = "_sglang_mlx_has_auxiliary_state"


def mark(model_config: Any, has_state: bool) -> None:
    """Note on SGLang's model configuration what the loaded model's caches say."""
    setattr(model_config, _MARK, has_state)


def uses_ssm_state(original: Callable[[Any], bool], model_config: Any) -> bool:
    """AROUND `kv_cache_builder.uses_ssm_state`: the loaded model's caches decide."""
    known = getattr(model_config, _MARK, None)
    return original(model_config) if known is None else bool(known)


def handle_mamba_radix_cache(server_args: Any, hf_config: Any) -> None:
    """REPLACE `model_hook.handle_mamba_radix_cache`: nothing to settle before the load."""


def create_unified_radix_cache(original: Callable[..., Any], ctx: Any, **kwargs: Any) -> Any:
    """AROUND `registry.create_unified_radix_cache`: the tree's component for our states."""
    from sglang.srt.mem_cache.unified_cache.components import ComponentType

    from .auxiliary_pool import AuxiliaryRequestPool
    from .radix import AuxiliaryComponent, AuxiliaryRadixCache

    if isinstance(ctx.params.req_to_token_pool, AuxiliaryRequestPool):
        ctx.params.component_registry_override = {
            **(ctx.params.component_registry_override or {}),
            ComponentType.MAMBA: AuxiliaryComponent,
        }
        kwargs.setdefault("cache_class", AuxiliaryRadixCache)
    return original(ctx, **kwargs)
