"""The whole way of a round, with fake contestants in real processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sglang_mlx_plugin.bench.prompts import PromptMaker
from sglang_mlx_plugin.bench.record import Record
from sglang_mlx_plugin.bench.runner import Plan, Runner
from sglang_mlx_plugin.bench.seat import Seat
from sglang_mlx_plugin.bench.types import BenchError, Call, Lane, Scenario
from sglang_mlx_plugin.bench.workloads import Workload

pytest.importorskip("aiohttp")


def short(prompts, level):
    return Scenario(
        lanes=tuple(Lane(calls=(Call(text=prompts.prompt(8), max_tokens=4),)) for _ in range(level))
    )


def workload(name="short", make=short, needs=frozenset(), levels=(1, 3)):
    return Workload(name=name, letter="z", what="a test", levels=levels, make=make, needs=needs)


def run(contestants, setting, tmp_path, *workloads, **plan):
    said: list[str] = []
    plan = Plan(workloads=workloads or (workload(),), out=tmp_path / "run.json", **plan)
    record = Runner(plan, contestants, {"model": setting}, Record({}), said.append).run()
    return record, said


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_contestants_alternate_and_the_record_is_whole(fake, setting, tmp_path):
    record, _ = run([fake("ours"), fake("other")], setting, tmp_path, repeats=2)
    order = [(each.repeat, each.level, each.contestant) for each in record.rounds]
    assert order == [
        *((0, 1, "ours"), (0, 1, "other"), (0, 3, "ours"), (0, 3, "other")),
        *((1, 1, "other"), (1, 1, "ours"), (1, 3, "other"), (1, 3, "ours")),
    ]
    for each in record.rounds:
        assert [call.tokens for call in each.calls] == [4] * each.level
        assert all(call.error is None and len(call.pieces_s) == 4 for call in each.calls)
        assert all(call.text == " 0 1 2 3" and call.cached_tokens == 0 for call in each.calls)
        assert 0 < each.wall_s < 5
    again = Record.read(tmp_path / "run.json")
    assert again.names() == ["ours", "other"]
    assert len(again.rounds) == len(record.rounds)
    assert all(len(each["startup_s"]) == 1 for each in again.contestants)


def test_one_that_cannot_run_is_listed_with_its_reason(fake, setting, tmp_path):
    contestants = [
        fake("ours"),
        fake("absent", why_not="it is not installed"),
        fake("broken", "--never"),
        fake("plain", features=frozenset()),
    ]
    able = workload("chatty", needs=frozenset({"chat"}), levels=(1,))
    record, said = run(contestants, setting, tmp_path, workload(levels=(1,)), able, repeats=1)
    assert record.names() == ["ours", "plain"]
    reasons = {(each["contestant"], each["workload"]): each["reason"] for each in record.not_run}
    assert reasons[("absent", None)] == "it is not installed"
    assert "there is no such model" in reasons[("broken", None)]
    assert reasons[("plain", "chatty")] == "it has no chat"
    assert any("broken is given up" in line for line in said)


def test_one_that_dies_is_an_error_in_the_record_and_the_rest_goes_on(fake, setting, tmp_path):
    # One ping at the start, four of the warm-up, then it dies in the ping of its first round.
    record, _ = run(
        [fake("ours"), fake("mortal", "--die-after", "5")], setting, tmp_path, repeats=1
    )
    assert {each.contestant for each in record.rounds} == {"ours"}
    assert "out of everything" in record.not_run[0]["reason"]


@pytest.mark.parametrize(
    ("flag", "error"), [("--short", "3 tokens instead of 4"), ("--refuse", "HTTP 400: no no")]
)
def test_what_a_server_does_wrong_is_in_its_answer(fake, setting, flag, error):
    seat = Seat(fake("ours", flag), setting, PromptMaker(setting.folder))
    if flag == "--short":
        with pytest.raises(BenchError, match="1 tokens instead of 2"):
            seat.start()
        return
    seat.start()
    try:
        _, calls, _, _ = seat.run(short(PromptMaker(setting.folder), 1))
    finally:
        seat.end()
    assert calls[0].error == error


def test_the_bare_loop_takes_lanes_together_and_a_lane_in_turn(fake, setting):
    prompts = PromptMaker(setting.folder)
    seat = Seat(fake("bare", pipe=True), setting, prompts)
    seat.start()
    try:
        wall, calls, _, _ = seat.run(short(prompts, 3))
        assert wall == pytest.approx(0.04)
        assert [call.lane for call in calls] == [0, 1, 2]
        one = Lane(calls=tuple(Call(text=prompts.prompt(5), max_tokens=1) for _ in range(3)))
        wall, calls, _, _ = seat.run(Scenario(lanes=(one,)))
    finally:
        seat.end()
    assert wall == pytest.approx(0.03)
    assert [(call.turn, call.prompt_tokens) for call in calls] == [(0, 5), (1, 5), (2, 5)]


def test_chat_lanes_carry_answers_and_an_arrival_waits_for_the_streams(fake, setting):
    call = Call(text="hello", max_tokens=4)
    chat = Scenario(lanes=(Lane(system="be brief", calls=(call,) * 3),))
    streams = tuple(Lane(calls=(Call(text="a", max_tokens=12),), label="streams") for _ in range(2))
    late = Lane(calls=(call,), label="arrival", after_pieces=6)
    seat = Seat(fake("ours", "--delay", "0.02"), setting, PromptMaker(setting.folder))
    seat.start()
    try:
        _, turns, _, _ = seat.run(chat)
        _, calls, _, _ = seat.run(Scenario(lanes=(*streams, late)))
    finally:
        seat.end()
    # The fake counts messages: a system prompt, then two more a turn.
    assert [each.prompt_tokens for each in turns] == [2, 4, 6]
    arrival = calls[-1]
    sixth = max(each.start_s + each.pieces_s[5] for each in calls[:-1])
    assert arrival.label == "arrival" and arrival.start_s >= sixth - 0.005


def test_a_paused_contestant_takes_no_processor_time_and_all_end(fake, setting):
    pytest.importorskip("psutil")
    seat = Seat(fake("ours"), setting, PromptMaker(setting.folder))
    seat.start()
    child = seat._child
    assert child is not None
    seat.pause()
    before = child.cpu_seconds()
    time.sleep(0.2)
    assert child.cpu_seconds() == before
    seat.resume()
    seat.ping()
    seat.pause()
    seat.end()
    assert gone(child.pid)


def test_one_at_a_time_starts_again_for_every_round(fake, setting, tmp_path: Path):
    record, _ = run(
        [fake("ours")], setting, tmp_path, workload(levels=(1,)), repeats=2, one_at_a_time=True
    )
    assert len(record.contestants[0]["startup_s"]) == 2
