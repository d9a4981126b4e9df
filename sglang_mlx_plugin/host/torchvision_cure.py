"""Lets torchvision be imported where its compiled operators cannot be loaded.

What breaks without it: beside a CPU build of torch, the torchvision that the package index
serves for Linux is linked against CUDA; its ``_C.so`` does not load, and ``import
torchvision`` ends in ``RuntimeError: operator torchvision::nms does not exist``. SGLang
imports torchvision unconditionally, in every process, while ``import sglang`` runs.

How it works: torchvision loads ``torchvision.extension`` before anything that needs its
operators, and that module says whether they came (``_has_ops()``). A finder on
`sys.meta_path` waits for exactly that module and, only when the operators did not come,
declares the schemas of the two that torchvision then describes to torch by name. A working
torchvision, and every Mac, is left alone. Serving text never calls the operators.

When it can go: when torchvision guards those two registrations by ``_has_ops()`` itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

__all__ = ["declare_missing_operators", "install", "took_effect"]

_EXTENSION = "torchvision.extension"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

# torch.library drops a library's schemas when the object dies.
_kept: list[Any] = []


def install() -> None:
    """Wait for torchvision's import; idempotent, and free until torchvision is imported."""
    if sys.platform != "linux" or _EXTENSION in sys.modules:
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def took_effect() -> bool:
    """Whether torchvision was imported in this process and needed the cure."""
    return bool(_kept)


def declare_missing_operators(extension: ModuleType) -> bool:
    """Declare the schemas if `extension` (``torchvision.extension``) has no operators.

    Returns:
        Whether anything was declared.
    """
    if extension._has_ops() or _kept:
        return False
    # torch is loaded already: torchvision.extension itself imports it.
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        if not hasattr(torch.ops.torchvision, schema.partition("(")[0]):
            library.define(schema)
    _kept.append(library)
    return True


class _Finder(MetaPathFinder):
    """Wraps the loader of ``torchvision.extension``, then steps aside."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _EXTENSION:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Runs the real loader and then looks at what it loaded."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        declare_missing_operators(module)

    def __getattr__(self, name: str) -> Any:
        # Whatever else is asked of a loader (get_source, get_data) is the real one's.
        return getattr(self._loader, name)
