"""The one error of the hook system."""

from __future__ import annotations

__all__ = ["HookError"]


class HookError(RuntimeError):
    """A plugin cannot be used, or answered what cannot be used; the launch must stop.

    The text is one or two sentences that name the hook, the plugin, its distribution and
    version, what came, what was expected, and what to do.
    """
