"""The built-in attention kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_mlx_plugin.hooks.markers import hookimpl

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import Attention, AttentionSpec


@hookimpl(trylast=True)
def sglang_mlx_create_attention(spec: AttentionSpec) -> Attention:
    """Built-in: MLX's fused kernel, or on a CPU products over grouped heads."""
    from sglang_mlx_plugin.engine.kernels import create_attention

    return create_attention(spec)
