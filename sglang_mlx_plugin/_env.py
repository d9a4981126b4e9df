"""Every environment variable of ours, in one place; `sglang-mlx doctor` prints them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["VARIABLES", "Variable", "cache_folder", "is_set"]


@dataclass(frozen=True)
class Variable:
    """An environment variable.

    Attributes:
        name: Begins with ``SGLANG_MLX_``.
        meaning: What it does, one sentence.
        default: What holds when it is unset, in words.
    """

    name: str
    meaning: str
    default: str


VARIABLES = (
    Variable(
        "SGLANG_MLX_CACHE",
        "Folder for the default model, downloaded releases and check results.",
        "the user's cache folder",
    ),
    Variable("SGLANG_MLX_DEVICE", "MLX device to serve on: metal, cuda or cpu.", "the best there"),
    Variable(
        "SGLANG_MLX_DISABLE_PLUGINS",
        "Comma-separated distributions or plugins whose hooks are not loaded.",
        "none",
    ),
    Variable(
        "SGLANG_MLX_ALLOW_UNKNOWN_FIELDS",
        "1 drops fields of OpenAI requests that do not exist, as SGLang does, instead of a 400.",
        "0",
    ),
    Variable(
        "SGLANG_MLX_HOOKS",
        "Comma-separated hook=distribution pairs: who answers where several could.",
        "none",
    ),
    Variable(
        "SGLANG_MLX_LAUNCH_NOTE",
        "Set by a launch for its own children: where one that fails leaves its last sentence.",
        "not for users",
    ),
    Variable(
        "SGLANG_MLX_SKIP_CONTRACTS",
        "1 turns a failed contract with SGLang, or an unsupported release, into a warning.",
        "0",
    ),
    Variable(
        "SGLANG_MLX_TRACE_HOOKS",
        "1 logs each hook call with who answered and how long it took.",
        "0",
    ),
)


def is_set(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a yes-or-no variable of ours is on."""
    return environ.get(name, "").strip().lower() in ("1", "true", "yes", "on")


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this package may keep files: nothing of ours is written elsewhere."""
    named = environ.get("SGLANG_MLX_CACHE")
    if named:
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "sglang-mlx-plugin"
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sglang-mlx-plugin"
