"""Two records held against each other: which differences are beyond the noise."""

from __future__ import annotations

from dataclasses import dataclass

from .metrics import METRICS, Summary, labels, ratios, summarise, welch_differs
from .record import Record

__all__ = ["Difference", "compare", "markdown"]

OURS = "ours"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One figure in two records.

    Attributes:
        where: Workload, level and contestant, in words.
        metric: The figure's name.
        before, after: Its repeats.
        beyond: Whether they differ beyond the noise; None if the repeats are too few to tell.
        better: Whether the change is for the better.
    """

    where: str
    metric: str
    before: Summary
    after: Summary
    beyond: bool | None
    better: bool

    @property
    def change(self) -> float:
        """After over before, of the medians."""
        return self.after.median / self.before.median


def compare(before: Record, after: Record) -> list[Difference]:
    """Every figure that both hold.

    On one machine the figures themselves are compared, and our ratio to each other contestant
    besides; on two machines only the ratios say anything, and only they are compared.
    """
    alone = same_machine(before, after)
    found: list[Difference] = []
    for workload, level in before.cells():
        for contestant in before.names():
            old = before.of(workload, level, contestant)
            new = after.of(workload, level, contestant)
            if not old or not new:
                continue
            names = [*METRICS]
            for label in labels(old):
                names += [f"{name}:{label}" for name in METRICS if name != "tokens_per_s"]
            for name in names:
                better_up = METRICS[name.partition(":")[0]].higher_is_better
                where = f"{workload} {level} {contestant}"
                if alone:
                    pair = summarise(old, name), summarise(new, name)
                    _add(found, where, name, pair, better_up)
                if contestant != OURS:
                    pair = (
                        ratios(before.of(workload, level, OURS), old, name),
                        ratios(after.of(workload, level, OURS), new, name),
                    )
                    _add(found, f"{workload} {level} ours / {contestant}", name, pair, True)
    return found


def same_machine(a: Record, b: Record) -> bool:
    """Whether both ran on the same kind of machine."""
    keys = ("cpu", "cores", "memory_bytes")
    first, second = (record.about.get("machine") or {} for record in (a, b))
    return [first.get(key) for key in keys] == [second.get(key) for key in keys]


def markdown(before: Record, after: Record) -> str:
    """The differences beyond the noise, and how many figures are within it."""
    differences = compare(before, after)
    beyond = [each for each in differences if each.beyond]
    unsure = [each for each in differences if each.beyond is None]
    lines = []
    if not same_machine(before, after):
        lines += ["Two different machines: only ratios within each run are compared.", ""]
    if beyond:
        lines += [
            "| where | figure | before | after | change | |",
            "| --- | --- | ---: | ---: | ---: | --- |",
        ]
        for each in sorted(beyond, key=lambda each: each.better):
            lines.append(
                f"| {each.where} | {each.metric} | {_show(each, each.before)} "
                f"| {_show(each, each.after)} | {(each.change - 1) * 100:+.0f} % "
                f"| {'better' if each.better else 'WORSE'} |"
            )
        lines.append("")
    worse = sum(not each.better for each in beyond)
    lines.append(
        f"{len(differences)} figures: {len(beyond)} beyond the noise ({worse} worse), "
        f"{len(differences) - len(beyond) - len(unsure)} within it, "
        f"{len(unsure)} with too few repeats to tell."
    )
    return "\n".join(lines) + "\n"


def _add(
    found: list[Difference],
    where: str,
    name: str,
    pair: tuple[Summary | None, Summary | None],
    better_up: bool,
) -> None:
    old, new = pair
    if old is None or new is None or old.low <= 0 or new.low <= 0:
        return
    found.append(
        Difference(
            where=where,
            metric=name,
            before=old,
            after=new,
            beyond=welch_differs(old.values, new.values),
            better=(new.median > old.median) == better_up,
        )
    )


def _show(difference: Difference, summary: Summary) -> str:
    if " / " in difference.where:
        return f"{summary.median:.2f} times"
    metric = METRICS[difference.metric.partition(":")[0]]
    return f"{summary.median * metric.scale:.1f} {metric.unit}"
