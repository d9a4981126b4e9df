"""Findings, and how they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sglang_mlx_plugin._version import __version__

__all__ = ["Finding", "State", "as_data", "as_text", "worst"]

State = Literal["ok", "warning", "failure"]
_ORDER: tuple[State, ...] = ("ok", "warning", "failure")


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's screen.

    Attributes:
        name: What was looked at.
        state: How it is.
        text: What was found, one clause.
        advice: What to do about it; empty when it is well.
        facts: The same as plain data, for ``--json``.
    """

    name: str
    state: State
    text: str
    advice: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


def worst(findings: Sequence[Finding]) -> State:
    """The worst state of all."""
    return max((found.state for found in findings), key=_ORDER.index, default="ok")


def as_data(findings: Sequence[Finding]) -> dict[str, Any]:
    """What ``sglang-mlx doctor --json`` prints."""
    return {
        "version": __version__,
        "state": worst(findings),
        "findings": [asdict(found) for found in findings],
    }


def as_text(findings: Sequence[Finding]) -> str:
    """One line a finding, and beneath it what to do."""
    name = max((len(found.name) for found in findings), default=0)
    state = max(map(len, _ORDER))
    lines = []
    for found in findings:
        # An error's text may have several lines; the screen has one for it.
        text = " ".join(found.text.split())
        lines.append(f"{found.state:{state}}  {found.name:{name}}  {text}")
        if found.advice:
            lines.append(f"{'':{state}}  {'':{name}}  -> {found.advice}")
    lines.append("")
    lines.append(_summary(findings))
    return "\n".join(lines)


def _summary(findings: Sequence[Finding]) -> str:
    failures = sum(found.state == "failure" for found in findings)
    warnings = sum(found.state == "warning" for found in findings)
    counted = f"{_count(failures, 'failure')}, {_count(warnings, 'warning')}"
    if failures:
        return f"{counted}: `sglang serve` would not be served by MLX as it is."
    return f"{counted}: ready to serve."


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
