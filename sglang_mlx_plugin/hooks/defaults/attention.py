"""The built-in attention kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_mlx_plugin.hooks.markers import hookimpl

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import Attention, AttentionSpec


@hookimpl(trylast=True)
def sglang_mlx_create_attention(spec: AttentionSpec) -> Attention:
    """Built-in: MLX's fused kernel; on a CPU products over grouped heads, or torch's kernel."""
    from sglang_mlx_plugin import torch_cpu
    from sglang_mlx_plugin.engine.kernels import create_attention

    attention = create_attention(spec)
    if spec.device == "cpu" and spec.dtype == "float32" and torch_cpu.available():
        return torch_cpu.TorchAttention(attention)
    return attention
