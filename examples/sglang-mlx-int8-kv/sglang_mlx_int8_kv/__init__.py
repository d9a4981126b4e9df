"""Keeps keys and values in 8 bits, and an account of auxiliary state: the hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_mlx_plugin import hookimpl

if TYPE_CHECKING:
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

    from sglang_mlx_plugin.hooks.types import KVStore, KVStoreSpec, RequestPoolSpec


@hookimpl
def sglang_mlx_create_kv_store(spec: KVStoreSpec) -> KVStore | None:
    """An 8-bit store, unless the user asked for another dtype."""
    if spec.kv_cache_dtype != "auto":
        return None
    # Here, since this module is imported in every process of a server, MLX only in one.
    from .store import Int8Store

    return Int8Store(spec)


@hookimpl
def sglang_mlx_create_request_pool(spec: RequestPoolSpec) -> ReqToTokenPool | None:
    """A pool that keeps account, where there is auxiliary state."""
    if not spec.is_hybrid:
        return None
    from .pool import create

    return create(spec)
