"""The built-in defaults for SGLang's arguments."""

from __future__ import annotations

from typing import Any

from sglang_mlx_plugin.hooks.markers import hookimpl


@hookimpl(trylast=True)
def sglang_mlx_server_args_defaults(server_args: Any) -> dict[str, object]:
    """Built-in: what MLX wants otherwise than SGLang."""
    from sglang_mlx_plugin.host.arguments import server_args_defaults

    return server_args_defaults(server_args)
