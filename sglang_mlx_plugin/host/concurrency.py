"""How many requests run at once: the built-in answers to the two concurrency hooks.

Plain arithmetic on `ConcurrencyLimits`, without SGLang, so that a vendor's hook can call it
and a test can try every value. Errors are sentences for the user: they name the flag, its
value and the smallest value that works.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import ConcurrencyLimits

__all__ = [
    "auxiliary_pool_size",
    "auxiliary_slots_per_request",
    "resolve_max_running_requests",
]

logger = logging.getLogger(__name__)

DEFAULT_CAP = 4096
TOKENS_PER_REQUEST = 2
# One live slot; the others hold the snapshots that the radix tree keeps of finished
# prefixes and the state tracked at chunk borders while a prompt is read.
SLOTS_WITH_RADIX_CACHE = 4
SLOTS_WITHOUT_RADIX_CACHE = 1


def auxiliary_slots_per_request(limits: ConcurrencyLimits) -> int:
    """Auxiliary-state slots that each running request may hold.

    Args:
        limits: Only ``disable_radix_cache`` is read.
    """
    return SLOTS_WITHOUT_RADIX_CACHE if limits.disable_radix_cache else SLOTS_WITH_RADIX_CACHE


def resolve_max_running_requests(limits: ConcurrencyLimits) -> int:
    """The concurrency cap of one worker.

    Args:
        limits: Where ``auxiliary_slots_per_request`` is None, the built-in's is used.

    Returns:
        A number above 0.

    Raises:
        RuntimeError: If no request could run, whatever the cause.
    """
    asked = _asked_per_worker(limits)
    capacity = limits.max_total_num_tokens // TOKENS_PER_REQUEST
    if capacity < 1:
        raise RuntimeError(
            f"The KV cache holds max_total_num_tokens={limits.max_total_num_tokens} tokens, too "
            f"few for a single request: give --max-total-tokens at least {TOKENS_PER_REQUEST}, "
            "or, with that flag unset, a larger --mem-fraction-static."
        )
    resolved = min(capacity, DEFAULT_CAP if asked is None else asked)
    backed = _backed_by_auxiliary_pool(limits)
    if backed is not None:
        resolved = min(resolved, backed)
    if asked is not None and resolved < asked:
        logger.warning(
            "--max-running-requests %s asks for %d running requests on this worker, which was "
            "reduced to %d: %s.",
            limits.requested,
            asked,
            resolved,
            _reason(limits, resolved, capacity),
        )
    return resolved


def auxiliary_pool_size(limits: ConcurrencyLimits, max_running: int) -> int:
    """Auxiliary-state slots of one worker.

    An unset ``max_mamba_cache_size`` is sized from the cap, with the same ratio that the
    cap is derived with otherwise, so that the two cannot drift apart.

    Args:
        limits: The limits that `max_running` was resolved from.
        max_running: The concurrency cap.

    Returns:
        0 for a model without auxiliary state.
    """
    if not limits.is_hybrid:
        return 0
    if limits.max_mamba_cache_size is None:
        return max_running * _slots(limits)
    return limits.max_mamba_cache_size // _workers(limits)


def _workers(limits: ConcurrencyLimits) -> int:
    if limits.attn_dp_size < 1:
        raise RuntimeError(
            f"attn_dp_size={limits.attn_dp_size} workers cannot share a cache; it must be at "
            "least 1."
        )
    return limits.attn_dp_size


def _slots(limits: ConcurrencyLimits) -> int:
    given = limits.auxiliary_slots_per_request
    return auxiliary_slots_per_request(limits) if given is None else given


def _asked_per_worker(limits: ConcurrencyLimits) -> int | None:
    if limits.requested is None:
        return None
    if limits.requested < 1:
        raise RuntimeError(
            f"--max-running-requests {limits.requested} lets no request run: give at least 1, "
            "or leave the flag unset."
        )
    return max(1, limits.requested // _workers(limits))


def _backed_by_auxiliary_pool(limits: ConcurrencyLimits) -> int | None:
    if not limits.is_hybrid or limits.max_mamba_cache_size is None:
        return None
    workers, slots = _workers(limits), _slots(limits)
    backed = (limits.max_mamba_cache_size // workers) // slots
    if backed < 1:
        raise RuntimeError(
            f"--max-mamba-cache-size {limits.max_mamba_cache_size} "
            f"(max_mamba_cache_size={limits.max_mamba_cache_size}) backs no running request: "
            f"each may hold {slots} auxiliary-state slots on each of {workers} worker(s). Give "
            f"at least {workers * slots}, or leave the flag unset to size the pool from the "
            "concurrency cap."
        )
    return backed


def _reason(limits: ConcurrencyLimits, resolved: int, capacity: int) -> str:
    if resolved == capacity:
        return (
            f"the KV cache holds {limits.max_total_num_tokens} tokens, "
            f"{TOKENS_PER_REQUEST} for each request"
        )
    return (
        f"--max-mamba-cache-size {limits.max_mamba_cache_size} gives each request "
        f"{_slots(limits)} auxiliary-state slots"
    )
