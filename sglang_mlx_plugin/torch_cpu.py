"""A CPU's wide passes, with torch's vectorised kernels.

MLX's x86 build has no SIMD for an exponential: in a prefill, attention's softmax and the gates
of the feed-forward layers take as long as all matrix products. torch is there anyway, since
SGLang needs it, and its kernels for both are three to eight times as fast. They read MLX's
memory in place; only their result is copied.

Such a call evaluates its inputs, so a graph that holds one is not lazy. That costs nothing in a
wide pass: MLX's CPU stream queues a few operations only, and building a prefill's graph waits
for most of it in any case. Narrow passes (decode) stay with the lazy kernels.

Used on a CPU and for float32 alone, and only where torch is installed.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

if TYPE_CHECKING:
    import torch

    from sglang_mlx_plugin.hooks.types import Attention, SwiGLU

__all__ = ["LEAST_TOKENS", "TorchAttention", "TorchSwiGLU", "available"]

# Tokens of a pass from which torch is used: below, waiting for the inputs costs more than the
# kernel saves.
LEAST_TOKENS = 32


def available() -> bool:
    """Whether torch is installed; it is not imported."""
    return importlib.util.find_spec("torch") is not None


class TorchAttention:
    """Scaled dot-product attention (`torch.nn.functional.scaled_dot_product_attention`).

    Args:
        narrow: Takes what is not wide, float32 and without sinks.
    """

    def __init__(self, narrow: Attention) -> None:
        self.narrow = narrow
        _one_thread()

    def __call__(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        *,
        scale: float,
        mask: mx.array | str | None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """Attend (see `sglang_mlx_plugin.hooks.types.Attention`)."""
        batch, _, steps, width = queries.shape
        suits = (
            batch * steps >= LEAST_TOKENS
            and sinks is None
            and queries.dtype == keys.dtype == values.dtype == mx.float32
            # With two widths torch's fast kernel gives way to one that is slower than ours.
            and values.shape[3] == width
        )
        if not suits:
            return self.narrow(queries, keys, values, scale=scale, mask=mask, sinks=sinks)
        import torch

        arrays = [queries, keys, values, *([mask] if isinstance(mask, mx.array) else [])]
        mx.eval(*arrays)
        # torch's own causal mask lets query i see keys up to i; ours begins at the chunk.
        plain = isinstance(mask, str) and keys.shape[2] == steps
        with torch.inference_mode():
            out = torch.nn.functional.scaled_dot_product_attention(
                _view(queries),
                _view(keys),
                _view(values),
                attn_mask=None if plain else _mask(mask, queries, keys),
                is_causal=plain,
                scale=scale,
                enable_gqa=True,
            )
        # The layout that torch computed in, and the one that the output projection wants.
        return mx.array(out.transpose(1, 2).numpy()).swapaxes(1, 2)


class TorchSwiGLU:
    """``silu(gate) * x`` (`torch.nn.functional.silu`).

    Args:
        narrow: Takes what is not wide and float32.
    """

    def __init__(self, narrow: SwiGLU) -> None:
        self.narrow = narrow
        _one_thread()

    def __call__(self, gate: mx.array, x: mx.array) -> mx.array:
        """Gate (see `sglang_mlx_plugin.hooks.types.SwiGLU`)."""
        tokens = gate.size // max(gate.shape[-1], 1)
        if tokens < LEAST_TOKENS or not gate.dtype == x.dtype == mx.float32:
            return self.narrow(gate, x)
        import torch

        mx.eval(gate, x)
        with torch.inference_mode():
            out = torch.nn.functional.silu(_view(gate)).mul_(_view(x))
        return mx.array(out.numpy())


def _one_thread() -> None:
    """Keep torch from a second team of OpenMP threads beside the one of MLX's products.

    The two would make each other sleep where they spin between two products: a decode step on
    two cores took three times as long.
    """
    import torch

    torch.set_num_threads(1)


def _view(array: mx.array) -> torch.Tensor:
    """An evaluated array's memory as a tensor."""
    import torch

    return torch.from_numpy(np.asarray(array))


def _mask(mask: mx.array | str | None, queries: mx.array, keys: mx.array) -> Any:
    """A mask as torch takes it: bool, or float32 that is added; broadcastable to the scores."""
    import torch

    if mask is None:
        return None
    if isinstance(mask, str):
        steps, columns = queries.shape[2], keys.shape[2]
        return torch.ones(steps, columns, dtype=torch.bool).tril(columns - steps)
    if mask.dtype == mx.bool_:
        return _view(mask)
    return _view(mask.astype(mx.float32))
