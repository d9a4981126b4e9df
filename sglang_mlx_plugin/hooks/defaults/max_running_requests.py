"""The built-in concurrency cap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_mlx_plugin.hooks.markers import hookimpl

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import ConcurrencyLimits


@hookimpl(trylast=True)
def sglang_mlx_resolve_max_running_requests(limits: ConcurrencyLimits) -> int:
    """Built-in: what the KV cache and the auxiliary-state pool can back."""
    from sglang_mlx_plugin.host.concurrency import resolve_max_running_requests

    return resolve_max_running_requests(limits)
