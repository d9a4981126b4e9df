"""The contract table: every upstream symbol that this package leans on.

A test walks our source with ``ast`` and fails on a use without a row and on a row without a
use; ``sglang-mlx contracts --used-by-us`` prints both. Rows live in ``rows``, one module for
each part of the host.
"""

from __future__ import annotations

from .contract import Contract, NotReached
from .rows import batch, hybrid, launch, platform, pools, runner, worker

__all__ = ["NOT_REACHED", "SUPPORTED", "TABLE"]

# The support window: each of these is launched for real by `make test-releases`.
SUPPORTED: tuple[str, ...] = ("0.5.21", "0.5.22", "0.5.23")

TABLE: tuple[Contract, ...] = (
    *launch.ROWS,
    *platform.ROWS,
    *worker.ROWS,
    *runner.ROWS,
    *pools.ROWS,
    *batch.ROWS,
    *hybrid.ROWS,
)

NOT_REACHED: tuple[NotReached, ...] = (
    NotReached(
        role="worker",
        attributes=("target_worker",),
        why="read only when the worker is a speculative one, which is refused at start-up",
    ),
    NotReached(
        role="runner",
        attributes=("eager_runner",),
        why="read by the recapture of CUDA graphs, which a weight update asks for only when "
        "graphs were captured",
    ),
    NotReached(
        role="runner",
        attributes=("kv_cache_configurator",),
        why="read for sliding-window pools only; is_hybrid_swa is False here",
    ),
    NotReached(
        role="KV pool",
        attributes=("needs_paged_swa_allocator", "request_window"),
        why="read after an isinstance check for DeepSeek V4's own pool",
    ),
)
