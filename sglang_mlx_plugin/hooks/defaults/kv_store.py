"""The built-in KV store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_mlx_plugin.hooks.markers import hookimpl

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import KVStore, KVStoreSpec


@hookimpl(trylast=True)
def sglang_mlx_create_kv_store(spec: KVStoreSpec) -> KVStore:
    """Built-in: a token-slot store."""
    from sglang_mlx_plugin.engine.kv_store import create_kv_store

    return create_kv_store(spec)
