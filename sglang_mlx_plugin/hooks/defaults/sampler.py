"""The built-in sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_mlx_plugin.hooks.markers import hookimpl

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import Sampler, SamplerSpec


@hookimpl(trylast=True)
def sglang_mlx_create_sampler(spec: SamplerSpec) -> Sampler:
    """Built-in: one sampler for every mix of rows."""
    from sglang_mlx_plugin.engine.sampling import create_sampler

    return create_sampler(spec)
