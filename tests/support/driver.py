"""Drives the engine without SGLang: slots, rows, chunks and prefix hits by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sglang_mlx_plugin.engine.device import lend_blas

lend_blas()

from sglang_mlx_plugin.engine import assemble, kv_store, sampling  # noqa: E402
from sglang_mlx_plugin.engine.step import Engine, PendingStep  # noqa: E402
from sglang_mlx_plugin.engine.types import (  # noqa: E402
    TOP_K_ALL,
    SamplingRows,
    StepRequest,
)
from sglang_mlx_plugin.hooks.defaults import attention, swiglu  # noqa: E402
from sglang_mlx_plugin.hooks.types import LoadedModel  # noqa: E402

# Auxiliary slots beyond one for each row, for states kept at chunk borders.
SNAPSHOTS = 200


def greedy_rows(count: int) -> SamplingRows:
    """Sampling parameters of `count` greedy rows."""
    return sampling_rows(count, top_k=1)


def sampling_rows(
    count: int,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = TOP_K_ALL,
    min_p: float = 0.0,
    seeds: list[int] | None = None,
) -> SamplingRows:
    """The same sampling parameters for `count` rows."""
    return SamplingRows(
        temperature=np.full(count, temperature, np.float32),
        top_p=np.full(count, top_p, np.float32),
        top_k=np.full(count, top_k, np.int32),
        min_p=np.full(count, min_p, np.float32),
        seeds=np.array(seeds if seeds is not None else range(count), np.uint64),
    )


def engine_of(
    model: Any, config: dict[str, Any], *, capacity: int = 4096, rows: int = 16
) -> Engine:
    """An engine over a model that a test has built."""
    vocab = int(np.array(_logits_width(model)))
    loaded = LoadedModel(
        model=model,
        config=config,
        vocab_size=vocab,
        dtype="float32",
        weight_bytes=0,
        eos_token_ids=(),
        family=str(config["model_type"]),
    )
    prepared = assemble.prepare(loaded, device="cpu", mem_fraction_static=0.5)
    return assemble.build_engine(
        prepared,
        capacity=capacity,
        kv_cache_dtype="auto",
        max_rows=rows,
        device="cpu",
        create_kv_store=kv_store.create_kv_store,
        create_attention=attention.sglang_mlx_create_attention,
        create_swiglu=swiglu.sglang_mlx_create_swiglu,
        create_logits_processor=sampling.create_logits_processor,
        create_sampler=sampling.create_sampler,
        auxiliary_slots=rows + SNAPSHOTS,
    )


def _logits_width(model: Any) -> int:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    return int(model(mx.array([[1]]), cache=make_prompt_cache(model)).shape[-1])


@dataclass
class Sequence:
    """One request as the driver sees it."""

    row: int
    prompt: list[int]
    slots: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    stored: int = 0
    states: dict[int, int] = field(default_factory=dict)

    @property
    def remaining(self) -> int:
        """Prompt tokens that are not computed yet."""
        return len(self.prompt) - self.stored


class Driver:
    """Allocates slots in a shuffled order, so that no test leans on contiguous ones.

    A sequence's auxiliary state is in the slot of its row; the states at the ends of its
    chunks are kept in slots of their own, as SGLang's radix tree does it, and a sequence that
    shares a prefix starts from the deepest of them.
    """

    def __init__(
        self, engine: Engine, *, capacity: int = 4096, rows: int = 16, seed: int = 0
    ) -> None:
        self.engine = engine
        self._free = list(range(1, capacity + 1))
        random.Random(seed).shuffle(self._free)
        self._rows = list(range(1, rows + 1))
        self._states = list(range(rows + 1, rows + 1 + SNAPSHOTS))
        if engine.aux_store is not None:
            engine.aux_store.clear_all()

    def add(
        self, prompt: list[int], *, shared: Sequence | None = None, prefix: int = 0
    ) -> Sequence:
        """A new sequence, whose first `prefix` tokens lie in `shared`'s slots."""
        sequence = Sequence(row=self._rows.pop(), prompt=list(prompt))
        if self.engine.aux_store is not None:
            self.engine.aux_store.clear([sequence.row])
        if shared is not None:
            if self.engine.aux_store is not None:
                prefix = max((at for at in shared.states if at <= prefix), default=0)
                if prefix:
                    self.engine.aux_store.fork(shared.states[prefix], sequence.row)
            sequence.slots = shared.slots[:prefix]
            sequence.stored = prefix
        return sequence

    def drop(self, sequence: Sequence, *, keep: int = 0) -> None:
        """End a sequence; its slots but for the first `keep` are free again."""
        self._rows.append(sequence.row)
        self._states += sequence.states.values()
        sequence.states = {}
        self._free += sequence.slots[keep:]
        sequence.slots = sequence.slots[:keep]

    def step(
        self,
        prefill: list[tuple[Sequence, int]] = (),  # type: ignore[assignment]
        decode: list[Sequence] = (),  # type: ignore[assignment]
        sampling_params: SamplingRows | None = None,
        borders: list[int] | None = None,
    ) -> PendingStep:
        """One engine step: chunks of some sequences, one token of others."""
        sequences = [sequence for sequence, _ in prefill] + list(decode)
        new = [length for _, length in prefill] + [1] * len(decode)
        prefix, tokens = [], []
        for sequence, length in zip(sequences, new, strict=True):
            prefix.append(sequence.stored)
            sequence.slots += [self._free.pop() for _ in range(length)]
            if sequence.remaining:
                tokens += sequence.prompt[sequence.stored : sequence.stored + length]
            sequence.stored += length
        widest = max(len(sequence.slots) for sequence in sequences)
        table = np.zeros((len(sequences), widest), np.int32)
        for i, sequence in enumerate(sequences):
            table[i, : len(sequence.slots)] = sequence.slots
        is_decode = np.array([False] * len(prefill) + [True] * len(decode))
        done = np.array([sequence.remaining <= 0 for sequence in sequences])
        pending = self.engine.step(
            StepRequest(
                rows=np.array([sequence.row for sequence in sequences], np.int32),
                prefix_lens=np.array(prefix, np.int32),
                new_lens=np.array(new, np.int32),
                decode=is_decode,
                token_ids=np.array(tokens, np.int32),
                kv_slots=table,
                needs_token=done,
                sampling=sampling_params or greedy_rows(len(sequences)),
                aux_slots=(
                    np.array([sequence.row for sequence in sequences], np.int32)
                    if self.engine.aux_store is not None
                    else None
                ),
                borders=None if borders is None else np.array(borders, np.int32),
            )
        )
        for sequence, _ in prefill:
            self.keep_state(sequence)
        self._owed = [s for s, ready in zip(sequences, done, strict=True) if ready]
        self._at = np.flatnonzero(done)
        return pending

    def keep_state(self, sequence: Sequence) -> None:
        """Keep the auxiliary state that the sequence has now."""
        if self.engine.aux_store is not None and self._states:
            slot = self._states.pop()
            assert self.engine.aux_store.snapshot(sequence.row, slot, sequence.stored)
            sequence.states[sequence.stored] = slot

    def read(self, pending: PendingStep) -> None:
        """Append the step's tokens to its sequences (before the next `step`)."""
        tokens = pending.read().tokens
        for sequence, at in zip(self._owed, self._at, strict=True):
            sequence.output.append(int(tokens[at]))

    def prefill(self, sequences: list[Sequence], chunk: int) -> None:
        """Prefill sequences together in chunks, until each has its first token."""
        while True:
            parts = [(s, min(chunk, s.remaining)) for s in sequences if s.remaining > 0]
            if not parts:
                return
            self.read(self.step(prefill=parts))

    def decode(self, sequences: list[Sequence], count: int) -> None:
        """`count` more tokens for each sequence, with two steps in flight."""
        flying: tuple[PendingStep, list[Sequence]] | None = None
        for _ in range(count):
            pending = self.step(decode=sequences)
            if flying is not None:
                self._take(*flying)
            flying = (pending, list(sequences))
        if flying is not None:
            self._take(*flying)

    @staticmethod
    def _take(pending: PendingStep, sequences: list[Sequence]) -> None:
        for sequence, token in zip(sequences, pending.read().tokens, strict=True):
            sequence.output.append(int(token))
