"""What a check found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Problem", "Report"]


@dataclass(frozen=True)
class Problem:
    """One contract that a release does not keep.

    Attributes:
        target: Dotted upstream name.
        where: The file and line, ours or upstream's, that shows it.
        sentence: What is wrong and what a user would see.
    """

    target: str
    where: str
    sentence: str


@dataclass
class Report:
    """The outcome for one release.

    Attributes:
        release: Its version, or ``unknown``.
        problems: Broken contracts; empty when all hold.
        notes: What is worth knowing and breaks nothing.
        checked: How many rows, uses and upstream demands were looked at.
        unused_waivers: Waivers (``NotReached``) that nothing needs.
        asked: What upstream asks of each part of ours (``runner.alloc_memory_pool``), and
            whether we answer or upstream's base class does.
        described: For each row's target, its signature or kind in this release.
    """

    release: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    unused_waivers: list[str] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)
    described: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every contract holds."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """Plain data for ``json.dump``."""
        return {"ok": self.ok, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        """The report that ``as_json`` wrote.

        Raises:
            KeyError, TypeError: ``data`` is no such report.
        """
        return cls(
            data["release"],
            [Problem(**each) for each in data["problems"]],
            list(data["notes"]),
            dict(data["checked"]),
            list(data["unused_waivers"]),
            dict(data["asked"]),
            dict(data["described"]),
        )
