"""Where a run took place: machine, versions, commit. Nothing here needs ``/proc``."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["commit", "load", "machine", "versions"]

_DISTRIBUTIONS = (
    *("sglang-mlx-plugin", "sglang", "mlx", "mlx-cpu", "mlx-lm", "torch", "transformers"),
    *("vllm-mlx", "aiohttp", "uvloop"),
)


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system, and what bounds threads."""
    return {
        "cpu": _cpu(),
        "architecture": platform.machine(),
        "cores": _cores(),
        "memory_bytes": _memory_bytes(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "threads": {
            name: os.environ[name]
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
            if name in os.environ
        },
    }


def versions() -> dict[str, str]:
    """Installed versions of what takes part."""
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> dict[str, Any] | None:
    """The commit of the checkout that runs, and whether files differ from it; None outside one."""
    root = Path(__file__).resolve().parents[2]
    head = _output("git", "-C", str(root), "rev-parse", "HEAD")
    if head is None:
        return None
    changes = _output(
        *("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"),
        *("--", "sglang_mlx_plugin"),
    )
    return {"commit": head, "changed": bool(changes)}


def load() -> float | None:
    """The one-minute load average, where there is one."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu() -> str:
    if sys.platform == "darwin":
        brand = _output("sysctl", "-n", "machdep.cpu.brand_string")
        if brand:
            return brand
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _output(*argv: str) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
