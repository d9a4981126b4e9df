"""Reports kept between runs, as JSON files in the user's cache directory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .report import Report

__all__ = ["cache_directory", "load_report", "our_fingerprint", "store_report"]

_PACKAGE = Path(__file__).resolve().parents[1]


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Our folder under the user's cache directory; ``SGLANG_MLX_CACHE_DIR`` overrides it."""
    given = environ.get("SGLANG_MLX_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "sglang-mlx"
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sglang-mlx"


def our_fingerprint(package: Path = _PACKAGE) -> str:
    """Digest of our own source: a changed table or override makes a new one."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if name.parts[0] == "engine":
            continue  # Never touches SGLang.
        digest.update(str(name).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _file(key: str) -> Path:
    return cache_directory() / "contracts" / f"{key}.json"


def load_report(key: str) -> Report | None:
    """The report stored under ``key``; None when there is none that can be read."""
    try:
        return Report.from_json(json.loads(_file(key).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def store_report(key: str, report: Report) -> None:
    """Keep ``report``; a cache that cannot be written costs time, never the launch."""
    path = _file(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two processes may check at once; each writes its own file and renames it.
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(report.as_json(), file)
        os.replace(name, path)
