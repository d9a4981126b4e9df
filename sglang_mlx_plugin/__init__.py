"""Serve language models on Apple's MLX through the standard SGLang server.

For vendors: ``from sglang_mlx_plugin import hookimpl`` marks a function as the
implementation of a hook of `sglang_mlx_plugin.hookspecs`. See ``docs/hooks.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .hooks import specs as hookspecs
    from .hooks.markers import hookimpl, hookspec

__all__ = ["__version__", "hookimpl", "hookspec", "hookspecs"]


def __getattr__(name: str) -> Any:
    # Lazy, because SGLang imports this package in every process through its entry points,
    # also where MLX is never used: there it should cost nothing.
    if name in ("hookimpl", "hookspec"):
        from .hooks import markers

        return getattr(markers, name)
    if name == "hookspecs":
        from .hooks import specs

        return specs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
