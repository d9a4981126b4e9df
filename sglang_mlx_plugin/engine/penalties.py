"""Penalties over a request's whole output, counted inside the graph.

With two steps in flight the host does not know the newest token when it prepares the next
step; SGLang's own penalizers then run one token behind. Here the counts are arrays that a
step updates with the token it samples, so that the next step's penalties include it, lazy or
not. Only rows that ask for penalties have counts.

What is counted follows SGLang's penalizers (`sglang.srt.sampling.penaltylib`): output tokens,
never the prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sglang_mlx_plugin.engine.types import PenaltyRows

__all__ = ["PenaltyState"]


class PenaltyState:
    """Counts of output tokens by request row.

    Args:
        vocab_size: Width of the logits.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._counts: dict[int, mx.array] = {}

    def apply(self, logits: mx.array, rows: NDArray[np.int32], penalties: PenaltyRows) -> mx.array:
        """Penalised logits.

        Args:
            logits: float32 (B, vocab).
            rows: int32 (B,) request rows.
            penalties: Penalties, one entry a row; a row that begins brings its history.
        """
        for row, history in zip(rows, penalties.histories, strict=True):
            if history is not None:
                counts = np.bincount(np.asarray(history, np.int64), minlength=self._vocab_size)[
                    : self._vocab_size
                ]
                self._counts[int(row)] = mx.array(counts.astype(np.float32))
        counted = self._stack(rows)
        seen = counted > 0
        frequency = mx.array(penalties.frequency)[:, None]
        presence = mx.array(penalties.presence)[:, None]
        logits = logits - (frequency * counted + presence * seen)
        banned = self._banned(penalties)
        if banned is not None:
            logits = mx.where(banned, -mx.inf, logits)
        if (penalties.repetition != 1).any():
            repetition = mx.where(seen, mx.array(penalties.repetition)[:, None], 1.0)
            logits = mx.where(logits < 0, logits * repetition, logits / repetition)
        return logits

    def count(self, rows: NDArray[np.int32], tokens: mx.array) -> None:
        """Add the sampled tokens.

        Args:
            rows: int32 (B,) request rows, those that `apply` was called with.
            tokens: int32 (B,), lazy.
        """
        counted = self._stack(rows)
        counted = counted.at[mx.arange(len(rows)), tokens].add(1.0)
        for i, row in enumerate(rows):
            self._counts[int(row)] = counted[i]

    def forget(self, row: int) -> None:
        """Drop a row whose request has ended."""
        self._counts.pop(row, None)

    def arrays(self) -> list[mx.array]:
        """The counts, to be evaluated with a step."""
        return list(self._counts.values())

    def _stack(self, rows: NDArray[np.int32]) -> mx.array:
        zeros = mx.zeros((self._vocab_size,), mx.float32)
        return mx.stack([self._counts.get(int(row), zeros) for row in rows])

    def _banned(self, penalties: PenaltyRows) -> mx.array | None:
        """bool (B, vocab): stop tokens of rows that owe `min_new_tokens` more; or None."""
        early = np.flatnonzero(penalties.outputs < penalties.min_new_tokens)
        if not len(early):
            return None
        banned = np.zeros((len(penalties.outputs), self._vocab_size), np.bool_)
        for row in early:
            ids = [token for token in penalties.stop_ids[row] if token < self._vocab_size]
            banned[row, ids] = True
        return mx.array(banned)
