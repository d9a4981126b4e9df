"""The JSON record of a run: written after every round, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .types import BenchError, RoundResult

__all__ = ["FORMAT", "Record", "same_texts"]

FORMAT = 1


@dataclass
class Record:
    """A run.

    Attributes:
        about: Time, machine, versions, commit and the run's settings.
        contestants: Those that ran, in order, with the command of each.
        not_run: ``{"contestant", "workload" (or None), "reason"}``.
        rounds: What was measured.
    """

    about: dict[str, Any]
    contestants: list[dict[str, Any]] = field(default_factory=list)
    not_run: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[RoundResult] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write it atomically."""
        data = {
            "format": FORMAT,
            **self.about,
            "contestants": self.contestants,
            "not_run": self.not_run,
            "rounds": [result.as_data() for result in self.rounds],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.part")
        partial.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(partial, path)

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read one.

        Raises:
            BenchError: If the file is no record of this format.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BenchError(f"{path} cannot be read: {error.strerror}.") from None
        except ValueError:
            raise BenchError(f"{path} is not JSON.") from None
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise BenchError(f"{path} is no record of `sglang-mlx bench` in format {FORMAT}.")
        about = {
            key: value
            for key, value in data.items()
            if key not in ("format", "contestants", "not_run", "rounds")
        }
        rounds = [RoundResult.from_data(each) for each in data["rounds"]]
        return cls(about, list(data["contestants"]), list(data["not_run"]), rounds)

    def names(self) -> list[str]:
        """Contestants with rounds, in the order they were named."""
        ran = {result.contestant for result in self.rounds}
        return [each["name"] for each in self.contestants if each["name"] in ran]

    def cells(self) -> list[tuple[str, int]]:
        """The (workload, level) pairs that were run, in order."""
        return list(dict.fromkeys((each.workload, each.level) for each in self.rounds))

    def of(self, workload: str, level: int, contestant: str) -> list[RoundResult]:
        """One contestant's repeats of one cell."""
        key = (workload, level, contestant)
        return [each for each in self.rounds if (each.workload, each.level, each.contestant) == key]

    def pass_over(self, contestant: str, workload: str | None, reason: str) -> None:
        """Note what cannot run, once."""
        entry = {"contestant": contestant, "workload": workload, "reason": reason}
        if entry not in self.not_run:
            self.not_run.append(entry)


def same_texts(ours: Iterable[RoundResult], theirs: Iterable[RoundResult]) -> tuple[int, int]:
    """How many requests got the same text from both, and how many both answered.

    mlx_lm.server drops an answer's leading space, so that only the rest can be held together;
    both sides end after the same number of tokens.
    """
    others = {
        (result.repeat, call.lane, call.turn): call for result in theirs for call in result.calls
    }
    same = both = 0
    for result in ours:
        for call in result.calls:
            other = others.get((result.repeat, call.lane, call.turn))
            if other is not None and call.error is None and other.error is None:
                both += 1
                same += call.text.strip() == other.text.strip()
    return same, both
