"""Puts other kernels under mlx-lm's models, for the engine's own passes only.

mlx-lm's models name two functions that a device may have a better one for: attention
(`mlx_lm.models.base.scaled_dot_product_attention`) and the gate of a feed-forward layer
(`mlx_lm.models.activations.swiglu`). The names in the loaded model's modules are bound to
dispatchers once; they call the originals everywhere but inside `Kernels.active`, and so what
else runs mlx-lm in the process is not touched.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models import activations, base

from sglang_mlx_plugin.engine import cpu_attention

if TYPE_CHECKING:
    from types import ModuleType

    import mlx.nn as nn

    from sglang_mlx_plugin.hooks.types import Attention, AttentionSpec, SwiGLU, SwiGLUSpec

__all__ = ["Kernels", "create_attention", "create_swiglu", "fused_attention"]

_original_attention = base.scaled_dot_product_attention
_original_swiglu = activations.swiglu


def fused_attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    *,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None = None,
) -> mx.array:
    """MLX's own kernel (see `sglang_mlx_plugin.hooks.types.Attention`)."""
    return mx.fast.scaled_dot_product_attention(
        queries, keys, values, scale=scale, mask=mask, sinks=sinks
    )


def create_attention(spec: AttentionSpec) -> Attention:
    """The built-in kernel for `spec`."""
    if spec.device == "cpu" and spec.dtype == "float32":
        return cpu_attention.CpuAttention(cpu_attention.faster_exp())
    return fused_attention


def create_swiglu(spec: SwiGLUSpec) -> SwiGLU:
    """The built-in gate for `spec`: mlx-lm's own, or on a CPU with the faster exponential."""
    if spec.device == "cpu" and spec.dtype == "float32":
        exp = cpu_attention.faster_exp()
        if exp is not mx.exp:
            return cpu_attention.swiglu_of(exp)
    return _original_swiglu


class _Active(threading.local):
    kernels: Kernels | None = None


_active = _Active()


class Kernels:
    """What a model's passes use in place of mlx-lm's functions.

    Args:
        attention: Scaled dot-product attention; None for mlx-lm's own.
        swiglu: ``silu(gate) * x``; None for mlx-lm's own.
    """

    def __init__(
        self,
        attention: Attention | None = None,
        swiglu: SwiGLU | None = None,
    ) -> None:
        self.attention = attention
        self.swiglu = swiglu

    @classmethod
    def of(cls, attention: Attention, swiglu: SwiGLU) -> Kernels:
        """The kernels of an engine.

        Args:
            attention: What ``sglang_mlx_create_attention`` answered.
            swiglu: What ``sglang_mlx_create_swiglu`` answered.
        """
        # MLX's own need no dispatcher: mlx-lm calls them already.
        return cls(
            None if attention is fused_attention else attention,
            None if swiglu is _original_swiglu else swiglu,
        )

    def install(self, model: nn.Module) -> int:
        """Bind the names in `model`'s modules to the dispatchers.

        Returns:
            How many names are bound to one.
        """
        count = 0
        for module in _modules_of(model):
            if self.attention is not None:
                count += _bind(module, _original_attention, _attention)
            if self.swiglu is not None:
                count += _bind(module, _original_swiglu, _swiglu)
        return count

    @contextmanager
    def active(self) -> Iterator[None]:
        """Use these kernels for what this thread runs inside."""
        before, _active.kernels = _active.kernels, self
        try:
            yield
        finally:
            _active.kernels = before


def _attention(
    queries: mx.array,
    keys: Any,
    values: Any,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    kernels = _active.kernels
    # mlx-lm's quantised caches answer tuples, which only its own function understands.
    if kernels is None or kernels.attention is None or not isinstance(keys, mx.array):
        return _original_attention(
            queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks
        )
    return kernels.attention(queries, keys, values, scale=scale, mask=mask, sinks=sinks)


def _swiglu(gate: mx.array, x: mx.array) -> mx.array:
    kernels = _active.kernels
    if kernels is None or kernels.swiglu is None:
        return _original_swiglu(gate, x)
    return kernels.swiglu(gate, x)


def _modules_of(model: nn.Module) -> list[ModuleType]:
    names = {type(module).__module__ for module in model.modules()}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]


def _bind(module: ModuleType, original: Any, replacement: Any) -> int:
    # Bound already: another model of the same family was loaded before.
    either = (original, replacement)
    names = [name for name, value in vars(module).items() if any(value is one for one in either)]
    for name in names:
        setattr(module, name, replacement)
    return len(names)
