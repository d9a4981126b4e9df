"""The matrix: every contract over several releases, and where each broke first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from packaging.version import Version

from .live import check_tree
from .report import Report
from .source import open_tree

__all__ = [
    "History",
    "Line",
    "build_history",
    "check_wheels",
    "load_history",
    "render_history",
    "unrecorded_demands",
]


@dataclass(frozen=True)
class Line:
    """One contract over the releases.

    Attributes:
        target: Dotted upstream name.
        spans: Runs of releases in which it was described alike: first, last, description.
        broken: Releases in which it does not hold for our source of today.
        first_break: The first release in which it is broken after one in which it holds, or
            the oldest release when it holds in none; empty otherwise.
        holds_since: The first release in which it holds, when it is broken before.
        sentence: What is wrong there.
    """

    target: str
    spans: tuple[tuple[str, str, str], ...]
    broken: tuple[str, ...] = ()
    first_break: str = ""
    holds_since: str = ""
    sentence: str = ""

    def mark(self, release: str) -> str:
        """``x`` broken, ``.`` not there and not needed, ``o`` fine."""
        if release in self.broken:
            return "x"
        for first, last, text in self.spans:
            inside = release in (first, last)
            if not inside and "unknown" not in (first, last, release):
                inside = Version(first) <= Version(release) <= Version(last)
            if inside:
                return "." if text in ("-", "") else "o"
        return "."


@dataclass(frozen=True)
class History:
    """The matrix.

    Attributes:
        releases: Names, oldest first.
        lines: One for each target with a row or a problem.
        new: For each release but the first, what upstream began to ask of a part of ours
            there and only its base class answers. 0.5.14 broke the in-tree MLX back end in
            this way: it began to call ``alloc_memory_pool``, and the base's answer ran.
        asked: Everything that upstream asks in the last release.
    """

    releases: tuple[str, ...]
    lines: tuple[Line, ...]
    new: dict[str, tuple[str, ...]] = field(default_factory=dict)
    asked: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain data for ``json.dump``."""
        return asdict(self)


def _check_path(path: str, use_cache: bool) -> dict[str, Any]:
    return check_tree(open_tree(Path(path)), use_cache=use_cache).as_json()


def check_wheels(paths: Sequence[Path], *, use_cache: bool = True) -> list[Report]:
    """A report for each wheel, two at a time; those in the cache cost nothing.

    Raises:
        SourceError: A path is no release.
    """
    if len(paths) == 1:
        return [check_tree(open_tree(paths[0]), use_cache=use_cache)]
    with ProcessPoolExecutor(max_workers=2) as pool:
        names, flags = map(str, paths), [use_cache] * len(paths)
        return [Report.from_json(data) for data in pool.map(_check_path, names, flags)]


def build_history(reports: Sequence[Report]) -> History:
    """Turn reports, oldest release first, into the matrix."""
    targets = sorted({t for r in reports for t in [*r.described, *(p.target for p in r.problems)]})
    return History(
        tuple(r.release for r in reports),
        tuple(_line(target, reports) for target in targets),
        {after.release: _began(before, after) for before, after in pairwise(reports)},
        tuple(reports[-1].asked) if reports else (),
    )


def _began(before: Report, after: Report) -> tuple[str, ...]:
    return tuple(
        name for name, who in after.asked.items() if who != "us" and name not in before.asked
    )


def unrecorded_demands(history: History, report: Report) -> list[str]:
    """What ``report``'s release asks of us that the last recorded one did not, sentences.

    Empty for a release that was recorded.
    """
    if report.release in history.releases:
        return []
    return [
        f"new: SGLang asks the {name.replace('.', ' for ', 1)}, and only its own base answers"
        for name, who in report.asked.items()
        if who != "us" and name not in history.asked
    ]


def _line(target: str, reports: Sequence[Report]) -> Line:
    spans: list[tuple[str, str, str]] = []
    broken: list[str] = []
    sentences: dict[str, str] = {}
    for report in reports:
        text = report.described.get(target, "")
        if spans and spans[-1][2] == text:
            spans[-1] = (spans[-1][0], report.release, text)
        else:
            spans.append((report.release, report.release, text))
        for problem in report.problems:
            if problem.target == target:
                broken.append(report.release)
                sentences.setdefault(report.release, problem.sentence)
                break
    states = [(report.release, report.release in sentences) for report in reports]
    held = [index for index, (_, is_broken) in enumerate(states) if not is_broken]
    start = held[0] if held else 0
    first_break = next((name for name, is_broken in states[start:] if is_broken), "")
    holds_since = states[start][0] if held and start else ""
    place = first_break or (broken[-1] if broken else "")
    return Line(
        target, tuple(spans), tuple(broken), first_break, holds_since, sentences.get(place, "")
    )


def load_history(path: Path) -> History:
    """The matrix that was recorded in ``path``.

    Raises:
        OSError, ValueError, KeyError: The file is missing or is no matrix.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    lines = tuple(
        Line(
            each["target"],
            tuple((a, b, c) for a, b, c in each["spans"]),
            tuple(each["broken"]),
            each["first_break"],
            each["holds_since"],
            each["sentence"],
        )
        for each in data["lines"]
    )
    new = {release: tuple(names) for release, names in data["new"].items()}
    return History(tuple(data["releases"]), lines, new, tuple(data["asked"]))


def render_history(history: History) -> str:
    """The matrix for a terminal: a mark for each release, then what changed and what broke."""
    short = [release.removeprefix("0.5.") for release in history.releases]
    width = max(map(len, short), default=1)
    out = ["  ".join(text.rjust(width) for text in short) + f"   (releases {_names(history)})"]
    for line in history.lines:
        marks = "  ".join(line.mark(release).rjust(width) for release in history.releases)
        out.append(f"{marks}   {line.target.removeprefix('sglang.srt.')}")
        if len(line.spans) > 1:
            out += [f"{'':{len(marks)}}     {_span(*span)}" for span in line.spans]
        if line.sentence:
            when = (
                f"breaks at {line.first_break}"
                if line.first_break
                else f"holds since {line.holds_since}; before"
            )
            out.append(f"{'':{len(marks)}}     {when}: {line.sentence}")
    for release, names in history.new.items():
        if names:
            out.append(
                f"{release} began to ask, and only upstream's base answers: {', '.join(names)}"
            )
    out.append("")
    out.append("o holds   x broken   . not there, and not needed there")
    return "\n".join(out)


def _names(history: History) -> str:
    return f"{history.releases[0]} to {history.releases[-1]}" if history.releases else "none"


def _span(first: str, last: str, text: str) -> str:
    span = first if first == last else f"{first} to {last}"
    return f"{span}: {text or 'no row'}"
