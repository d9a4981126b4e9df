"""SGLang's worker: its scheduler hands batches in and takes results out here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.runtime_context import get_model, get_schedule

from sglang_mlx_plugin.host.requests import (
    PendingBatchResult,
    RowTable,
    sampling_rows,
    step_request,
)
from sglang_mlx_plugin.host.runner import MlxModelRunner

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch

    from sglang_mlx_plugin.engine.step import Forwarded

__all__ = ["MlxTpModelWorker"]


class MlxTpModelWorker(TpModelWorker):
    """Runs SGLang's batches on the MLX engine.

    With SGLang's overlapped scheduler two steps are in flight: a batch's result is returned
    while the device works on it, and is read when SGLang processes it, after the next batch
    has been launched on this one's still lazy tokens.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        runner = self.model_runner
        self._table = RowTable(runner.max_running_requests, self.random_seed)
        self._vocab_size = runner.engine.loaded.vocab_size

    def _init_model_runner(self) -> None:
        self._model_runner = MlxModelRunner(
            model_config=self.model_config,
            mem_fraction_static=get_schedule().mem_fraction_static,
            gpu_id=self.gpu_id,
            nccl_port=self.nccl_port,
            server_args=self.server_args,
            is_draft_worker=self.is_draft_worker,
            req_to_token_pool=self.req_to_token_pool,
            token_to_kv_pool_allocator=self.token_to_kv_pool_allocator,
            memory_pool_config=self.memory_pool_config,
        )

    def forward_batch_generation(
        self,
        batch: ScheduleBatch | None,
        forward_batch: Any = None,
        pp_proxy_tensors: Any = None,
        is_verify: bool = False,
        skip_attn_backend_init: bool | None = None,
        *,
        capture_hidden_mode: Any = None,
        return_kv_loc_plan: bool = False,
    ) -> PendingBatchResult:
        """Launch a batch.

        Args:
            batch: SGLang's batch. The other arguments belong to speculative decoding and
                pipeline parallelism, which are refused at start-up.

        Raises:
            RuntimeError: If called without a batch.
        """
        if batch is None:
            raise RuntimeError(
                "SGLang passed a torch forward batch, which MLX cannot run: speculative "
                "decoding is not available on MLX."
            )
        engine = self.model_runner.engine
        result = PendingBatchResult(logits_output=LogitsProcessorOutput(next_token_logits=None))
        if not batch.reqs:
            return result
        request = step_request(batch, self._table, self._vocab_size)
        forwarded = engine.forward(request)
        # Upstream fills this in when it makes a torch forward batch, which never happens here.
        batch.sampling_info.grammars = (
            [req.grammar for req in batch.reqs] if batch.has_grammar else None
        )
        if self.enable_overlap and batch.has_grammar:
            # The mask of this token depends on the token before, which SGLang reads while
            # the device runs these forward passes.
            engine.start(forwarded)
            result.delay_sample_func = _DelayedSample(self, batch, forwarded, result)
            return result
        sampling = None
        if batch.has_grammar:
            batch.sampling_info.update_regex_vocab_mask()
            sampling = sampling_rows(
                batch.sampling_info,
                request.sampling.seeds,
                request.sampling.penalties,
                self._vocab_size,
            )
        result.bind(engine.sample(forwarded, sampling), request)
        if not self.enable_overlap:
            result.synchronize()
        return result

    def prepare_for_kv_cache_release(self, req: Req) -> None:
        """SGLang is about to release a finished request's row."""
        if req.kv.req_pool_idx is not None:
            self.model_runner.engine.forget(int(req.kv.req_pool_idx))

    def forward_batch_embedding(self, batch: ScheduleBatch) -> NoReturn:
        """Refused: ``--is-embedding`` is refused at start-up."""
        raise RuntimeError("embedding models are not served on MLX yet")

    def forward_batch_split_prefill(self, batch: ScheduleBatch) -> NoReturn:
        """Refused: ``--enable-pdmux`` is refused at start-up."""
        raise RuntimeError("split prefill (--enable-pdmux) is not available on MLX")

    def start_startup_weight_load(self) -> None:
        """Weights load before the pools are sized; overlapping the two is not possible."""
        mode = get_model().startup_weight_load_mode
        raise RuntimeError(
            f"--startup-weight-load-mode {mode} is not available on MLX: the KV cache is sized "
            "from what the weights leave; leave the option out."
        )


class _DelayedSample:
    """Samples a launched batch once the token before is known to its grammars."""

    def __init__(
        self,
        worker: MlxTpModelWorker,
        batch: ScheduleBatch,
        forwarded: Forwarded,
        result: PendingBatchResult,
    ) -> None:
        self._worker = worker
        self._info = batch.sampling_info
        self._forwarded = forwarded
        self._result = result

    def __call__(self) -> PendingBatchResult:
        self._info.update_regex_vocab_mask()
        request = self._forwarded.request
        known = request.sampling
        rows = sampling_rows(self._info, known.seeds, known.penalties, self._worker._vocab_size)
        pending = self._worker.model_runner.engine.sample(self._forwarded, rows)
        return self._result.bind(pending, request)
