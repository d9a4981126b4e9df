"""Attention for a CPU, where MLX's fused kernel falls back to plain operations.

That fallback multiplies each query head with its keys alone and takes an exponential that no
SIMD helps. Here the query heads that share a key head are one product, the exponential is
`exp` (below), the division comes after the sum over the values, and a causal chunk leaves out
the blocks that nobody sees.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import mlx.core as mx
from mlx_lm.models.activations import swiglu as plain_swiglu

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import SwiGLU

__all__ = ["CpuAttention", "faster_exp", "swiglu_of"]

# Queries of one block of a causal chunk: fewer waste less, more are faster products.
_BLOCK = 128
# Added to the score of what a query must not see; as far below zero as float32 sums allow.
_UNSEEN = 1e30

_E = math.e

Exp = Callable[[mx.array], mx.array]


def _power(x: mx.array) -> mx.array:
    return mx.power(_E, x)


@functools.cache
def faster_exp() -> Exp:
    """``exp`` for float32, by whichever of MLX's operations is faster here.

    MLX's own is vectorised where its build has SIMD for the machine; on x86 it has none, and
    the C library's ``powf`` is two to three times as fast and as exact (5e-7).
    """
    x = mx.full((1 << 16,), -1.5)
    best = {}
    for function in (mx.exp, _power):
        best[function] = math.inf
        for _ in range(3):
            start = time.perf_counter()
            mx.eval(function(x))
            best[function] = min(best[function], time.perf_counter() - start)
    return _power if best[_power] < 0.8 * best[mx.exp] else mx.exp


def swiglu_of(exp: Exp) -> SwiGLU:
    """``silu(gate) * x`` (`mlx_lm.models.activations.swiglu`) with this ``exp``."""

    def swiglu(gate: mx.array, x: mx.array) -> mx.array:
        if gate.dtype != mx.float32:
            return plain_swiglu(gate, x)
        return gate * x / (exp(-gate) + 1.0)

    return swiglu


class CpuAttention:
    """Scaled dot-product attention in grouped products.

    Args:
        exp: The exponential.
    """

    def __init__(self, exp: Exp) -> None:
        self._exp = exp

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
        if sinks is not None or queries.dtype != mx.float32 or not _shared_by_heads(mask):
            return mx.fast.scaled_dot_product_attention(
                queries, keys, values, scale=scale, mask=mask, sinks=sinks
            )
        batch, heads, steps, width = queries.shape
        groups, columns = keys.shape[1], keys.shape[2]
        grouped = (queries * scale).reshape(batch, groups, heads // groups, steps, width)
        if isinstance(mask, str):
            blocks = []
            for start in range(0, steps, _BLOCK):
                end = min(start + _BLOCK, steps)
                seen = columns - steps + end
                blocks.append(
                    self._attend(
                        grouped[:, :, :, start:end],
                        keys[:, :, :seen],
                        values[:, :, :seen],
                        _causal(end - start, seen),
                    )
                )
            out = blocks[0] if len(blocks) == 1 else mx.concatenate(blocks, axis=3)
        else:
            bias = None if mask is None else _bias(mask, batch)
            out = self._attend(grouped, keys, values, bias)
        return out.reshape(batch, heads, steps, -1)

    def _attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, bias: mx.array | None
    ) -> mx.array:
        """Attention of (B, G, R, N, D) queries over (B, G, S, D) keys."""
        batch, groups, repeats, steps, width = queries.shape
        flat = queries.reshape(batch, groups, repeats * steps, width)
        scores = flat @ keys.swapaxes(-1, -2)
        if bias is not None:
            apart = scores.reshape(batch, groups, repeats, steps, -1) + bias
            scores = apart.reshape(scores.shape)
        weights = self._exp(scores - scores.max(-1, keepdims=True))
        out = (weights @ values) / weights.sum(-1, keepdims=True)
        return out.reshape(batch, groups, repeats, steps, -1)


def _shared_by_heads(mask: mx.array | str | None) -> bool:
    if isinstance(mask, mx.array):
        return mask.ndim <= 3 or mask.shape[1] == 1
    return mask is None or mask == "causal"


def _bias(mask: mx.array, batch: int) -> mx.array:
    """float32 (B or 1, 1, 1, N, S), to be added to the scores."""
    shaped = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)[:, :, None]
    if mask.dtype != mx.bool_:
        return shaped.astype(mx.float32)
    # Cheaper than `where`, which has no SIMD either; what is seen keeps its score exactly.
    return shaped.astype(mx.float32) * _UNSEEN - _UNSEEN


def _causal(steps: int, columns: int) -> mx.array | None:
    """The bias of a chunk's last `steps` queries over `columns` keys."""
    if steps == 1:
        return None
    rows = mx.arange(columns - steps, columns)[:, None]
    seen = (mx.arange(columns)[None] <= rows).astype(mx.float32)
    return seen * _UNSEEN - _UNSEEN
