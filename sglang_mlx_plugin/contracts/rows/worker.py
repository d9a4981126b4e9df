"""Rows of the worker."""

from ..contract import Contract, group

_WORKER = "sglang.srt.managers.tp_worker.TpModelWorker"
_OURS = "sglang_mlx_plugin.host.worker.MlxTpModelWorker"


def _override(name: str, why: str, breaks: str) -> Contract:
    return Contract(
        target=f"{_WORKER}.{name}", use="override", ours=f"{_OURS}.{name}", why=why, breaks=breaks
    )


ROWS: tuple[Contract, ...] = (
    _override(
        "__init__",
        "builds the runner through the base, then the rows' seeds",
        "the scheduler dies while it builds the worker",
    ),
    _override(
        "_init_model_runner",
        "puts our runner where the base builds a torch runner",
        "a torch model is loaded beside the MLX one, or instead of it",
    ),
    _override(
        "forward_batch_generation",
        "runs a batch on the engine",
        "the first request kills the server",
    ),
    _override(
        "forward_batch_embedding",
        "refuses embeddings by name",
        "an embedding request ends in a torch error",
    ),
    _override(
        "forward_batch_split_prefill",
        "refuses split prefill by name",
        "--enable-pdmux ends in a torch error",
    ),
    _override(
        "start_startup_weight_load",
        "refuses overlapped weight loading by name",
        "--startup-weight-load-mode ends in a torch error",
    ),
    Contract(
        target=f"{_WORKER}.model_runner",
        use="read",
        kind="property",
        why="the runner that the base was given",
        breaks="the scheduler dies while it builds the worker",
    ),
    Contract(
        target=f"{_WORKER}._model_runner",
        use="write",
        why="where the base keeps the runner that model_runner returns",
        breaks="the scheduler dies while it builds the worker",
    ),
    *group(
        _WORKER,
        "read",
        "gpu_id",
        "is_draft_worker",
        "memory_pool_config",
        "model_config",
        "nccl_port",
        "req_to_token_pool",
        "server_args",
        "token_to_kv_pool_allocator",
        why="what the base was built with is handed on to the runner",
        breaks="the scheduler dies while it builds the runner",
    ),
    *group(
        _WORKER,
        "read",
        "enable_overlap",
        "random_seed",
        why="set at the end of the base's constructor; says whether two steps are in flight, "
        "and what fresh seeds are drawn from",
        breaks="the scheduler dies while it builds the worker",
    ),
)
