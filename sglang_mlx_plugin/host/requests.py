"""SGLang's batch to the engine's step, and the step's output back: here and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.utils import GenerationBatchResult

from sglang_mlx_plugin.engine.types import (
    LogprobRows,
    PenaltyRows,
    SamplingRows,
    StepRequest,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    from sglang_mlx_plugin.engine.step import PendingStep
    from sglang_mlx_plugin.engine.types import LogprobsOutput

__all__ = ["PendingBatchResult", "RowTable", "sampling_rows", "step_request"]


class RowTable:
    """What the host knows of each request row for as long as its request runs.

    Seeds: a request that names one keeps it, whatever it shares a batch with; one that does
    not gets a fresh one whenever it starts to prefill.

    Args:
        max_rows: Highest request row.
        random_seed: The server's ``--random-seed``, from which fresh seeds are drawn.
    """

    def __init__(self, max_rows: int, random_seed: int) -> None:
        size = max_rows + 1
        self.seeds = np.zeros(size, np.uint64)
        self._fresh = np.random.default_rng(random_seed & 0xFFFFFFFFFFFFFFFF)
        self._prompt = np.zeros(size, np.int32)
        self._frequency = np.zeros(size, np.float32)
        self._presence = np.zeros(size, np.float32)
        self._repetition = np.ones(size, np.float32)
        self._min_new = np.zeros(size, np.int32)
        self._penalised = np.zeros(size, np.bool_)
        self._stop_ids: dict[int, tuple[int, ...]] = {}

    def begin(self, row: int, req: Req) -> None:
        """Take a request's parameters over when it prefills in `row`."""
        params = req.sampling_params
        if params.sampling_seed is None:
            self.seeds[row] = self._fresh.integers(0, 1 << 63, dtype=np.uint64)
        else:
            self.seeds[row] = np.uint64(params.sampling_seed & 0xFFFFFFFFFFFFFFFF)
        self._prompt[row] = len(req.origin_input_ids)
        self._frequency[row] = params.frequency_penalty
        self._presence[row] = params.presence_penalty
        self._repetition[row] = params.repetition_penalty
        self._min_new[row] = params.min_new_tokens
        self._penalised[row] = (
            params.frequency_penalty != 0
            or params.presence_penalty != 0
            or params.repetition_penalty != 1
            or params.min_new_tokens > 0
        )
        if params.min_new_tokens > 0:
            self._stop_ids[row] = _stop_ids(req)

    def penalties(
        self,
        reqs: list[Req],
        rows: NDArray[np.int32],
        total_lens: NDArray[np.int32],
        decode: NDArray[np.bool_],
    ) -> PenaltyRows | None:
        """Penalties of a batch, or None if none of its rows asks for any."""
        if not self._penalised[rows].any():
            return None
        return PenaltyRows(
            frequency=self._frequency[rows],
            presence=self._presence[rows],
            repetition=self._repetition[rows],
            min_new_tokens=self._min_new[rows],
            outputs=total_lens - self._prompt[rows],
            stop_ids=[self._stop_ids.get(int(row), ()) for row in rows],
            histories=[
                None if running else list(req.output_ids)
                for req, running in zip(reqs, decode, strict=True)
            ],
        )


def _stop_ids(req: Req) -> tuple[int, ...]:
    """Every token that would end `req`, as `BatchedMinNewTokensPenalizer` collects them."""
    found = set(req.sampling_params.stop_token_ids or ()) | set(req.eos_token_ids or ())
    if req.tokenizer is not None:
        found |= set(req.tokenizer.additional_stop_token_ids or ())
        found.add(req.tokenizer.eos_token_id)
    return tuple(int(token) for token in found if token is not None)


def step_request(batch: ScheduleBatch, table: RowTable, vocab_size: int) -> StepRequest:
    """Translate a batch that is about to run.

    Args:
        batch: SGLang's batch, its inputs resolved.
        table: What is known of each request row; rows that prefill are entered here.
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
                table.begin(int(row), req)
    longest = int(total.max())
    slots = batch.req_to_token_pool.req_to_token[batch.req_pool_indices_cpu, :longest].numpy()
    return StepRequest(
        rows=rows,
        prefix_lens=total - new,
        new_lens=new,
        decode=decode,
        token_ids=token_ids,
        kv_slots=slots,
        needs_token=needs_token,
        sampling=sampling_rows(
            batch.sampling_info,
            table.seeds[rows],
            table.penalties(batch.reqs, rows, total, decode),
            vocab_size,
        ),
        logprobs=_logprob_rows(batch, new, decode) if batch.return_logprob else None,
        aux_slots=_aux_slots(batch),
        borders=_borders(batch, total - new, total),
    )


# Where a prompt's state is kept besides its end: at a multiple of this, so that the same
# prompt again, or another that begins alike, finds it. Fewer than MIN_BORDER new tokens
# before it are not worth a forward pass of their own.
BORDER_GRID = 64
MIN_BORDER = 128


def _borders(
    batch: ScheduleBatch, prefix_lens: NDArray[np.int32], total_lens: NDArray[np.int32]
) -> NDArray[np.int32] | None:
    """int32 (B,) lengths at which auxiliary state is kept for the radix tree, or None.

    A hit can be one token shorter than the prompt at most, so the state at the prompt's end
    is of no use to the same prompt; and where others have branched off, more will.
    """
    keeps = getattr(batch.req_to_token_pool, "keeps_borders", False)
    if not keeps or batch.forward_mode.is_decode() or batch.return_logprob:
        return None
    found = np.zeros(len(batch.reqs), np.int32)
    for row, req in enumerate(batch.reqs):
        prefix, total = int(prefix_lens[row]), int(total_lens[row])
        branch = req.mamba_branching_seqlen or 0
        border = (total - 1) // BORDER_GRID * BORDER_GRID
        if prefix < branch < total:
            found[row] = branch
        elif border - prefix >= MIN_BORDER and req is not batch.chunked_req:
            found[row] = border
    return found if found.any() else None


def _aux_slots(batch: ScheduleBatch) -> NDArray[np.int32] | None:
    """int32 (B,) auxiliary slots of a batch; None for a model without auxiliary state."""
    lookup = getattr(batch.req_to_token_pool, "get_mamba_indices", None)
    if lookup is None:
        return None
    slots: NDArray[np.int32] = lookup(batch.req_pool_indices_cpu).numpy().astype(np.int32)
    return slots


def sampling_rows(
    info: SamplingBatchInfo,
    seeds: NDArray[np.uint64],
    penalties: PenaltyRows | None,
    vocab_size: int,
) -> SamplingRows:
    """Translate sampling parameters, grammar masks and biases.

    SGLang's own penalties are left alone: they run a token behind the overlapped scheduler
    (`sglang_mlx_plugin.engine.penalties`).
    """
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
        penalties=penalties,
        allowed=allowed,
        bias=_bias(info.logit_bias, vocab_size),
    )


def _bias(bias: torch.Tensor | None, vocab_size: int) -> NDArray[np.float32] | None:
    """``logit_bias`` as float32 (B, vocab), fitted to the width of the model's logits."""
    if bias is None:
        return None
    values = bias.to(torch.float32).numpy()
    missing = vocab_size - values.shape[1]
    if missing > 0:
        values = np.pad(values, ((0, 0), (0, missing)))
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
    target.next_token_token_ids_logprobs_val = [np.array(v, np.float32) for v in found.token_values]
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
