"""The Markdown table of a record."""

from __future__ import annotations

from typing import Any

from .metrics import METRICS, Summary, labels, ratios, summarise
from .record import Record, same_texts
from .types import RoundResult
from .workloads import WORKLOADS, Workload

__all__ = ["markdown"]

OURS = "ours"
_COLUMNS = ("tokens_per_s", "ttft_s", "gap_s", "worst_gap_s")
_TITLES = {
    "tokens_per_s": "tok/s",
    "ttft_s": "TTFT, ms",
    "gap_s": "gap, ms",
    "worst_gap_s": "worst gap, ms",
}


def markdown(record: Record) -> str:
    """The whole report: a table a workload, then who, where, and what did not run."""
    parts = []
    for name in dict.fromkeys(workload for workload, _ in record.cells()):
        parts.append(_table(record, name))
    parts.append(_notes(record))
    return "\n\n".join(parts) + "\n"


def _table(record: Record, name: str) -> str:
    workload = next((each for each in WORKLOADS if each.name == name), None)
    title = f"**{name}**"
    if workload is not None:
        title += f" ({workload.letter}): {workload.what}"
    means = workload.level_means if workload else "level"
    head = [means, "system", *(_TITLES[column] for column in _COLUMNS), "memory, MB", "ours is"]
    lines = [title, "", _row(head), _row(["---:", "---", *["---:"] * 6])]
    for level in (level for cell, level in record.cells() if cell == name):
        ours = record.of(name, level, OURS)
        for contestant in record.names():
            rounds = record.of(name, level, contestant)
            if not rounds:
                continue
            ratio = ""
            if contestant != OURS:
                ratio = _ratio(ours, rounds, _standing(workload))
            figures = [_figure(rounds, column) for column in _COLUMNS]
            lines.append(_row([str(level), contestant, *figures, _memory(rounds), ratio]))
            for label in labels(rounds):
                figures = [_figure(rounds, f"{column}:{label}") for column in _COLUMNS[1:]]
                lines.append(_row(["", f"- {label}", "", *figures, "", ""]))
    return "\n".join(lines)


def _standing(workload: Workload | None) -> str:
    return workload.standing if workload else "tokens_per_s"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _figure(rounds: list[RoundResult], name: str) -> str:
    metric = METRICS[name.partition(":")[0]]
    summary = summarise(rounds, name)
    failed = sum(any(call.error for call in each.calls) for each in rounds)
    if summary is None:
        return "failed" if failed else "-"
    text = _number(summary, metric.scale)
    return f"{text} ({failed} failed)" if failed and name == "tokens_per_s" else text


def _number(summary: Summary, scale: float) -> str:
    def show(value: float) -> str:
        value *= scale
        return f"{value:.1f}" if value < 100 else f"{value:.0f}"

    if len(summary.values) == 1:
        return show(summary.median)
    return f"{show(summary.median)} ({show(summary.low)}-{show(summary.high)})"


def _memory(rounds: list[RoundResult]) -> str:
    peaks = [each.peak_bytes for each in rounds if each.peak_bytes]
    return f"{max(peaks) / 2**20:.0f}" if peaks else "-"


def _ratio(ours: list[RoundResult], theirs: list[RoundResult], name: str) -> str:
    summary = ratios(ours, theirs, name)
    if summary is None:
        return ""
    text = f"{summary.median:.2f} x"
    if len(summary.values) > 1:
        text += f" ({summary.low:.2f}-{summary.high:.2f})"
    return text


def _notes(record: Record) -> str:
    about = record.about
    lines = [
        "Medians of the repeats, the lowest and highest in brackets. `ours is` compares what "
        "the workload stands for, repeat by repeat: above 1 we are better.",
        "",
        f"- Machine: {_machine(about.get('machine') or {})}.",
        f"- Versions: {_versions(about.get('versions') or {})}{_commit(about.get('git'))}.",
        f"- Run: {about.get('when', '?')}, `{about.get('command', 'sglang-mlx bench')}`; "
        f"{_load(record)}.",
    ]
    settings = about.get("settings") or {}
    if settings:
        lines.append(
            f"- Model: {settings.get('model')}, {settings.get('dtype')}; device "
            f"{settings.get('device')}; BLAS for all: {settings.get('blas')}."
        )
    for each in record.contestants:
        seconds = ", ".join(f"{value:.1f}" for value in each.get("startup_s") or [])
        lines.append(f"- {each['name']}: {each['what']}; first answer after {seconds} s.")
    lines += _agreement(record)
    for each in record.not_run:
        where = f" in {each['workload']}" if each["workload"] else ""
        lines.append(f"- Not run{where}: {each['contestant']}: {_reason(each['reason'])}.")
    return "\n".join(lines)


def _reason(text: str) -> str:
    """What happened, and a failed contestant's last words."""
    said = [line.strip() for line in text.splitlines() if line.strip()] or ["?"]
    words = said[0] if len(said) == 1 else f"{said[0]}; its last words: {said[-1][:300]}"
    return words.rstrip(".")


def _agreement(record: Record) -> list[str]:
    """Greedy answers held against each other: speed of different tokens compares nothing."""
    reference = next((name for name in record.names() if name != OURS), None)
    if reference is None or OURS not in record.names():
        return []
    same = both = 0
    for workload, level in record.cells():
        if workload == "mixed":
            continue
        equal, answered = same_texts(
            record.of(workload, level, OURS), record.of(workload, level, reference)
        )
        same, both = same + equal, both + answered
    if not both:
        return []
    return [f"- Same text from ours and {reference} in {same} of {both} greedy answers."]


def _machine(about: dict[str, Any]) -> str:
    memory = about.get("memory_bytes")
    size = f", {memory / 2**30:.0f} GB" if memory else ""
    return f"{about.get('cpu', '?')}, {about.get('cores', '?')} cores{size}, {about.get('system')}"


def _versions(about: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in about.items())


def _commit(about: dict[str, Any] | None) -> str:
    if not about:
        return ""
    changed = ", with changes" if about.get("changed") else ""
    return f", commit {str(about['commit'])[:12]}{changed}"


def _load(record: Record) -> str:
    loads = [each.load for each in record.rounds if each.load is not None]
    if not loads:
        return "the system tells no load"
    return f"load average {min(loads):.1f} to {max(loads):.1f} before the rounds"
