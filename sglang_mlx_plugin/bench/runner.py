"""Alternates the contestants round by round, and writes what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import machine, metrics
from .contestants import Contestant, Setting, as_data
from .prompts import PromptMaker
from .record import Record
from .seat import Seat
from .types import BenchError, Call, Lane, RoundResult, Scenario
from .workloads import Workload

__all__ = ["Plan", "Runner"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run.

    Attributes:
        workloads: In order.
        levels: Overrides the levels of every workload; empty leaves each its own.
        repeats: Of each (workload, level), alternating the contestants.
        one_at_a_time: End each contestant after its round, where memory does not hold all.
        out: The record.
    """

    workloads: tuple[Workload, ...]
    levels: tuple[int, ...] = ()
    repeats: int = 3
    one_at_a_time: bool = False
    out: Path


class Runner:
    """Runs a plan.

    Only one contestant's processes run at any time: the others are stopped where they stand
    (SIGSTOP), since some servers idle by polling.

    Args:
        plan: What is run.
        contestants: Who takes part.
        settings: By kind of model folder, what they share.
        record: Where everything is noted.
        say: Told one line a step.
    """

    def __init__(
        self,
        plan: Plan,
        contestants: Sequence[Contestant],
        settings: Mapping[str, Setting],
        record: Record,
        say: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._contestants = list(contestants)
        self._settings = settings
        self._record = record
        self._say = say

    def run(self) -> Record:
        """Run everything; the record is on disk after every round."""
        load, cores = machine.load(), machine.machine()["cores"]
        if load is not None and load > cores / 4:
            self._say(
                f"the machine is busy (load average {load:.1f} on {cores} cores): BLAS threads "
                "that wait for a core make rounds several times slower, at random"
            )
        for kind in dict.fromkeys(workload.model for workload in self._plan.workloads):
            workloads = [each for each in self._plan.workloads if each.model == kind]
            self._run_on(workloads, self._settings[kind])
        self._record.write(self._plan.out)
        return self._record

    def _run_on(self, workloads: Sequence[Workload], setting: Setting) -> None:
        prompts = PromptMaker(setting.folder)
        seats = []
        for contestant in self._contestants:
            reason = contestant.why_not(setting)
            if reason is not None:
                self._say(f"{contestant.name} is left out: {reason}")
                self._record.pass_over(contestant.name, None, reason)
            elif any(contestant.features >= each.needs for each in workloads):
                seats.append(Seat(contestant, setting, prompts))
        try:
            if not self._plan.one_at_a_time:
                for seat in list(seats):
                    if not self._start(seat, setting):
                        seats.remove(seat)
            for workload in workloads:
                self._run_workload(workload, seats, setting, prompts)
        finally:
            for seat in seats:
                seat.end()

    def _run_workload(
        self,
        workload: Workload,
        seats: list[Seat],
        setting: Setting,
        prompts: PromptMaker,
    ) -> None:
        able = []
        for seat in seats:
            missing = workload.needs - seat.contestant.features
            if missing:
                reason = f"it has no {' and no '.join(sorted(missing))}"
                self._record.pass_over(seat.contestant.name, workload.name, reason)
            else:
                able.append(seat)
        for repeat in range(self._plan.repeats):
            for level in self._plan.levels or workload.levels:
                prompts.reseed(f"{workload.name} {level} {repeat}")
                scenario = workload.make(prompts, level)
                # Who goes first changes with every repeat, so that a drift hits all alike.
                shift = repeat % max(1, len(able))
                for seat in able[shift:] + able[:shift]:
                    if not self._round(seat, workload, level, repeat, scenario, setting):
                        able.remove(seat)
                        seats.remove(seat)

    def _round(
        self,
        seat: Seat,
        workload: Workload,
        level: int,
        repeat: int,
        scenario: Scenario,
        setting: Setting,
    ) -> bool:
        name = seat.contestant.name
        if not seat.up and not self._start(seat, setting):
            return False
        load = machine.load()
        try:
            seat.resume()
            seat.ping()
            wall_s, calls, peak_bytes, cpu_s = seat.run(scenario)
        except BenchError as error:
            self._give_up(seat, f"in {workload.name} at {level}: {error}")
            return False
        seat.pause()
        if self._plan.one_at_a_time:
            seat.end()
        result = RoundResult(
            workload=workload.name,
            level=level,
            contestant=name,
            repeat=repeat,
            wall_s=wall_s,
            calls=calls,
            peak_bytes=peak_bytes,
            cpu_s=cpu_s,
            load=load,
        )
        self._record.rounds.append(result)
        self._record.write(self._plan.out)
        self._say(_line(result, self._plan.repeats))
        return True

    def _start(self, seat: Seat, setting: Setting) -> bool:
        name = seat.contestant.name
        self._say(f"starting {name}")
        try:
            seat.start()
            # Once a start: what is compiled or allocated on first use is not a round's.
            seat.run(_warm_up(setting))
        except BenchError as error:
            self._give_up(seat, str(error))
            return False
        seat.pause()
        self._say(f"{name} gave its first answer after {seat.startup_s or 0:.1f} s")
        entry = next((each for each in self._record.contestants if each["name"] == name), None)
        if entry is None:
            entry = as_data(seat.contestant, setting) | {"startup_s": []}
            self._record.contestants.append(entry)
        entry["startup_s"].append(round(seat.startup_s or 0, 3))
        return True

    def _give_up(self, seat: Seat, reason: str) -> None:
        self._say(f"{seat.contestant.name} is given up: {reason}")
        self._record.pass_over(seat.contestant.name, None, reason)
        seat.end()


def _warm_up(setting: Setting) -> Scenario:
    prompts = PromptMaker(setting.folder, "warm-up")
    return Scenario(
        lanes=tuple(Lane(calls=(Call(text=prompts.prompt(64), max_tokens=6),)) for _ in range(4))
    )


def _line(result: RoundResult, repeats: int) -> str:
    errors = [call.error for call in result.calls if call.error]
    figures = []
    for name in ("tokens_per_s", "ttft_s", "gap_s"):
        metric = metrics.METRICS[name]
        value = metric.of(result.calls, result.wall_s)
        if value is not None:
            short = name.removesuffix("_s").replace("tokens_per", "").strip("_")
            figures.append(f"{short} {value * metric.scale:.1f} {metric.unit}".strip())
    failed = f"; {len(errors)} of {len(result.calls)} FAILED: {errors[0]}" if errors else ""
    return (
        f"{result.workload} {result.level:>4}  repeat {result.repeat + 1}/{repeats}  "
        f"{result.contestant}: {result.wall_s:.1f} s, {', '.join(figures)}{failed}"
    )
