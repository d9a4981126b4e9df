"""Vendors as users have them: separate distributions, installed with pip, found by name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
QUIET_QUEUE = ROOT / "examples" / "sglang-mlx-quiet-queue"
INT8_KV = ROOT / "examples" / "sglang-mlx-int8-kv"
EVERYTHING = ROOT / "tests" / "vendors" / "everything"


def install_vendor(path: Path, target: Path) -> Path:
    """Install the distribution in `path` into the folder `target`, once.

    Put `target` on ``PYTHONPATH`` (see `vendor_environ`) and its entry points are found. The
    folder appears whole or not at all, so test processes may share it.

    Returns:
        `target`.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        # A copy, since building leaves files in the source, and two tests may build at once.
        source, built = Path(folder, "source"), Path(folder, "built")
        shutil.copytree(path, source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"),
                *("--no-build-isolation", "--no-cache-dir", "--disable-pip-version-check"),
                *("--target", str(built), str(source)),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        try:
            built.rename(target)
        except OSError:
            if not target.exists():
                raise
    return target


def vendor_environ(*targets: Path, **variables: str) -> dict[str, str]:
    """The environment of a process that has these vendors installed."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith("SGLANG_MLX_")
    }
    path = [*map(str, targets), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**clean, "PYTHONPATH": os.pathsep.join(path), **variables}


def run_python(
    code: str, environ: Mapping[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a piece of Python in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=dict(environ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run_command(
    *arguments: str, environ: Mapping[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``sglang-mlx ARGUMENTS`` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sglang_mlx_plugin.cli", *arguments],
        env=dict(environ),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def list_hooks(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What ``sglang-mlx hooks --json`` says, by hook name."""
    done = run_command("hooks", "--json", environ=environ)
    assert done.returncode == 0, done.stderr
    return {hook["name"]: hook for hook in json.loads(done.stdout)["hooks"]}
