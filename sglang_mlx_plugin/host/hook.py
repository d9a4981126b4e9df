"""One hook of ours on a function of SGLang's, and whether it is in force.

`HookRegistry` wraps the target in a function that keeps the hook in its closure. `problem`
looks for ours there, in what the name really resolves to, so it does not matter who else
hooked, replaced or restored what, or when.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Hook"]


@dataclass(frozen=True)
class Hook:
    """One hook of ours on SGLang.

    Attributes:
        target: Dotted name of the function or method.
        function: What is put there.
        kind: Name of the `HookType`.
        fails: What a user would meet if it were missing.
        essential: Without it nothing is MLX's; no setting lets a launch go on.
        only_if_loaded: Registered only where SGLang has loaded the module by itself: importing
            the HTTP server into a process that embeds an `Engine` would be waste.
        loaded_with: A module that loads the target's later: where it is loaded, this counts as
            loaded too.
    """

    target: str
    function: Callable[..., Any]
    kind: Literal["BEFORE", "AFTER", "AROUND", "REPLACE"]
    fails: str
    essential: bool = False
    only_if_loaded: bool = False
    loaded_with: str = ""

    @property
    def loaded(self) -> bool:
        """Whether SGLang has loaded the target's module, or is sure to."""
        return self.module in sys.modules or self.loaded_with in sys.modules

    @property
    def module(self) -> str:
        """The module that holds the target: the dotted name up to the first class."""
        parts = self.target.split(".")[:-1]
        if parts[-1][:1].isupper():
            parts.pop()
        return ".".join(parts)

    def problem(self) -> str | None:
        """Why it is not in force in this process, as a clause, or None."""
        owner, _, name = self.target.rpartition(".")
        try:
            found = getattr(pkgutil.resolve_name(owner), name)
        except (ImportError, AttributeError):
            return f"SGLang has no {self.target}"
        layer: Any = getattr(found, "__func__", found)
        while layer is not None:
            held = [cell.cell_contents for cell in getattr(layer, "__closure__", None) or ()]
            if any(item is self.function for item in held):
                return None
            beneath = getattr(layer, "__wrapped__", None)
            keeps = any(item is beneath for item in held)
            if self.kind == "REPLACE" and held and not keeps:
                # A replacement keeps nothing of what it replaces, ours included.
                other = next((item for item in held if callable(item)), layer)
                return f"another plugin replaced {self.target} with {_name_of(other)}"
            layer = beneath
        return f"the hook on {self.target} is not in place"


def _name_of(function: Any) -> str:
    module = getattr(function, "__module__", "?")
    return f"{module}.{getattr(function, '__qualname__', function)}"
