"""The built-in logits processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_mlx_plugin.hooks.markers import hookimpl

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import LogitsProcessor, LogitsProcessorSpec


@hookimpl(trylast=True)
def sglang_mlx_create_logits_processor(spec: LogitsProcessorSpec) -> LogitsProcessor:
    """Built-in: the grammar mask, then the bias."""
    from sglang_mlx_plugin.engine.sampling import create_logits_processor

    return create_logits_processor(spec)
