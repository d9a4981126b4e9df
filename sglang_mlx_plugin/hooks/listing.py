"""Who implements which hook, as data and as text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .manager import ENV_CHOOSE, ENV_DISABLE, ENV_TRACE, HookManager
from .plugins import Implementation, Plugin

__all__ = ["as_data", "as_text"]

VARIABLES = (ENV_DISABLE, ENV_CHOOSE, ENV_TRACE)


def as_data(manager: HookManager, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What ``sglang-mlx hooks --json`` prints.

    Args:
        manager: Whose hooks.
        environ: Where our variables are looked up; the process's by default.
    """
    environ = os.environ if environ is None else environ
    return {
        "hooks": [_hook(manager, name) for name in manager.hook_names],
        "plugins": [_plugin(plugin) for plugin in manager.plugins],
        "disabled": [_plugin(plugin) for plugin in manager.disabled],
        "environment": {name: environ[name] for name in VARIABLES if name in environ},
    }


def as_text(data: Mapping[str, Any]) -> str:
    """The same for a reader: implementations in the order of calls, the winner marked."""
    lines: list[str] = []
    for hook in data["hooks"]:
        lines.append(hook["name"])
        for found in hook["implementations"]:
            mark = "*" if found["wins"] else " "
            kinds = [
                word
                for word, holds in (
                    ("wrapper", found["wrapper"]),
                    ("tryfirst", found["tryfirst"]),
                    (found["state"], found["state"] != "active"),
                )
                if holds
            ]
            extra = f"  [{', '.join(kinds)}]" if kinds else ""
            lines.append(
                f"  {mark} {found['distribution']} {found['version']}  {found['source']}{extra}"
            )
    for found in data["disabled"]:
        lines.append(f"disabled: {found['plugin']} ({found['distribution']} {found['version']})")
    for name, value in data["environment"].items():
        lines.append(f"{name}={value}")
    lines.append("* is asked first; the next one follows where it answers None.")
    return "\n".join(lines)


def _hook(manager: HookManager, name: str) -> dict[str, Any]:
    ordered = manager.call_order(name)
    winner = manager.winner(name)
    idle = [
        found for found in manager.implementations if found.hook == name and found.state != "active"
    ]
    return {
        "name": name,
        "winner": _plugin(winner.plugin),
        "implementations": [_implementation(found, found is winner) for found in (*ordered, *idle)],
    }


def _implementation(found: Implementation, wins: bool) -> dict[str, Any]:
    return {
        **_plugin(found.plugin),
        "source": found.source,
        "wrapper": found.wrapper,
        "tryfirst": found.tryfirst,
        "state": found.state,
        "wins": wins,
    }


def _plugin(plugin: Plugin) -> dict[str, Any]:
    return {
        "plugin": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "builtin": plugin.builtin,
    }
