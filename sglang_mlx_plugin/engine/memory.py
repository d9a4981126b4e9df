"""How much memory the engine may take, and how many tokens that is.

One budget: ``--mem-fraction-static`` of the device's working-set limit holds the weights and
the KV store. Activations live in the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import DeviceKind

__all__ = ["MemoryBudget", "apply_limits", "kv_capacity"]


@dataclass(frozen=True)
class MemoryBudget:
    """The budget in bytes.

    Attributes:
        working_set: What the device can hold without paging.
        static: The share for weights and KV.
        weights: What the weights take.
        auxiliary: What is set aside for state that is not sliceable by token.
    """

    working_set: int
    static: int
    weights: int
    auxiliary: int = 0

    @property
    def kv(self) -> int:
        """What is left for KV."""
        return self.static - self.weights - self.auxiliary


def kv_capacity(
    budget: MemoryBudget, bytes_per_token: int, requested: int | None, context_len: int
) -> int:
    """Tokens that the KV store holds.

    Args:
        budget: The memory budget.
        bytes_per_token: Bytes of one token over all layers; 0 for a model without KV.
        requested: ``--max-total-tokens``, or None.
        context_len: The model's context, for the message.

    Raises:
        RuntimeError: If not one token fits, or `requested` is not positive.
    """
    if requested is not None and requested < 1:
        raise RuntimeError(
            f"--max-total-tokens {requested} leaves no room for a request; give 2 or more, or "
            "leave it unset to size the KV cache from memory."
        )
    if not bytes_per_token:
        return requested or max(context_len, 1) * 64
    fits = budget.kv // bytes_per_token
    if fits < 2:
        raise RuntimeError(
            f"No memory is left for the KV cache: the weights take {budget.weights / 1e9:.2f} GB "
            f"and auxiliary state {budget.auxiliary / 1e9:.2f} GB of the "
            f"{budget.static / 1e9:.2f} GB that --mem-fraction-static allows; raise it, "
            "or choose a smaller or quantised model."
        )
    if requested is not None and requested > fits:
        raise RuntimeError(
            f"--max-total-tokens {requested} needs "
            f"{requested * bytes_per_token / 1e9:.2f} GB of KV cache, but "
            f"{budget.kv / 1e9:.2f} GB are left beside the weights; the largest value that fits "
            f"is {fits}."
        )
    return requested if requested is not None else int(fits)


def apply_limits(device: DeviceKind, budget: MemoryBudget) -> None:
    """Tell MLX's allocator the budget, so that its cache of freed buffers stays in bounds."""
    if device == "metal":
        mx.set_wired_limit(budget.working_set)
    # Freed activations are kept for reuse, and what is beyond the limit goes back to the
    # system. An eighth of a GPU's memory is plenty; a CPU's activations are small.
    share = 32 if device == "cpu" else 8
    mx.set_cache_limit(max(budget.working_set // share, 1 << 28))
