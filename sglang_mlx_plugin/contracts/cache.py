"""Reports kept between runs, as JSON files in our cache directory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from pathlib import Path

from sglang_mlx_plugin._env import cache_folder

from .report import Report

__all__ = ["load_report", "our_fingerprint", "store_report"]

_NAMES_UPSTREAM = re.compile(rb"\bsglang\.|\bimport sglang\b")
_PACKAGE = Path(__file__).resolve().parents[1]


def our_fingerprint(package: Path = _PACKAGE) -> str:
    """Digest of our own source, as far as it concerns SGLang: this room and what names it."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        text = path.read_bytes()
        if name.parts[0] == "contracts" or _NAMES_UPSTREAM.search(text):
            digest.update(str(name).encode())
            digest.update(text)
    return digest.hexdigest()[:24]


def _file(key: str) -> Path:
    return cache_folder() / "contracts" / f"{key}.json"


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
