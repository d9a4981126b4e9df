"""Rotary position embedding for a CPU: each pass's cosines and sines are taken once.

`mx.fast.rope` falls back to plain operations there, and takes the cosines and sines of the
same positions again for the queries and the keys of every layer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as nn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SharedRoPE", "share_rope"]


class _Tables:
    """Cosines and sines of the positions of one pass after another.

    Args:
        dims: Features that are rotated; even.
        base: Base of the frequencies.
        scale: Positions are multiplied by this.
    """

    def __init__(self, dims: int, base: float, scale: float) -> None:
        half = dims // 2
        # The same formula as `mx.fast.rope`: at thousands of positions a frequency that
        # differs in its last bit turns the angle visibly.
        self._inverse = mx.exp(mx.arange(0, -half, -1, dtype=mx.float32) * (math.log(base) / half))
        self._scale = scale
        self._key: tuple[mx.array | int, int] | None = None
        self._tables: tuple[mx.array, mx.array] | None = None

    def at(self, offset: mx.array | int, steps: int) -> tuple[mx.array, mx.array]:
        """Cosines and signed sines, float32 (B or 1, 1, steps, dims)."""
        if self._tables is None or not self._holds(offset, steps):
            start = offset if isinstance(offset, int) else offset.reshape(-1, 1, 1)
            positions = (mx.arange(steps, dtype=mx.int32) + start).astype(mx.float32)
            angles = (positions * self._scale)[..., None] * self._inverse
            cosines, sines = mx.cos(angles), mx.sin(angles)
            self._tables = (
                mx.concatenate([cosines, cosines], axis=-1),
                mx.concatenate([-sines, sines], axis=-1),
            )
            # The array itself is kept, so that no later one can be taken for it.
            self._key = (offset, steps)
        return self._tables

    def _holds(self, offset: mx.array | int, steps: int) -> bool:
        if self._key is None or self._key[1] != steps:
            return False
        if isinstance(offset, int):
            return isinstance(self._key[0], int) and self._key[0] == offset
        return self._key[0] is offset


class SharedRoPE(nn.Module):
    """`mlx.nn.RoPE`, not traditional, with tables that layers share.

    Args:
        dims: Features that are rotated.
        tables: Of the same dims, base and scale.
        whole: Takes dtypes other than float32.
    """

    def __init__(self, dims: int, tables: _Tables, whole: Callable[..., mx.array]) -> None:
        super().__init__()
        self._dims = dims
        self._tables = tables
        self._whole = whole

    def __call__(self, x: mx.array, offset: mx.array | int = 0) -> mx.array:
        """Rotate (B, heads, N, D) from position `offset`: an int, or int32 (B,)."""
        if x.dtype != mx.float32 or x.ndim != 4:
            return self._whole(x, offset=offset)
        cosines, sines = self._tables.at(offset, x.shape[2])
        half = self._dims // 2
        turned = x if x.shape[-1] == self._dims else x[..., : self._dims]
        swapped = mx.concatenate([turned[..., half:], turned[..., :half]], axis=-1)
        out = turned * cosines + swapped * sines
        if x.shape[-1] == self._dims:
            return out
        return mx.concatenate([out, x[..., self._dims :]], axis=-1)


def share_rope(model: nn.Module) -> int:
    """Give `model`'s plain rotary embeddings shared tables, in place.

    Returns:
        How many were changed.
    """
    tables: dict[tuple[int, float, float], _Tables] = {}
    changed = 0
    for owner in list(model.modules()):
        for name, child in list(owner.items()):
            # Exact type: a subclass may scale or interleave.
            if type(child) is not nn.RoPE or child.traditional or child.dims % 2:
                continue
            key = (child.dims, float(child.base), float(child.scale))
            if key not in tables:
                tables[key] = _Tables(*key)
            setattr(owner, name, SharedRoPE(child.dims, tables[key], child))
            changed += 1
    return changed
