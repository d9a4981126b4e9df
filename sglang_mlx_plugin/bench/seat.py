"""A running contestant: started, measured, paused, ended."""

from __future__ import annotations

import asyncio
import json
import selectors
import time
import urllib.error
import urllib.request
from typing import Any

from .client import run_scenario
from .contestants import Contestant, Setting, environment
from .processes import Child, MemoryWatch, free_port
from .prompts import PromptMaker
from .types import BenchError, Call, CallResult, Lane, Scenario

__all__ = ["Seat"]

START_S = 900
ROUND_S = 3600


class Seat:
    """One contestant's place in a run.

    Attributes:
        startup_s: From launch to the end of its first answer, the last time it started.
    """

    def __init__(self, contestant: Contestant, setting: Setting, prompts: PromptMaker) -> None:
        self.contestant = contestant
        self._setting = setting
        self._prompts = prompts
        self._child: Child | None = None
        self._base = ""
        self._launches = 0
        self.startup_s: float | None = None

    @property
    def up(self) -> bool:
        """Whether it runs."""
        return self._child is not None and self._child.ended() is None

    def start(self) -> None:
        """Launch it and wait for its first answer.

        Raises:
            BenchError: If it ends, or does not answer in time; the message holds its last words.
        """
        launch = self.contestant.launch(self._setting)
        port = free_port()
        self._base = f"http://127.0.0.1:{port}"
        self._launches += 1
        log = self._setting.work / f"{self.contestant.name}-{port}.log"
        argv = [word.replace("{port}", str(port)) for word in launch.argv]
        begun = time.perf_counter()
        self._child = Child(argv, environment(launch.env), log, pipe=self.contestant.pipe)
        try:
            self._wait_until_ready()
            self.ping()
        except BaseException:
            self.end()
            raise
        self.startup_s = time.perf_counter() - begun

    def ping(self) -> None:
        """Two tokens, to see that it answers and to bring it back into the caches.

        Raises:
            BenchError: If it does not answer.
        """
        call = Call(text=self._prompts.prompt(12), max_tokens=2)
        _, results = self._run(Scenario(lanes=(Lane(calls=(call,)),)))
        if results[0].error is not None:
            raise BenchError(self._failed(f"its first answer: {results[0].error}"))

    def run(self, scenario: Scenario) -> tuple[float, list[CallResult], int | None, float | None]:
        """Run a scenario; wall seconds, answers, peak resident bytes and processor seconds."""
        child = self._running()
        before = child.cpu_seconds()
        with MemoryWatch(child) as memory:
            wall_s, results = self._run(scenario)
        after = child.cpu_seconds()
        cpu_s = after - before if after is not None and before is not None else None
        return wall_s, results, memory.peak_bytes, cpu_s

    def pause(self) -> None:
        """Stop its processes where they stand, if it runs."""
        if self._child is not None:
            self._child.pause()

    def resume(self) -> None:
        """Let them go on."""
        if self._child is not None:
            self._child.resume()

    def end(self) -> None:
        """End it, if it runs."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def last_words(self) -> str:
        """The end of its log."""
        return self._child.tail() if self._child is not None else ""

    def _running(self) -> Child:
        if self._child is None:
            raise BenchError(f"{self.contestant.name} is not running.")
        return self._child

    def _failed(self, what: str) -> str:
        return f"{self.contestant.name} failed: {what}\n{self.last_words()}".rstrip()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_S
        if self.contestant.pipe:
            if self._read_line(START_S) != "ready":
                raise BenchError(self._failed("it did not say that it is ready"))
            return
        while time.monotonic() < deadline:
            status = self._running().ended()
            if status is not None:
                raise BenchError(self._failed(f"it ended with status {status} while starting"))
            try:
                with urllib.request.urlopen(self._base + "/health", timeout=10) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            time.sleep(0.25)
        raise BenchError(self._failed(f"no answer within {START_S} s of its launch"))

    def _run(self, scenario: Scenario) -> tuple[float, list[CallResult]]:
        if self.contestant.pipe:
            return self._run_piped(scenario)
        body = self.contestant.launch(self._setting).body
        wall_s, results = asyncio.run(run_scenario(self._base, scenario, body=body))
        for result in results:
            # Some servers write special tokens out; that is no difference between answers.
            result.text = self._prompts.plain(result.text)
        return wall_s, results

    def _run_piped(self, scenario: Scenario) -> tuple[float, list[CallResult]]:
        """One lane's calls one after the other, or many lanes of one call together."""
        lanes = scenario.lanes
        batches: list[list[tuple[int, int, Call]]]
        if len(lanes) == 1:
            batches = [[(0, turn, call)] for turn, call in enumerate(lanes[0].calls)]
        else:
            batches = [[(index, 0, lane.calls[0]) for index, lane in enumerate(lanes)]]
        results = []
        total = 0.0
        for batch in batches:
            answer = self._ask([call for _, _, call in batch])
            for (index, turn, call), times, tokens in zip(
                batch, answer["pieces"], answer["tokens"], strict=True
            ):
                results.append(
                    CallResult(
                        label=lanes[index].label,
                        lane=index,
                        turn=turn,
                        start_s=total,
                        pieces_s=times,
                        wall_s=times[-1],
                        prompt_tokens=len(self._prompts.encode(call.text)),
                        tokens=len(tokens),
                        text=self._prompts.decode(tokens),
                    )
                )
            total += answer["wall"]
        return total, results

    def _ask(self, calls: list[Call]) -> dict[str, Any]:
        job = {
            "prompts": [self._prompts.encode(call.text) for call in calls],
            "max_tokens": [call.max_tokens for call in calls],
        }
        stdin, _ = self._running().pipes
        try:
            stdin.write(json.dumps(job).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise BenchError(self._failed("it ended")) from None
        answer = self._read_line(ROUND_S)
        if not isinstance(answer, dict):
            raise BenchError(self._failed(f"it answered {answer!r}"))
        return answer

    def _read_line(self, timeout_s: float) -> Any:
        _, stdout = self._running().pipes
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise BenchError(self._failed(f"it said nothing for {timeout_s:g} s"))
        line = stdout.readline()
        if not line:
            raise BenchError(self._failed("it ended"))
        return json.loads(line)
