"""Log-probabilities of sampled tokens and of prompts.

Logprobs are of the logits after penalties, biases and grammar masks, as SGLang defines
them, and of the temperature-scaled distribution only where asked. They are computed in the
graph for just the rows and positions that want them, and reduced there to the few numbers
that leave it, so that no (positions x vocabulary) matrix is read to the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from sglang_mlx_plugin.engine.types import LogprobsOutput

if TYPE_CHECKING:
    from sglang_mlx_plugin.engine.types import StepRequest

__all__ = ["LazyLogprobs", "collect", "log_softmax"]


def log_softmax(logits: mx.array) -> mx.array:
    """Normalised log-probabilities over the last axis, float32."""
    logits = logits.astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


@dataclass
class _Reduced:
    """Top-k and chosen ids of some rows, lazy."""

    values: mx.array | None = None
    ids: mx.array | None = None
    asked: mx.array | None = None


@dataclass
class LazyLogprobs:
    """Logprobs of a step that may still be running."""

    rows: int
    wanted: np.ndarray
    top: np.ndarray
    token_ids: list[list[int] | None]
    chosen: mx.array | None = None
    output: _Reduced = field(default_factory=_Reduced)
    input_values: mx.array | None = None
    input_reduced: _Reduced = field(default_factory=_Reduced)
    input_owners: np.ndarray | None = None

    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate with the step."""
        found = [self.chosen, self.input_values]
        for part in (self.output, self.input_reduced):
            found += [part.values, part.ids, part.asked]
        return [array for array in found if array is not None]

    def read(self) -> LogprobsOutput:
        """Wait and return plain numbers."""
        chosen = np.zeros(self.rows, np.float32)
        out = LogprobsOutput(
            chosen=chosen,
            top_values=[[] for _ in range(self.rows)],
            top_ids=[[] for _ in range(self.rows)],
            token_values=[[] for _ in range(self.rows)],
        )
        if self.chosen is not None:
            chosen[self.wanted] = np.array(self.chosen)
            values, ids, asked = _lists(self.output, self.wanted, self.top, self.token_ids)
            for row, value, index, extra in zip(self.wanted, values, ids, asked, strict=True):
                out.top_values[row], out.top_ids[row] = value, index
                out.token_values[row] = extra
        if self.input_values is not None and self.input_owners is not None:
            out.input_values = np.array(self.input_values)
            values, ids, asked = _lists(
                self.input_reduced, self.input_owners, self.top, self.token_ids
            )
            out.input_top_values, out.input_top_ids = values, ids
            out.input_token_values = asked
        return out


def collect(
    request: StepRequest,
    logits: mx.array | None,
    chosen: mx.array | None,
    wanted: np.ndarray,
    input_logits: mx.array | None,
) -> LazyLogprobs:
    """Add logprobs to a step's graph.

    Args:
        request: The step; its `logprobs` is not None.
        logits: float32 (len(wanted), vocab) edited logits, or None.
        chosen: int32 (len(wanted),) sampled tokens, or None.
        wanted: int64, rows that got a token.
        input_logits: float32 (positions, vocab) of the wanted input positions, or None.
    """
    asked = request.logprobs
    assert asked is not None
    lazy = LazyLogprobs(rows=len(request), wanted=wanted, top=asked.top, token_ids=asked.token_ids)
    if logits is not None and chosen is not None:
        if asked.after_temperature:
            logits = logits / mx.array(request.sampling.temperature[wanted])[:, None]
        logprobs = log_softmax(logits)
        lazy.chosen = mx.take_along_axis(logprobs, chosen[:, None], axis=-1)[:, 0]
        lazy.output = _reduce(logprobs, wanted, asked.top, asked.token_ids)
    if (
        input_logits is not None
        and asked.input_start is not None
        and asked.input_targets is not None
    ):
        counts = np.maximum(request.new_lens - asked.input_start, 0)
        owners = np.repeat(np.arange(len(request)), counts)
        logprobs = log_softmax(input_logits)
        targets = mx.array(asked.input_targets)
        lazy.input_values = mx.take_along_axis(logprobs, targets[:, None], axis=-1)[:, 0]
        lazy.input_reduced = _reduce(logprobs, owners, asked.top, asked.token_ids)
        lazy.input_owners = owners
    return lazy


def _reduce(
    logprobs: mx.array, owners: np.ndarray, top: np.ndarray, token_ids: list[list[int] | None]
) -> _Reduced:
    reduced = _Reduced()
    if not len(owners):
        return reduced
    k = int(top[owners].max())
    if k:
        k = min(k, logprobs.shape[-1])
        part = mx.argpartition(-logprobs, kth=k - 1, axis=-1)[:, :k]
        found = mx.take_along_axis(logprobs, part, axis=-1)
        order = mx.argsort(-found, axis=-1)
        reduced.ids = mx.take_along_axis(part, order, axis=-1)
        reduced.values = mx.take_along_axis(found, order, axis=-1)
    widest = max((len(token_ids[row] or ()) for row in owners), default=0)
    if widest:
        index = np.zeros((len(owners), widest), np.int32)
        for i, row in enumerate(owners):
            ids = token_ids[row] or ()
            index[i, : len(ids)] = ids
        reduced.asked = mx.take_along_axis(logprobs, mx.array(index), axis=-1)
    return reduced


def _lists(
    reduced: _Reduced, owners: np.ndarray, top: np.ndarray, token_ids: list[list[int] | None]
) -> tuple[list[list[float]], list[list[int]], list[list[float]]]:
    values: list[list[float]] = [[] for _ in owners]
    ids: list[list[int]] = [[] for _ in owners]
    asked: list[list[float]] = [[] for _ in owners]
    if reduced.values is not None and reduced.ids is not None:
        all_values, all_ids = np.array(reduced.values), np.array(reduced.ids)
        for i, row in enumerate(owners):
            count = int(top[row])
            values[i] = all_values[i, :count].tolist()
            ids[i] = all_ids[i, :count].tolist()
    if reduced.asked is not None:
        found = np.array(reduced.asked)
        for i, row in enumerate(owners):
            asked[i] = found[i, : len(token_ids[row] or ())].tolist()
    return values, ids, asked
