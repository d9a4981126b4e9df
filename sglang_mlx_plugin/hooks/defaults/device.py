"""The built-in choice of device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sglang_mlx_plugin.hooks.markers import hookimpl

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import DeviceChoice


@hookimpl(trylast=True)
def sglang_mlx_device(environ: Mapping[str, str]) -> DeviceChoice:
    """Built-in: Metal, else MLX's CUDA build, else CPU."""
    from sglang_mlx_plugin.engine.device import choose_device

    return choose_device(environ)
