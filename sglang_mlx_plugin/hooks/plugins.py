"""Who stands behind an answer: plugins and their implementations, found and described."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from sglang_mlx_plugin._version import __version__

from .errors import HookError

__all__ = ["DISTRIBUTION", "GROUP", "Implementation", "Plugin", "load_vendors", "normalize"]

GROUP = "sglang_mlx_plugin"
DISTRIBUTION = "sglang-mlx-plugin"


def normalize(name: str) -> str:
    """A distribution's or plugin's name as packaging compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


@dataclass(frozen=True, eq=False)
class Plugin:
    """One registered plugin.

    Attributes:
        name: Entry point's name, or ``builtin.<module>``.
        distribution: Distribution that it was installed from.
        version: Version of that distribution.
        module: The module or object that carries the implementations.
        builtin: Whether it is one of ours.
    """

    name: str
    distribution: str
    version: str
    module: Any = field(repr=False)
    builtin: bool = False

    @classmethod
    def ours(cls, module: Any) -> Plugin:
        """A built-in plugin: one module of `sglang_mlx_plugin.hooks.defaults`."""
        name = "builtin." + module.__name__.rpartition(".")[2]
        return cls(name, DISTRIBUTION, __version__, module, builtin=True)

    def __str__(self) -> str:
        return f"plugin {self.name!r} (distribution {self.distribution} {self.version})"

    def goes_by(self, name: str) -> bool:
        """Whether `name` is this plugin's or its distribution's."""
        return normalize(name) in (normalize(self.name), normalize(self.distribution))


@dataclass(frozen=True, eq=False)
class Implementation:
    """One plugin's implementation of one hook.

    Attributes:
        hook: Name of the hook.
        plugin: Who implements it.
        source: ``module:function``.
        wrapper: Whether it wraps the others instead of answering.
        tryfirst: Whether it asks to be called before others.
        state: ``active``, or why it is never called: ``not chosen`` or ``unknown hook``.
    """

    hook: str
    plugin: Plugin
    source: str
    wrapper: bool = False
    tryfirst: bool = False
    state: str = "active"

    def __str__(self) -> str:
        return f"{self.plugin}, hook {self.hook}"


def load_vendors(disabled: Sequence[str]) -> tuple[list[Plugin], list[Plugin]]:
    """Import every vendor's entry point.

    Args:
        disabled: Names of plugins or distributions to leave out; those are not imported.

    Returns:
        Loaded plugins and disabled ones (whose `Plugin.module` is None), each sorted by
        distribution and name, so that the order never depends on ``sys.path``.

    Raises:
        HookError: If one fails to import, or two bear one name.
    """
    loaded: list[Plugin] = []
    left_out: list[Plugin] = []
    for entry in sorted(entry_points(group=GROUP), key=_sort_key):
        plugin = _describe(entry, None)
        if any(plugin.goes_by(name) for name in disabled):
            left_out.append(plugin)
            continue
        twin = next((other for other in loaded if other.name == plugin.name), None)
        if twin is not None:
            raise HookError(
                f"Two distributions bring a plugin named {plugin.name!r}: {twin.distribution} "
                f"{twin.version} and {plugin.distribution} {plugin.version}. Uninstall one, or "
                f"disable it by its distribution: SGLANG_MLX_DISABLE_PLUGINS="
                f"{plugin.distribution}."
            )
        try:
            module = entry.load()
        # Any failure, SystemExit included: a vendor's module must not end the server in
        # silence.
        except (Exception, SystemExit) as error:
            raise HookError(
                f"The {plugin} failed to import ({entry.value}): {type(error).__name__}: "
                f"{error}. Repair or uninstall {plugin.distribution}, or start without it: "
                f"SGLANG_MLX_DISABLE_PLUGINS={plugin.name}."
            ) from error
        loaded.append(_describe(entry, module))
    return loaded, left_out


def _describe(entry: EntryPoint, module: Any) -> Plugin:
    dist = entry.dist
    if dist is None:
        return Plugin(entry.name, "unknown", "unknown", module)
    return Plugin(entry.name, dist.name, dist.version, module)


def _sort_key(entry: EntryPoint) -> tuple[str, str]:
    return (normalize(entry.dist.name) if entry.dist is not None else "", entry.name)
