"""The beginning of a launch, tried without one: for ``sglang-mlx doctor``."""

from __future__ import annotations

from typing import Any

__all__ = ["chosen_platform", "verify"]


def chosen_platform() -> dict[str, Any]:
    """The platform that SGLang chooses in this process, and whether it is ours."""
    from sglang.srt.platforms import current_platform

    from .platform import MlxPlatform

    return {"platform": repr(current_platform), "ours": isinstance(current_platform, MlxPlatform)}


def verify() -> None:
    """Load SGLang's plugins as every launch does, and look at what is then in place.

    Raises:
        LaunchError: with the sentence that would stop the launch.
    """
    from sglang.srt.plugins import load_plugins

    from . import launch

    load_plugins()
    launch.verify_launch()
