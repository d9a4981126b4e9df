"""Typed, bounded reads of a GGUF file's metadata."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .errors import ModelFileError

__all__ = ["Metadata", "Value"]

Value = bool | int | float | str | list[str] | np.ndarray[Any, Any]
_MISSING: Any = object()


class Metadata:
    """A table of metadata whose values are checked when they are asked for.

    Every reader raises `ModelFileError` when the key is missing (unless it has a default) or its
    value is of another kind or out of bounds.
    """

    def __init__(self, path: Path, values: dict[str, Value]) -> None:
        self._path = path
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def fail(self, key: str, want: str) -> NoReturn:
        """Refuse the value of ``key``.

        Raises:
            ModelFileError: Always.
        """
        value = self._values.get(key, _MISSING)
        if value is _MISSING:
            got = "lacks"
        elif isinstance(value, list | np.ndarray):
            got = f"has {len(value)} values in"
        else:
            got = f"has {str(value)[:80]!r} for"
        raise ModelFileError(
            f"The GGUF file {str(self._path)!r} {got} the metadata key {key!r}, which must be "
            f"{want}: get a fresh copy or another file."
        )

    def integer(self, key: str, low: int, high: int, default: int = _MISSING) -> int:
        """A whole number from ``low`` to ``high``."""
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.fail(key, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, default: float = _MISSING) -> float:
        """A finite number from ``low`` to ``high``."""
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, "a number")
        if not math.isfinite(value) or not low <= value <= high:
            self.fail(key, f"a number from {low} to {high}")
        # The file holds float32: 1e-05 reads as 9.999999747378752e-06. The shortest decimal
        # that means the same float32 is what the model's author wrote.
        return float(str(np.float32(value)))

    def text(self, key: str, default: str = _MISSING) -> str:
        """A string."""
        value = self._values.get(key, default)
        if not isinstance(value, str):
            self.fail(key, "a text")
        return value

    def flag(self, key: str, default: bool = _MISSING) -> bool:
        """A truth value."""
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            self.fail(key, "true or false")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings."""
        value = self._values.get(key)
        if not isinstance(value, list):
            self.fail(key, "a list of texts")
        return value

    def numbers(self, key: str, count: int) -> np.ndarray[Any, Any]:
        """An array of ``count`` finite numbers."""
        value = self._values.get(key)
        if not isinstance(value, np.ndarray) or len(value) != count:
            self.fail(key, f"a list of {count} numbers")
        if not np.isfinite(value).all():
            self.fail(key, "a list of finite numbers")
        return value
