"""SGLang's batch to the engine's step, and the step's output back: here and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.utils import GenerationBatchResult

from sglang_mlx_plugin.engine.types import LogprobRows, SamplingRows, StepRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    from sglang_mlx_plugin.engine.step import PendingStep
    from sglang_mlx_plugin.engine.types import LogprobsOutput

__all__ = ["PendingBatchResult", "RowSeeds", "sampling_rows", "step_request"]


class RowSeeds:
    """The seed of each request row.

    A request that names a seed keeps it, whatever it shares a batch with; one that does not
    gets a fresh one whenever it starts to prefill.

    Args:
        max_rows: Highest request row.
        random_seed: The server's ``--random-seed``, from which fresh seeds are drawn.
    """

    def __init__(self, max_rows: int, random_seed: int) -> None:
        self._seeds = np.zeros(max_rows + 1, np.uint64)
        self._fresh = np.random.default_rng(random_seed & 0xFFFFFFFFFFFFFFFF)

    def assign(self, row: int, seed: int | None) -> None:
        """Set the seed of a row that prefills."""
        if seed is None:
            self._seeds[row] = self._fresh.integers(0, 1 << 63, dtype=np.uint64)
        else:
            self._seeds[row] = np.uint64(seed & 0xFFFFFFFFFFFFFFFF)

    def take(self, rows: NDArray[np.int32]) -> NDArray[np.uint64]:
        """Seeds of `rows`."""
        return self._seeds[rows]


def step_request(batch: ScheduleBatch, seeds: RowSeeds, vocab_size: int) -> StepRequest:
    """Translate a batch that is about to run.

    Args:
        batch: SGLang's batch, its inputs resolved.
        seeds: Seeds by request row; rows that prefill are assigned here.
        vocab_size: Width of the logits.
    """
    count = len(batch.reqs)
    rows = batch.req_pool_indices_cpu.numpy().astype(np.int32)
    total = batch.seq_lens_cpu.numpy().astype(np.int32)
    if batch.forward_mode.is_decode():
        new = np.ones(count, np.int32)
        decode = np.ones(count, np.bool_)
        needs_token = np.ones(count, np.bool_)
        token_ids = np.zeros(0, np.int32)
    else:
        new = np.array(batch.extend_lens, np.int32)
        decode = np.zeros(count, np.bool_)
        running = len(batch.decoding_reqs or ())
        if running:
            # A mixed batch: the running requests follow the prefilling ones.
            decode[count - running :] = True
        needs_token = np.array([req is not batch.chunked_req for req in batch.reqs], np.bool_)
        prefill_tokens = int(new[~decode].sum())
        token_ids = batch.input_ids[:prefill_tokens].numpy().astype(np.int32)
        for req, row, is_decode in zip(batch.reqs, rows, decode, strict=True):
            if not is_decode:
                seeds.assign(int(row), req.sampling_params.sampling_seed)
    longest = int(total.max())
    table = batch.req_to_token_pool.req_to_token
    slots = table[batch.req_pool_indices_cpu, :longest].numpy()
    return StepRequest(
        rows=rows,
        prefix_lens=total - new,
        new_lens=new,
        decode=decode,
        token_ids=token_ids,
        kv_slots=slots,
        needs_token=needs_token,
        sampling=sampling_rows(batch.sampling_info, seeds.take(rows), vocab_size),
        logprobs=_logprob_rows(batch, new, decode) if batch.return_logprob else None,
    )


def sampling_rows(
    info: SamplingBatchInfo, seeds: NDArray[np.uint64], vocab_size: int
) -> SamplingRows:
    """Translate sampling parameters, penalties and grammar masks.

    Penalties come accumulated on the forward-only copy that the overlapped scheduler makes;
    the plain scheduler leaves accumulating to whoever samples.
    """
    if info.acc_additive_penalties is None and info.penalizer_orchestrator is not None:
        info.update_penalties()
    allowed = None
    if info.grammar_mask is not None:
        # Applied to zeros, whatever the grammar backend's mask looks like inside.
        probe = torch.zeros((len(info), vocab_size), dtype=torch.float32)
        info.grammar_mask.apply(probe)
        allowed = torch.isfinite(probe).numpy()
    return SamplingRows(
        temperature=info.temperatures.reshape(-1).numpy(),
        top_p=info.top_ps.numpy(),
        top_k=info.top_ks.numpy(),
        min_p=info.min_ps.numpy(),
        seeds=seeds,
        additive=_edit(info.acc_additive_penalties, vocab_size, 0.0),
        scaling=_edit(info.acc_scaling_penalties, vocab_size, 1.0),
        allowed=allowed,
        bias=_edit(info.logit_bias, vocab_size, 0.0),
    )


def _edit(edit: torch.Tensor | None, vocab_size: int, neutral: float) -> NDArray[np.float32] | None:
    """A (B, vocab) edit as float32, fitted to the width of the model's logits."""
    if edit is None:
        return None
    values = edit.to(torch.float32).numpy()
    missing = vocab_size - values.shape[1]
    if missing > 0:
        values = np.pad(values, ((0, 0), (0, missing)), constant_values=neutral)
    return values[:, :vocab_size]


def _logprob_rows(
    batch: ScheduleBatch, new: NDArray[np.int32], decode: NDArray[np.bool_]
) -> LogprobRows:
    top = [int(number or 0) for number in batch.top_logprobs_nums]
    ids = [list(wanted) if wanted is not None else None for wanted in batch.token_ids_logprobs]
    rows = LogprobRows(
        output=np.array([req.return_logprob for req in batch.reqs], np.bool_),
        top=np.array(top, np.int32),
        token_ids=ids,
    )
    if batch.forward_mode.is_extend():
        rows.input_start = np.array(batch.extend_logprob_start_lens, np.int32)
        targets = batch.extend_input_logprob_token_ids.numpy().astype(np.int32)
        # Decoding rows of a mixed batch start at 0 and bring no targets of their own.
        rows.input_start = np.where(decode, new, rows.input_start).astype(np.int32)
        rows.input_targets = targets[: int((new - rows.input_start).sum())]
    return rows


class PendingBatchResult(GenerationBatchResult):
    """A result that SGLang may queue while the device still works on it.

    The overlapped scheduler calls `copy_to_cpu` when it launches a batch and
    ``copy_done.synchronize()`` when it processes it, one batch later: that is when the
    step is read.
    """

    pending: PendingStep | None = None
    input_counts: list[int] | None = None

    def bind(self, pending: PendingStep, request: StepRequest) -> PendingBatchResult:
        """Attach the running step; `next_token_ids` is a placeholder until `synchronize`."""
        self.pending = pending
        self.next_token_ids = torch.zeros(len(request), dtype=torch.int64)
        asked = request.logprobs
        if asked is not None and asked.input_start is not None:
            self.input_counts = (request.new_lens - asked.input_start).tolist()
        if asked is not None:
            self._token_ids_asked = asked.token_ids
        return self

    def copy_to_cpu(self, return_logprob: bool, return_hidden_states: bool = True) -> None:
        """Nothing to copy: results are read on the host when they are processed."""
        self.copy_done = self

    def synchronize(self) -> None:
        """Wait for the step and fill the fields in."""
        if self.pending is None:
            return
        output = self.pending.read()
        self.next_token_ids = torch.from_numpy(output.tokens.astype(np.int64))
        if output.logprobs is not None:
            fill_logprobs(
                self.logits_output, output.logprobs, self.input_counts, self._token_ids_asked
            )
        self.pending = None


def fill_logprobs(
    target: LogitsProcessorOutput,
    found: LogprobsOutput,
    input_counts: list[int] | None,
    token_ids: list[list[int] | None],
) -> None:
    """Write logprobs the way SGLang's result processor reads them.

    Args:
        target: SGLang's output.
        found: The engine's.
        input_counts: Input positions of each row, or None for a decode step.
        token_ids: The ids asked for, by row.
    """
    target.next_token_logprobs = torch.from_numpy(found.chosen)
    target.next_token_top_logprobs_val = [np.array(v, np.float32) for v in found.top_values]
    target.next_token_top_logprobs_idx = [np.array(v, np.int64) for v in found.top_ids]
    target.next_token_token_ids_logprobs_val = [
        np.array(v, np.float32) for v in found.token_values
    ]
    target.next_token_token_ids_logprobs_idx = [ids or [] for ids in token_ids]
    if input_counts is None:
        return
    values = found.input_values if found.input_values is not None else np.zeros(0, np.float32)
    target.input_token_logprobs = torch.from_numpy(values)
    ends = np.cumsum(input_counts).tolist()

    def by_row(flat: list[Any]) -> list[list[Any]]:
        return [flat[end - count : end] for count, end in zip(input_counts, ends, strict=True)]

    target.input_top_logprobs_val = by_row(found.input_top_values)
    target.input_top_logprobs_idx = by_row(found.input_top_ids)
    target.input_token_ids_logprobs_val = by_row(found.input_token_values)
    target.input_token_ids_logprobs_idx = [
        [ids or []] * count for ids, count in zip(token_ids, input_counts, strict=True)
    ]
