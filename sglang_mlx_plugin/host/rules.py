"""What can become of one of SGLang's server arguments or request fields on MLX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Honoured", "Irrelevant", "Refused", "Rule", "any_of", "at_most"]


@dataclass(frozen=True)
class Honoured:
    """The argument or field does what it does elsewhere.

    Attributes:
        by: ``sglang`` or the module of ours that sees to it.
    """

    by: str = "sglang"


@dataclass(frozen=True)
class Irrelevant:
    """It cannot matter on MLX; a server argument that is set gives one line of warning.

    Attributes:
        why: A clause that follows "because".
        silent: Settings that say what is true anyway (``--disable-cuda-graph``).
    """

    why: str
    silent: bool = False


@dataclass(frozen=True)
class Refused:
    """It asks for something that MLX cannot do; the launch stops, or the request is a 400.

    Attributes:
        why: What follows the flag or field and its value.
        instead: What to do, after a semicolon.
        accepts: Whether a value asks for nothing and may pass, besides the default.
    """

    why: str
    instead: str = "leave it out"
    accepts: Callable[[Any], bool] = field(default=lambda value: False)


Rule = Honoured | Irrelevant | Refused


def any_of(*values: Any) -> Callable[[Any], bool]:
    """Accepts these values, besides the default."""
    return lambda value: value in values


def at_most(limit: int) -> Callable[[Any], bool]:
    """Accepts numbers up to `limit`."""
    return lambda value: value is None or value <= limit
