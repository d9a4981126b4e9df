"""Figures of a round, and of a round's repeats."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .types import CallResult, RoundResult

__all__ = [
    "METRICS",
    "Metric",
    "Summary",
    "labels",
    "ratios",
    "summarise",
    "value",
    "welch_differs",
]


@dataclass(frozen=True)
class Metric:
    """A figure of a round.

    Attributes:
        name: In the record and the comparison.
        unit: For people.
        scale: What a value is multiplied by for people.
        higher_is_better: Which way is up.
        of: The figure of the round's calls and its wall time, or None.
    """

    name: str
    unit: str
    scale: float
    higher_is_better: bool
    of: Callable[[Sequence[CallResult], float], float | None]


def _tokens_per_s(calls: Sequence[CallResult], wall_s: float) -> float | None:
    tokens = sum(call.tokens for call in calls)
    return tokens / wall_s if tokens and wall_s > 0 else None


def _ttft(calls: Sequence[CallResult], wall_s: float) -> float | None:
    times = [call.ttft_s for call in calls if call.ttft_s is not None]
    return statistics.median(times) if times else None


def _gap(calls: Sequence[CallResult], wall_s: float) -> float | None:
    gaps = [gap for call in calls for gap in call.gaps_s]
    return statistics.median(gaps) if gaps else None


def _worst_gap(calls: Sequence[CallResult], wall_s: float) -> float | None:
    return max((gap for call in calls for gap in call.gaps_s), default=None)


METRICS = {
    metric.name: metric
    for metric in (
        Metric("tokens_per_s", "tok/s", 1, True, _tokens_per_s),
        Metric("ttft_s", "ms", 1000, False, _ttft),
        Metric("gap_s", "ms", 1000, False, _gap),
        Metric("worst_gap_s", "ms", 1000, False, _worst_gap),
    )
}


def value(result: RoundResult, name: str) -> float | None:
    """A figure of a round; ``NAME:LABEL`` is that of one label's lanes. None if it has none.

    A round with an error has no figure: its other requests ran in a smaller batch.
    """
    name, _, label = name.partition(":")
    if any(call.error for call in result.calls):
        return None
    calls = [call for call in result.calls if not label or call.label == label]
    return METRICS[name].of(calls, result.wall_s)


def labels(results: Iterable[RoundResult]) -> list[str]:
    """The labels that occur, in order, without the empty one."""
    found = dict.fromkeys(call.label for result in results for call in result.calls)
    return [label for label in found if label]


@dataclass(frozen=True)
class Summary:
    """Repeats of one figure."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the repeats."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The lowest repeat."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The highest repeat."""
        return max(self.values)

    @property
    def spread(self) -> float:
        """Highest less lowest, over the median; 0 for one repeat."""
        return (self.high - self.low) / self.median if self.median else 0.0


def summarise(results: Iterable[RoundResult], name: str) -> Summary | None:
    """A figure over repeats; None if no repeat has one."""
    values = [value(result, name) for result in results]
    kept = tuple(each for each in values if each is not None)
    return Summary(kept) if kept else None


def ratios(ours: Iterable[RoundResult], theirs: Iterable[RoundResult], name: str) -> Summary | None:
    """How many times better `ours` is than `theirs`, repeat by repeat.

    The two rounds of one repeat stand next to each other in time, so that what the machine
    does meanwhile falls out of their ratio.
    """
    better = METRICS[name.partition(":")[0]].higher_is_better
    others = {result.repeat: value(result, name) for result in theirs}
    found = []
    for result in ours:
        mine, other = value(result, name), others.get(result.repeat)
        if mine and other:
            found.append(mine / other if better else other / mine)
    return Summary(tuple(found)) if found else None


# Student's t, two-sided 1 %, by degrees of freedom; the last holds from there on.
_T99 = (
    *(63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169),
    *(3.106, 3.055, 3.012, 2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845),
)

# Below this share a difference is not worth a word, however sure it is.
_FLOOR = 0.02


def welch_differs(a: Sequence[float], b: Sequence[float]) -> bool | None:
    """Whether two sets of repeats differ beyond their noise.

    Welch's t-test on the logarithms at 1 %, and a difference of at least 2 %.

    Returns:
        None if there are too few repeats (below two on a side) to tell.
    """
    if len(a) < 2 or len(b) < 2:
        return None
    logs_a, logs_b = [math.log(x) for x in a], [math.log(x) for x in b]
    difference = abs(statistics.fmean(logs_a) - statistics.fmean(logs_b))
    if difference < math.log1p(_FLOOR):
        return False
    part_a = statistics.variance(logs_a) / len(a)
    part_b = statistics.variance(logs_b) / len(b)
    if part_a + part_b == 0:
        return True
    freedom = (part_a + part_b) ** 2 / (part_a**2 / (len(a) - 1) + part_b**2 / (len(b) - 1))
    critical = _T99[min(len(_T99), max(1, math.floor(freedom))) - 1]
    return difference / math.sqrt(part_a + part_b) > critical
