"""The shape of a call (how many arguments by position, which by name) and whether it binds."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from inspect import Parameter, Signature

__all__ = ["CallShape", "brief", "call", "misfit", "narrower_than", "show"]

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class CallShape:
    """How a call passes its arguments; the values do not matter.

    Attributes:
        positional: Arguments given by position.
        keywords: Names of the arguments given by name.
        star: The call also unpacks ``*args``.
        double_star: The call also unpacks ``**kwargs``.
    """

    positional: int = 0
    keywords: tuple[str, ...] = ()
    star: bool = False
    double_star: bool = False

    @classmethod
    def of(cls, node: ast.Call) -> CallShape:
        """The shape of a call in a source file."""
        return cls(
            sum(not isinstance(a, ast.Starred) for a in node.args),
            tuple(k.arg for k in node.keywords if k.arg),
            any(isinstance(a, ast.Starred) for a in node.args),
            any(k.arg is None for k in node.keywords),
        )

    def dropping(self, count: int) -> CallShape:
        """The same call with ``count`` leading positional arguments less (or more, if negative)."""
        return CallShape(
            max(0, self.positional - count), self.keywords, self.star, self.double_star
        )

    def __str__(self) -> str:
        parts = ["_"] * self.positional
        parts += ["*"] if self.star else []
        parts += [f"{name}=" for name in self.keywords]
        parts += ["**"] if self.double_star else []
        return f"({', '.join(parts)})"


def call(positional: int = 0, *keywords: str) -> CallShape:
    """Short for a table row: ``call(1, "stop_at_pause")`` is ``f(_, stop_at_pause=...)``."""
    return CallShape(positional, keywords)


def misfit(signature: Signature, shape: CallShape) -> str | None:
    """Why ``shape`` does not bind ``signature``, as the end of a sentence; None when it does."""
    if not (shape.star or shape.double_star):
        try:
            signature.bind(*range(shape.positional), **dict.fromkeys(shape.keywords))
        except TypeError as error:
            return str(error)
        return None
    parameters = signature.parameters.values()
    kinds = {p.kind for p in parameters}
    room = sum(p.kind in _POSITIONAL for p in parameters)
    if shape.positional > room and Parameter.VAR_POSITIONAL not in kinds:
        return "too many positional arguments"
    names = {p.name for p in parameters if p.kind is not Parameter.POSITIONAL_ONLY}
    for keyword in shape.keywords:
        if keyword not in names and Parameter.VAR_KEYWORD not in kinds:
            return f"got an unexpected keyword argument '{keyword}'"
    return None


def narrower_than(
    ours: Signature, theirs: Signature, *, skip: bool = False
) -> tuple[str, bool] | None:
    """A parameter that ``theirs`` accepts and ``ours`` does not; ``skip`` passes over ``self``.

    Returns:
        The parameter's name and whether callers must pass it; None when ours accepts all.
    """
    mine = ours.parameters
    kinds = {p.kind for p in mine.values()}
    swallow_positional = Parameter.VAR_POSITIONAL in kinds
    swallow_keyword = Parameter.VAR_KEYWORD in kinds
    room = sum(p.kind in _POSITIONAL for p in mine.values())
    found: tuple[str, bool] | None = None
    for index, parameter in enumerate(theirs.parameters.values()):
        required = parameter.default is Parameter.empty
        if skip and index == 0:
            continue  # `self` is always given by position; its name does not matter.
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            continue
        named = swallow_keyword or (
            parameter.name in mine and mine[parameter.name].kind is not Parameter.POSITIONAL_ONLY
        )
        placed = swallow_positional or index < room
        if parameter.kind is Parameter.KEYWORD_ONLY:
            fits = named
        elif parameter.kind is Parameter.POSITIONAL_ONLY:
            fits = placed
        else:
            # Callers use either way; ours must take both, or take part in neither.
            fits = named and placed
        if not fits:
            if required:
                return parameter.name, True
            found = found or (parameter.name, False)
    return found


def show(signature: Signature | None) -> str:
    """A signature for a sentence: names, ``=`` where there is a default, no values."""
    if signature is None:
        return "(...)"
    parts: list[str] = []
    starred = False
    for parameter in signature.parameters.values():
        if parameter.kind is Parameter.VAR_POSITIONAL:
            parts.append(f"*{parameter.name}")
            starred = True
        elif parameter.kind is Parameter.VAR_KEYWORD:
            parts.append(f"**{parameter.name}")
        else:
            if parameter.kind is Parameter.KEYWORD_ONLY and not starred:
                parts.append("*")
                starred = True
            parts.append(parameter.name + ("" if parameter.default is Parameter.empty else "="))
    return f"({', '.join(parts)})"


def brief(signature: Signature | None) -> str:
    """``show``, with the middle of a long one left out."""
    text = show(signature)
    if signature is None or len(text) <= 120:
        return text
    return f"{text[:100].rpartition(',')[0]}, ... {len(signature.parameters)} in all)"
