"""What SGLang finds through its two entry-point groups, in every process of a server.

SGLang calls `activate` when `sglang.srt.platforms.current_platform` is first read, which is
while `import sglang` runs, and `register` from `sglang.srt.plugins.load_plugins`. Both only
log an exception, so a failure of ours is kept here and raised where SGLang listens: at the
gate (`sglang_mlx_plugin.host.launch`), which the platform itself also enters.

Importing this module loads the standard library only.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import DeviceChoice

__all__ = ["activate", "device_choice", "failures", "register"]

PLATFORM = "sglang_mlx_plugin.host.platform.MlxPlatform"

_failures: list[str] = []
_choice: DeviceChoice | None = None
_registered = False


def activate() -> str | None:
    """Entry point ``mlx`` of ``sglang.srt.platforms``.

    Returns:
        The dotted name of the platform, or None to leave SGLang to its own platforms. When
        the decision itself fails (a vendor's hook raises), the answer is the platform, which
        then stops the launch with that failure: None would start a server without MLX.
    """
    if not _takes_part():
        return None
    try:
        from sglang_mlx_plugin.host import torchvision_cure

        torchvision_cure.install()
    except Exception as error:
        _record("could not prepare the import of torchvision", error)
    return PLATFORM


def register() -> None:
    """Entry point ``mlx`` of ``sglang.srt.plugins``: registers the hooks, once a process."""
    global _registered
    if _registered or not _takes_part():
        return
    _registered = True
    try:
        from sglang_mlx_plugin.host import launch

        launch.register_hooks()
    except Exception as error:
        _record("could not register its hooks with SGLang", error)


def device_choice() -> DeviceChoice:
    """The device of this process; decided once, by the hook ``sglang_mlx_device``."""
    global _choice
    if _choice is None:
        from sglang_mlx_plugin.hooks import get_hooks

        _choice = get_hooks().device(os.environ)
    return _choice


def failures() -> tuple[str, ...]:
    """What went wrong in this process's entry points, for the gate to report."""
    return tuple(_failures)


def _takes_part() -> bool:
    """Whether MLX serves in this process."""
    asked = os.environ.get("SGLANG_PLATFORM") == "mlx"
    if find_spec("mlx") is None and not asked:
        return False
    try:
        choice = device_choice()
    except Exception as error:
        _record("could not choose a device", error)
        return True
    if not choice.active and asked:
        # SGLang itself would say only that the hardware is not available, in a stack trace.
        _note_failure(f"SGLANG_PLATFORM=mlx asks for MLX, but it cannot serve: {choice.reason}")
        return True
    return choice.active


def _record(what: str, error: Exception) -> None:
    kind = type(error)
    own = kind.__module__.startswith("sglang_mlx_plugin") or kind is ValueError
    words = str(error) if own else f"{kind.__name__}: {error}"
    _note_failure(f"the MLX plugin {what}: {words}")


def _note_failure(sentence: str) -> None:
    if sentence not in _failures:
        _failures.append(sentence)
