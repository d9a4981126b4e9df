"""The built-in request-to-token pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_mlx_plugin.hooks.markers import hookimpl

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import RequestPoolSpec


@hookimpl(trylast=True)
def sglang_mlx_create_request_pool(spec: RequestPoolSpec) -> Any:
    """Built-in: SGLang's pool, with auxiliary-state slots for hybrid models."""
    from sglang_mlx_plugin.host.pools import create_request_pool

    return create_request_pool(spec)
