"""How the memory beside the weights is shared: KV slots, auxiliary slots, running requests.

Plain arithmetic, without SGLang, so that a test can try every value.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sglang_mlx_plugin.engine import memory
from sglang_mlx_plugin.host.concurrency import auxiliary_pool_size

if TYPE_CHECKING:
    from sglang_mlx_plugin.engine.memory import MemoryBudget
    from sglang_mlx_plugin.hooks.types import ConcurrencyLimits

__all__ = ["Costs", "PoolSizes", "size_pools"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What things take, in bytes.

    Attributes:
        token: Keys and values of one token; 0 for a model without any.
        slot: One auxiliary slot; 0 for a model without auxiliary state.
        versions: States of a running request in memory at once: those that its slot
            remembers, and the one that the next step is making.
    """

    token: int
    slot: int = 0
    versions: int = 1


@dataclass(frozen=True, kw_only=True)
class PoolSizes:
    """What was decided.

    Attributes:
        tokens: KV capacity.
        running: Requests that may run at once.
        auxiliary: Auxiliary slots.
        auxiliary_bytes: What all auxiliary state may take.
    """

    tokens: int
    running: int
    auxiliary: int = 0
    auxiliary_bytes: int = 0


def size_pools(
    budget: MemoryBudget,
    costs: Costs,
    limits: ConcurrencyLimits,
    *,
    max_total_tokens: int | None,
    context_len: int,
    memory_ratio: float,
    resolve: Callable[[ConcurrencyLimits], int],
) -> PoolSizes:
    """Share the memory.

    Args:
        budget: The memory budget.
        costs: Bytes of a token and of a slot.
        limits: What the user and the hooks ask for; ``max_total_num_tokens`` is filled in.
        max_total_tokens: ``--max-total-tokens``, or None.
        context_len: The model's context.
        memory_ratio: ``--mamba-full-memory-ratio``: auxiliary state to KV, while neither
            the number of slots nor of requests is given.
        resolve: Answers ``sglang_mlx_resolve_max_running_requests``.

    Raises:
        RuntimeError: If the configuration does not fit; the message says by how much.
    """

    def capacity(auxiliary_bytes: int) -> int:
        left = replace(budget, auxiliary=auxiliary_bytes)
        return memory.kv_capacity(left, costs.token, max_total_tokens, context_len)

    if not limits.is_hybrid:
        tokens = capacity(0)
        return PoolSizes(tokens=tokens, running=resolve(_with(limits, tokens)))

    slots = limits.auxiliary_slots_per_request or 1
    # A running request's slot stands for several states.
    request = costs.slot * (slots + costs.versions - 1)
    if limits.max_mamba_cache_size is not None:
        total = auxiliary_pool_size(limits, 0)
        needed = total // slots * request + total % slots * costs.slot
        if needed > budget.kv:
            most = budget.kv // request * slots * limits.attn_dp_size
            raise RuntimeError(
                f"--max-mamba-cache-size {limits.max_mamba_cache_size} needs "
                f"{needed / 1e9:.2f} GB for {total} auxiliary slots of {costs.slot} bytes, but "
                f"{budget.kv / 1e9:.2f} GB are left beside the weights; the largest value that "
                f"fits is {most}."
            )
        affordable = None
    else:
        share = budget.kv
        if costs.token:
            share = int(budget.kv * memory_ratio / (1 + memory_ratio))
        affordable = share // request if request else 1 << 30
        if affordable < 1:
            raise RuntimeError(
                f"One request's auxiliary state takes {request / 1e9:.2f} GB ({slots} slots of "
                f"{costs.slot} bytes and what overlapping needs), but --mem-fraction-static and "
                f"--mamba-full-memory-ratio {memory_ratio} leave {share / 1e9:.2f} GB for it: "
                "raise one of them, or lower --context-length if the state grows with it, or "
                "give --disable-radix-cache."
            )
        needed = share if costs.token else 0
    running = resolve(_with(limits, capacity(needed)))
    if affordable is not None and running > affordable:
        if limits.requested is not None:
            logger.warning(
                "--max-running-requests %s was reduced to %d on this worker: each running "
                "request takes %.2f GB of auxiliary state.",
                limits.requested,
                affordable,
                request / 1e9,
            )
        running = affordable
    auxiliary = auxiliary_pool_size(limits, running)
    taken = auxiliary * costs.slot + running * (costs.versions - 1) * costs.slot
    return PoolSizes(
        tokens=capacity(taken), running=running, auxiliary=auxiliary, auxiliary_bytes=taken
    )


def _with(limits: ConcurrencyLimits, tokens: int) -> ConcurrencyLimits:
    return replace(limits, max_total_num_tokens=tokens)
