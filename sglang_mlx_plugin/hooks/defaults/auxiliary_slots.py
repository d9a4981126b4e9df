"""The built-in share of auxiliary-state slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_mlx_plugin.hooks.markers import hookimpl

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import ConcurrencyLimits


@hookimpl(trylast=True)
def sglang_mlx_auxiliary_slots_per_request(limits: ConcurrencyLimits) -> int:
    """Built-in: 4 with the radix cache, 1 without."""
    from sglang_mlx_plugin.host.concurrency import auxiliary_slots_per_request

    return auxiliary_slots_per_request(limits)
