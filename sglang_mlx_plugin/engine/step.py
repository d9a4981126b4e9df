"""The engine: one model, one KV store, one thread that runs steps.

`Engine.step` builds a step's graph on lazy arrays (a decoding row's input is the token that
the step before has not read back yet), hands it to `mx.async_eval` and returns at once;
`PendingStep.read` waits for the tokens. So a caller can build the next step before it reads
this one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from sglang_mlx_plugin.engine import logprobs as logprobs_module
from sglang_mlx_plugin.engine.kernels import Kernels
from sglang_mlx_plugin.engine.penalties import PenaltyState
from sglang_mlx_plugin.engine.planner import MAX_PADDING, ForwardPass, plan, split_at_borders
from sglang_mlx_plugin.engine.types import StepOutput, StepRequest

if TYPE_CHECKING:
    from sglang_mlx_plugin.engine.aux_store import AuxStore
    from sglang_mlx_plugin.engine.caches import CacheLayout
    from sglang_mlx_plugin.engine.head import HeadGate
    from sglang_mlx_plugin.engine.logprobs import LazyLogprobs
    from sglang_mlx_plugin.engine.types import SamplingRows
    from sglang_mlx_plugin.hooks.types import KVStore, LoadedModel, LogitsProcessor, Sampler

__all__ = ["Engine", "Forwarded", "PendingStep"]


class PendingStep:
    """A step that may still be running.

    Attributes:
        tokens: int32 (B,), lazy.
    """

    def __init__(self, tokens: mx.array, logprobs: LazyLogprobs | None) -> None:
        self.tokens = tokens
        self._logprobs = logprobs
        self._output: StepOutput | None = None

    def read(self) -> StepOutput:
        """Wait for the step and return its results (the same object each time)."""
        if self._output is None:
            tokens = np.array(self.tokens, dtype=np.int32)
            logprobs = None if self._logprobs is None else self._logprobs.read()
            self._output = StepOutput(tokens=tokens, logprobs=logprobs)
        return self._output


@dataclass(slots=True)
class Forwarded:
    """A step whose forward passes are built.

    Attributes:
        request: The step.
        logits: float32 (rows that need a token, vocab), lazy; None if no row does.
        input_logits: float32 (positions, vocab) for input logprobs, lazy; None if unasked.
    """

    request: StepRequest
    logits: mx.array | None
    input_logits: mx.array | None


class Engine:
    """Runs steps of one model.

    Args:
        loaded: The model.
        layout: How the model's caches map onto the stores.
        kv_store: Keys and values.
        process_logits: Applies grammar masks and biases.
        sampler: Chooses tokens.
        head: The gate in front of the model's output head.
        max_rows: Highest request row.
        aux_store: State that is not sliceable by token; None for a model without.
        kernels: What its passes use in place of mlx-lm's functions, installed already.

    MLX streams belong to threads: the engine must be used in the thread that made it.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        layout: CacheLayout,
        kv_store: KVStore | None,
        process_logits: LogitsProcessor,
        sampler: Sampler,
        head: HeadGate,
        max_rows: int,
        aux_store: AuxStore | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self.loaded = loaded
        self.layout = layout
        self.kv_store = kv_store
        self.aux_store = aux_store
        self.kernels = kernels or Kernels()
        self.process_logits = process_logits
        self.sampler = sampler
        self.head = head
        self._last_tokens = mx.zeros((max_rows + 1,), mx.int32)
        self._penalties = PenaltyState(loaded.vocab_size)
        self._thread = threading.get_ident()
        self._sampler_checked = False

    def step(self, request: StepRequest) -> PendingStep:
        """Start one step: `forward`, then `sample`.

        Raises:
            RuntimeError: When called from another thread than the engine's own.
        """
        return self.sample(self.forward(request))

    def forward(self, request: StepRequest) -> Forwarded:
        """Start a step's forward passes.

        A caller whose logit edits are not known yet (a grammar that waits for the token
        before) calls this, works on the host while the device runs, and then `sample`.

        Raises:
            RuntimeError: When called from another thread than the engine's own.
        """
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "an engine is used from the thread that made it: MLX streams belong to threads"
            )
        logits, input_logits = self._forward(request)
        return Forwarded(request, logits, input_logits)

    def start(self, forwarded: Forwarded) -> None:
        """Hand the forward passes to the device without waiting for `sample`."""
        pending = [a for a in (forwarded.logits, forwarded.input_logits) if a is not None]
        mx.async_eval(*pending, *self.state())

    def sample(self, forwarded: Forwarded, sampling: SamplingRows | None = None) -> PendingStep:
        """Add sampling to a step and hand it to the device.

        Args:
            forwarded: What `forward` gave.
            sampling: Replaces the request's sampling parameters, for edits that were not
                known before.
        """
        request, logits = forwarded.request, forwarded.logits
        if sampling is not None:
            request.sampling = sampling
        tokens = mx.zeros((len(request),), mx.int32)
        lazy_logprobs = None
        wanted = np.flatnonzero(request.needs_token)
        edited = chosen = None
        pending_counts: list[mx.array] = []
        if logits is not None:
            rows = request.sampling
            every = len(wanted) == len(request)
            if not every:
                rows = rows.take(wanted)
            request_rows = request.rows[wanted]
            penalised = logits
            if rows.penalties is not None:
                penalised = self._penalties.apply(logits, request_rows, rows.penalties)
            edited = self.process_logits(penalised, rows)
            positions = mx.array(request.total_lens[wanted].astype(np.int32))
            chosen = self._sample(edited, rows, positions)
            if every:
                tokens = chosen
            else:
                tokens[mx.array(wanted)] = chosen
            self._last_tokens[mx.array(request_rows)] = chosen
            if rows.penalties is not None:
                self._penalties.count(request_rows, chosen)
                pending_counts = self._penalties.arrays()
        if request.logprobs is not None:
            lazy_logprobs = logprobs_module.collect(
                request, edited, chosen, wanted, forwarded.input_logits
            )
        pending = [tokens, *self.state(), *pending_counts]
        if lazy_logprobs is not None:
            pending += lazy_logprobs.arrays()
        mx.async_eval(*pending)
        return PendingStep(tokens, lazy_logprobs)

    def forget(self, row: int) -> None:
        """Let go of what is kept for a request row whose request has ended."""
        self._penalties.forget(row)

    def state(self) -> list[mx.array]:
        """Arrays that outlive a step; evaluated with it, or the graph would grow."""
        stored = self.kv_store.arrays() if self.kv_store is not None else []
        if self.aux_store is not None:
            stored += self.aux_store.take_unevaluated()
        return [self._last_tokens, *stored]

    def _forward(self, request: StepRequest) -> tuple[mx.array | None, mx.array | None]:
        """Run the model; logits of the rows that need a token, and of input positions."""
        head, request = split_at_borders(request)
        if head is not None:
            for part in self._plan(head):
                self._run(part, np.zeros(0, np.int64), keep_state=True)
        passes = self._plan(request)
        blocks: list[mx.array] = []
        owners: list[np.ndarray] = []
        input_blocks: list[mx.array] = []
        input_owners: list[np.ndarray] = []
        for part in passes:
            picks, token_rows, input_rows = _head_positions(request, part)
            out = self._run(part, picks)
            if len(token_rows):
                blocks.append(out[: len(token_rows)])
                owners.append(token_rows)
            if len(input_rows):
                input_blocks.append(out[len(token_rows) :])
                input_owners.append(input_rows)
        return _in_order(blocks, owners), _in_order(input_blocks, input_owners)

    def _plan(self, request: StepRequest) -> list[ForwardPass]:
        return plan(
            request,
            row_by_row=self.layout.row_by_row,
            max_padding=MAX_PADDING if self.layout.padded else 0.0,
        )

    def _run(self, part: ForwardPass, picks: np.ndarray, *, keep_state: bool = False) -> mx.array:
        if part.decode:
            tokens = self._last_tokens[mx.array(part.rows)][:, None]
        else:
            assert part.tokens is not None
            tokens = mx.array(part.tokens)
        if self.aux_store is None:
            caches = self.layout.caches(part.view, self.kv_store)
            with self.kernels.active():
                return self.head.run(self.loaded.model, tokens, caches, picks)
        states = self.aux_store.caches(part.view)
        caches = self.layout.caches(part.view, self.kv_store, states)
        with self.kernels.active():
            out = self.head.run(self.loaded.model, tokens, caches, picks)
        self.aux_store.store(part.view, states, keep=keep_state)
        return out

    def _sample(self, logits: mx.array, rows: SamplingRows, positions: mx.array) -> mx.array:
        chosen = self.sampler(logits, rows, positions)
        if not self._sampler_checked:
            if chosen.shape != (logits.shape[0],):
                raise TypeError(
                    f"the sampler answered shape {chosen.shape} for {logits.shape[0]} rows; "
                    "one token a row is expected"
                )
            self._sampler_checked = True
        return chosen.astype(mx.int32)


def _head_positions(
    request: StepRequest, part: ForwardPass
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Flat positions (row * N + step) of a pass that need logits.

    Returns:
        The positions, rows that need a token first; the owners of those; and, for input
        logprobs, keys that order the rest as the request lists them.
    """
    width = part.view.width
    members = part.members
    wants = np.flatnonzero(request.needs_token[members])
    last = wants * width + part.view.host_new_lens[wants] - 1
    none = np.zeros(0, np.int64)
    asked = request.logprobs
    if asked is None or asked.input_start is None:
        return last, members[wants], none
    extra, keys = [], []
    for i, row in enumerate(members):
        steps = np.arange(int(asked.input_start[row]), int(request.new_lens[row]))
        extra.append(i * width + steps)
        keys.append(int(row) * (1 << 32) + steps)
    return (
        np.concatenate([last, *extra]),
        members[wants],
        np.concatenate(keys) if keys else none,
    )


def _in_order(blocks: list[mx.array], owners: list[np.ndarray]) -> mx.array | None:
    if not blocks:
        return None
    if len(blocks) == 1:
        joined, owner = blocks[0], owners[0]
    else:
        joined, owner = mx.concatenate(blocks), np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    if (order == np.arange(len(order))).all():
        return joined
    return joined[mx.array(order)]
