"""SGLang's configuration namespaces: which setting lives behind which ``get_...()``.

Since 0.5.21 ``get_schedule().max_total_tokens`` reads a bag that is filled from classes in
``arg_groups/fields``, each with its path in ``_NS_PATH``. The bag answers any name at run
time and fails late; the classes tell beforehand.
"""

from __future__ import annotations

import ast
from functools import cached_property

from .model import ClassModel, FunctionNode
from .universe import Universe

__all__ = ["Namespaces", "config_path"]

_FIELDS = "sglang/srt/arg_groups/fields/"


def config_path(function: FunctionNode) -> str | None:
    """``schedule`` for a function that is ``return <context>.config_bag("schedule")``."""
    last = function.body[-1]
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Call):
        return None
    call = last.value
    if isinstance(call.func, ast.Attribute) and call.func.attr == "config_bag" and call.args:
        path = call.args[0]
        if isinstance(path, ast.Constant) and isinstance(path.value, str):
            return path.value
    return None


class Namespaces:
    """The namespace classes of one release; empty for a release without them."""

    def __init__(self, universe: Universe) -> None:
        self._universe = universe

    @cached_property
    def _classes(self) -> dict[str, list[ClassModel]]:
        found: dict[str, list[ClassModel]] = {}
        for tree in self._universe.trees:
            for path in tree.paths(_FIELDS):
                module = self._universe.module(path.removesuffix(".py").replace("/", "."))
                for cls in self._universe.classes_in(module) if module is not None else []:
                    where = cls.members.get("_NS_PATH")
                    if where is not None and isinstance(where.value, ast.Constant):
                        found.setdefault(str(where.value.value), []).append(cls)
        return found

    def has(self, path: str) -> bool:
        """Whether ``path`` is a namespace or leads to one."""
        return any(known == path or known.startswith(f"{path}.") for known in self._classes)

    def owner(self, path: str, name: str) -> ClassModel | None:
        """The class that declares setting ``name`` in namespace ``path``."""
        return next((cls for cls in self._classes.get(path, []) if name in cls.members), None)

    def every(self) -> list[ClassModel]:
        """All namespace classes; together they are the fields of ``ServerArgs``."""
        return [cls for classes in self._classes.values() for cls in classes]
