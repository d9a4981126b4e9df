"""The nouns of the engine: what a step asks, what it answers.

Everything here is plain Python and numpy, but for the lazy arrays of `BatchView`;
`sglang_mlx_plugin.host.requests` makes these from SGLang's batch, in one place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import mlx.core as mx
    from numpy.typing import NDArray

__all__ = [
    "BatchView",
    "LogprobRows",
    "LogprobsOutput",
    "PenaltyRows",
    "SamplingRows",
    "StepOutput",
    "StepRequest",
]

TOP_K_ALL = 1 << 30


@dataclass(frozen=True, slots=True)
class BatchView:
    """One forward pass's rows, as the caches of a KV store see them.

    Rows are right-padded to the same number of new tokens N.

    Attributes:
        prefix_lens: int32 (B,) tokens of each row that are in the store already.
        new_lens: int32 (B,) real new tokens of each row, at most N.
        kv_slots: int32 (B, S) store slots of each row's tokens, prefix and new, S at least
            the longest row; entries past a row's end name a slot of the same row, so that
            what one row computes can never reach another, not even through a mask.
        write_slots: int32 (B, N) slots for the new tokens; 0 for padding.
        aux_slots: int32 (B,) auxiliary-state slots, on the host; None for models without
            auxiliary state.
        host_prefix_lens: The same as `prefix_lens`, on the host.
        host_new_lens: The same as `new_lens`, on the host.
        host_kv_slots: The same as `kv_slots`, on the host.
        host_write_slots: The same as `write_slots`, on the host.
        max_slot: The highest slot named.
        decode: Whether each row's one new token follows its last sampled one.
    """

    prefix_lens: mx.array
    new_lens: mx.array
    kv_slots: mx.array
    write_slots: mx.array
    aux_slots: NDArray[np.int32] | None
    host_prefix_lens: NDArray[np.int32]
    host_new_lens: NDArray[np.int32]
    host_kv_slots: NDArray[np.int32]
    host_write_slots: NDArray[np.int32]
    max_slot: int
    decode: bool = False

    @property
    def batch_size(self) -> int:
        """Rows."""
        return len(self.host_new_lens)

    @property
    def width(self) -> int:
        """New tokens a row, padding included (N)."""
        return int(self.write_slots.shape[1])

    @property
    def offset(self) -> mx.array | int:
        """Position of each row's first new token: int32 (B,), or a number for a row alone."""
        if self.batch_size == 1:
            return int(self.host_prefix_lens[0])
        return self.prefix_lens

    @property
    def end(self) -> mx.array | int:
        """Position after each row's last new token, in the same form as `offset`."""
        if self.batch_size == 1:
            return int(self.host_prefix_lens[0] + self.host_new_lens[0])
        return self.prefix_lens + self.new_lens

    @property
    def uniform(self) -> bool:
        """Whether every row fills all columns of `kv_slots`: nothing is padding."""
        total = self.host_prefix_lens + self.host_new_lens
        return bool((total == self.kv_slots.shape[1]).all())

    @property
    def causal(self) -> bool:
        """Whether a plain causal mask says what each new token sees.

        It does where all rows start at the same column and the longest fills the last one;
        what a shorter row's padding sees is its own row's, and nobody reads its answer.
        """
        return bool((self.host_prefix_lens == self.kv_slots.shape[1] - self.width).all())


@dataclass(slots=True, kw_only=True)
class PenaltyRows:
    """Penalties of a batch, one entry a row.

    Attributes:
        frequency: float32 (B,), subtracted once for each time a token stands in the output.
        presence: float32 (B,), subtracted for each token that stands in the output.
        repetition: float32 (B,), above 0; logits of tokens in the output are divided by it
            if positive, multiplied if negative. 1 for none.
        min_new_tokens: int32 (B,) output tokens before a stop token may be chosen.
        outputs: int32 (B,) output tokens before the one that is chosen now.
        stop_ids: Stop tokens of each row.
        histories: Output tokens so far of a row that begins or comes back; None for a row
            that the engine is counting already.
    """

    frequency: NDArray[np.float32]
    presence: NDArray[np.float32]
    repetition: NDArray[np.float32]
    min_new_tokens: NDArray[np.int32]
    outputs: NDArray[np.int32]
    stop_ids: list[tuple[int, ...]]
    histories: list[list[int] | None]

    def take(self, rows: NDArray[np.int64]) -> PenaltyRows:
        """The penalties of some rows, in the order given."""
        return PenaltyRows(
            frequency=self.frequency[rows],
            presence=self.presence[rows],
            repetition=self.repetition[rows],
            min_new_tokens=self.min_new_tokens[rows],
            outputs=self.outputs[rows],
            stop_ids=[self.stop_ids[row] for row in rows],
            histories=[self.histories[row] for row in rows],
        )


@dataclass(slots=True, kw_only=True)
class SamplingRows:
    """Sampling parameters of a batch, one entry a row.

    Greedy rows have ``top_k == 1``, as SGLang normalises them.

    Attributes:
        temperature: float32 (B,), above 0.
        top_p: float32 (B,) in (0, 1].
        top_k: int32 (B,), `TOP_K_ALL` for no limit.
        min_p: float32 (B,) in [0, 1].
        seeds: uint64 (B,), fixed for the whole life of a request.
        penalties: Penalties over the output, or None if no row has any.
        allowed: bool (B, vocab), False for tokens that a grammar forbids; or None.
        bias: float32 (B, vocab) ``logit_bias``, added last; or None.
    """

    temperature: NDArray[np.float32]
    top_p: NDArray[np.float32]
    top_k: NDArray[np.int32]
    min_p: NDArray[np.float32]
    seeds: NDArray[np.uint64]
    penalties: PenaltyRows | None = None
    allowed: NDArray[np.bool_] | None = None
    bias: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.temperature)

    def take(self, rows: NDArray[np.int64]) -> SamplingRows:
        """The parameters of some rows, in the order given."""

        def pick(values):  # type: ignore[no-untyped-def]
            return None if values is None else values[rows]

        return SamplingRows(
            temperature=self.temperature[rows],
            top_p=self.top_p[rows],
            top_k=self.top_k[rows],
            min_p=self.min_p[rows],
            seeds=self.seeds[rows],
            penalties=None if self.penalties is None else self.penalties.take(rows),
            allowed=pick(self.allowed),
            bias=pick(self.bias),
        )

    @property
    def all_greedy(self) -> bool:
        """Whether no row draws."""
        return bool((self.top_k == 1).all())


@dataclass(slots=True, kw_only=True)
class LogprobRows:
    """Which log-probabilities a step returns.

    Attributes:
        output: bool (B,) rows whose sampled token's logprob is wanted.
        top: int32 (B,) how many top logprobs, 0 for none.
        token_ids: Extra token ids to report for each row, or None.
        input_start: int32 (B,) offset, within the row's new tokens, of the first whose
            logits are wanted for input logprobs; ``new_lens`` for none. None in decode.
        input_targets: int32 (sum of wanted,) the token that each wanted position should
            predict, row after row. None in decode.
        after_temperature: Whether logprobs are of the scaled distribution.
    """

    output: NDArray[np.bool_]
    top: NDArray[np.int32]
    token_ids: list[list[int] | None]
    input_start: NDArray[np.int32] | None = None
    input_targets: NDArray[np.int32] | None = None
    after_temperature: bool = False


@dataclass(slots=True, kw_only=True)
class StepRequest:
    """One step of the engine: some rows prefill, others decode.

    Attributes:
        rows: int32 (B,) request rows, 1 or more; the engine keeps each row's last token.
        prefix_lens: int32 (B,) tokens of the row that the store holds.
        new_lens: int32 (B,) tokens that this step computes (1 for decode).
        decode: bool (B,) rows whose one new token is the row's last sampled one.
        token_ids: int32, the prefill rows' new tokens, row after row.
        kv_slots: int32 (B, S) store slots of each row's tokens, prefix and new.
        needs_token: bool (B,) rows that get a token; False for a middle chunk.
        sampling: Sampling parameters.
        logprobs: Logprobs wanted, or None.
        aux_slots: int32 (B,) auxiliary-state slots, or None.
        borders: int32 (B,) lengths inside the rows' new tokens at which the auxiliary state
            is to be kept besides the last, 0 for none; or None. Such a row computes its
            tokens in two pieces, and reports no input logprobs.
    """

    rows: NDArray[np.int32]
    prefix_lens: NDArray[np.int32]
    new_lens: NDArray[np.int32]
    decode: NDArray[np.bool_]
    token_ids: NDArray[np.int32]
    kv_slots: NDArray[np.int32]
    needs_token: NDArray[np.bool_]
    sampling: SamplingRows
    logprobs: LogprobRows | None = None
    aux_slots: NDArray[np.int32] | None = None
    borders: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def total_lens(self) -> NDArray[np.int32]:
        """int32 (B,) tokens of each row after this step."""
        return self.prefix_lens + self.new_lens

    @property
    def token_starts(self) -> NDArray[np.int64]:
        """int64 (B,) where each row's tokens start in `token_ids`."""
        lens = np.where(self.decode, 0, self.new_lens)
        return np.concatenate(([0], np.cumsum(lens)[:-1]))


@dataclass(slots=True, kw_only=True)
class LogprobsOutput:
    """Log-probabilities of a step, on the host.

    Attributes:
        chosen: float32 (B,) logprob of each sampled token.
        top_values: One list a row, best first; empty where none were asked.
        top_ids: The tokens of `top_values`.
        token_values: One list a row for the asked token ids; empty where none were.
        input_values: float32, logprobs of the wanted input positions, row after row.
        input_top_values: One list a wanted position.
        input_top_ids: One list a wanted position.
        input_token_values: One list a wanted position.
    """

    chosen: NDArray[np.float32]
    top_values: list[list[float]] = field(default_factory=list)
    top_ids: list[list[int]] = field(default_factory=list)
    token_values: list[list[float]] = field(default_factory=list)
    input_values: NDArray[np.float32] | None = None
    input_top_values: list[list[float]] = field(default_factory=list)
    input_top_ids: list[list[int]] = field(default_factory=list)
    input_token_values: list[list[float]] = field(default_factory=list)


@dataclass(kw_only=True)
class StepOutput:
    """What a step gives once it is read.

    Attributes:
        tokens: int32 (B,) sampled tokens; 0 where `StepRequest.needs_token` is False.
        logprobs: Log-probabilities, or None if none were asked.
    """

    tokens: NDArray[np.int32]
    logprobs: LogprobsOutput | None = None

    @cached_property
    def token_list(self) -> list[int]:
        """The tokens as Python ints."""
        return [int(token) for token in self.tokens]
