"""Tokens from logits, for any mix of rows in one batch, inside the graph.

A row's draw depends on its seed and on the position of the token in its sequence alone:
one uniform number from `mx.random` with the key (seed, position), turned into a token by
inverting the cumulative distribution. Neighbours, batch size, prefix hits and retractions
do not enter. The filters are those of SGLang's reference sampler
(`sglang.srt.layers.sampler.top_k_top_p_min_p_sampling_from_probs_torch`): top-k, top-p and
min-p all judge the unfiltered, temperature-scaled distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from sglang_mlx_plugin.engine.types import TOP_K_ALL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sglang_mlx_plugin.engine.types import SamplingRows
    from sglang_mlx_plugin.hooks.types import LogitsProcessor, LogitsProcessorSpec, SamplerSpec

__all__ = [
    "BatchSampler",
    "create_logits_processor",
    "create_sampler",
    "edit_logits",
    "keep_mask",
    "uniforms",
]


def create_sampler(spec: SamplerSpec) -> BatchSampler:
    """Build the built-in sampler."""
    return BatchSampler(spec.vocab_size)


def create_logits_processor(spec: LogitsProcessorSpec) -> LogitsProcessor:
    """The built-in logits processor; it needs to know nothing of `spec`."""
    return edit_logits


def edit_logits(logits: mx.array, rows: SamplingRows) -> mx.array:
    """Apply grammar masks and biases, in SGLang's order (penalties come before both).

    Args:
        logits: float32 (B, vocab).
        rows: Edits by row.

    Returns:
        float32 (B, vocab).
    """
    if rows.allowed is not None:
        logits = mx.where(mx.array(rows.allowed), logits, -mx.inf)
    if rows.bias is not None:
        logits = logits + mx.array(rows.bias)
    return logits


def uniforms(seeds: NDArray[np.uint64], positions: mx.array) -> mx.array:
    """One number in [0, 1) for each row, fixed by its seed and position.

    Args:
        seeds: uint64 (B,).
        positions: int32 (B,).

    Returns:
        float32 (B,).
    """
    low = (seeds & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (seeds >> np.uint64(32)).astype(np.uint32)
    base = mx.array(np.stack([high, low], axis=1))

    def draw(key: mx.array, position: mx.array) -> mx.array:
        # Split first: seeds that differ by little then share no stream, and the position
        # only has to tell the tokens of one sequence apart.
        mixed = mx.random.split(key)[0]
        return mx.random.uniform(key=mx.stack([mixed[0], mixed[1] ^ position]))

    return mx.vmap(draw)(base, positions.astype(mx.uint32))


def keep_mask(probs: mx.array, rows: SamplingRows) -> mx.array:
    """Which tokens survive top-k, top-p and min-p.

    Args:
        probs: float32 (B, vocab), each row summing to 1.
        rows: Filters by row.

    Returns:
        bool (B, vocab); the most probable token of a row always survives.
    """
    keep = probs == probs.max(axis=-1, keepdims=True)
    ranked = (rows.top_k < TOP_K_ALL).any() or (rows.top_p < 1.0).any()
    survives = mx.full(probs.shape, True)
    if ranked:
        order = mx.argsort(-probs, axis=-1)
        descending = mx.take_along_axis(probs, order, axis=-1)
        before = mx.cumsum(descending, axis=-1) - descending
        rank = mx.arange(probs.shape[-1])[None]
        top_k = mx.array(np.minimum(rows.top_k, probs.shape[-1]))[:, None]
        in_order = (rank < top_k) & (before <= mx.array(rows.top_p)[:, None])
        survives = mx.put_along_axis(survives, order, in_order, axis=-1)
    if (rows.min_p > 0).any():
        floor = probs.max(axis=-1, keepdims=True) * mx.array(rows.min_p)[:, None]
        survives = survives & (probs >= floor)
    greedy = mx.array(rows.top_k == 1)[:, None]
    return mx.where(greedy, keep, survives | keep)


class BatchSampler:
    """The built-in sampler: greedy, temperature, top-k, top-p and min-p."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def __call__(self, logits: mx.array, rows: SamplingRows, positions: mx.array) -> mx.array:
        """Choose one token a row (see `sglang_mlx_plugin.hooks.types.Sampler`)."""
        best = mx.argmax(logits, axis=-1).astype(mx.int32)
        if rows.all_greedy:
            return best
        probs = mx.softmax(logits / mx.array(rows.temperature)[:, None], axis=-1, precise=True)
        if ((rows.top_k < TOP_K_ALL) | (rows.top_p < 1.0) | (rows.min_p > 0)).any():
            probs = mx.where(keep_mask(probs, rows), probs, 0.0)
        cumulative = mx.cumsum(probs, axis=-1)
        total = cumulative[:, -1:]
        goal = uniforms(rows.seeds, positions)[:, None] * total
        # The first token whose cumulative mass exceeds the goal: one of mass 0 never does.
        drawn = (cumulative <= goal).sum(axis=-1).astype(mx.int32)
        # Rounding may put the goal on the total itself; then the last token with mass.
        drawn = mx.where(
            goal[:, 0] < total[:, 0],
            drawn,
            (cumulative < total).sum(axis=-1).astype(mx.int32),
        )
        return mx.where(mx.array(rows.top_k == 1), best, drawn)
