"""The built-in answer to SGLang's memory-pool allocation."""

from __future__ import annotations

from sglang_mlx_plugin.hooks.markers import hookimpl


@hookimpl(trylast=True)
def sglang_mlx_alloc_memory_pool() -> bool:
    """Built-in: nothing to do, MLX owns the memory and the engine has taken it already."""
    return True
