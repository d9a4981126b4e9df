"""The built-in gate of feed-forward layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_mlx_plugin.hooks.markers import hookimpl

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import SwiGLU, SwiGLUSpec


@hookimpl(trylast=True)
def sglang_mlx_create_swiglu(spec: SwiGLUSpec) -> SwiGLU:
    """Built-in: mlx-lm's own; on a CPU one with a faster exponential, or torch's kernel."""
    from sglang_mlx_plugin import torch_cpu
    from sglang_mlx_plugin.engine.kernels import create_swiglu

    swiglu = create_swiglu(spec)
    if spec.device == "cpu" and spec.dtype == "float32" and torch_cpu.available():
        return torch_cpu.TorchSwiGLU(swiglu)
    return swiglu
