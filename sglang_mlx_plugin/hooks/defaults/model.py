"""The built-in loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_mlx_plugin.hooks.markers import hookimpl

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import LoadedModel, LoadRequest


@hookimpl(trylast=True)
def sglang_mlx_load_model(request: LoadRequest) -> LoadedModel:
    """Built-in: the folder through mlx-lm."""
    from sglang_mlx_plugin.engine.loading import load_model

    return load_model(request)
