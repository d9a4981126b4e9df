"""What SGLang's in-tree MLX backend needs to run where its gate says no; used by nothing else.

The backend checks for a Mac. The harness lifts that in the contestant's processes alone, by a
``sitecustomize`` that stands on their ``PYTHONPATH`` and nowhere else.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

__all__ = ["environment", "write_site"]

_SITE = '''\
"""Written by `sglang-mlx bench` for its in-tree contestant; see sglang_mlx_plugin/bench."""
import ctypes
import importlib.abc
import importlib.util
import sys

LIBRARY = {library!r}
if LIBRARY:
    ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_GLOBAL)
from sglang_mlx_plugin.host import torchvision_cure

torchvision_cure.install()


def lift_gate(module):
    # The gate asks for torch's MPS and MLX's Metal device; MLX computes without them.
    module._validate_runtime = lambda: None


def add_loop(module):
    # Off a Mac the scheduler is built without the backend's own event loop.
    from sglang.srt.hardware_backend.mlx.scheduler_mixin import SchedulerMlxOverlapMixin as mixin

    for name, value in vars(mixin).items():
        if not hasattr(module.Scheduler, name):
            setattr(module.Scheduler, name, value)


CHANGES = {{
    "sglang.srt.hardware_backend.mlx.runtime": lift_gate,
    "sglang.srt.managers.scheduler": add_loop,
}}


class Changed(importlib.abc.Loader):
    def __init__(self, loader, change):
        self.loader, self.change = loader, change

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        self.change(module)

    def __getattr__(self, name):
        return getattr(self.loader, name)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        change = CHANGES.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        spec.loader = Changed(spec.loader, change)
        return spec


sys.meta_path.insert(0, Finder())
'''


def write_site(folder: Path, library: Path | None) -> Path:
    """Write the ``sitecustomize``; returns the folder for ``PYTHONPATH``."""
    folder.mkdir(parents=True, exist_ok=True)
    text = textwrap.dedent(_SITE).format(library=str(library) if library else "")
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    return folder


def environment(site: Path) -> dict[str, str]:
    """Variables that choose the in-tree backend and hide every plugin, ours first of all."""
    return {
        "SGLANG_USE_MLX": "1",
        # No entry point has this name, so none is loaded, of platforms or of hooks.
        "SGLANG_PLUGINS": "none-of-them",
        "PYTHONPATH": str(site),
    }
