"""The workloads (a) to (g): what each sends at which level, and what it needs of a contestant."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .prompts import PromptMaker
from .types import BenchError, Call, Lane, Scenario

__all__ = ["DEFAULT_WORKLOADS", "WORKLOADS", "Workload", "choose"]

ModelKind = Literal["model", "tiny"]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A workload.

    Attributes:
        name: On the command line and in the record.
        letter: Its letter in the project's aims.
        what: One clause for the table.
        levels: What is varied; `level_means` says what it is.
        make: A level's scenario.
        model: Which folder it runs on.
        needs: Features that a contestant must have.
        standing: The figure it stands for: a metric of `metrics.METRICS`.
    """

    name: str
    letter: str
    what: str
    levels: tuple[int, ...]
    make: Callable[[PromptMaker, int], Scenario]
    level_means: str = "in flight"
    model: ModelKind = "model"
    needs: frozenset[str] = frozenset()
    standing: str = "tokens_per_s"


def _decode(prompt: int, tokens: int) -> Callable[[PromptMaker, int], Scenario]:
    def make(prompts: PromptMaker, level: int) -> Scenario:
        return Scenario(
            lanes=tuple(
                Lane(calls=(Call(text=prompts.prompt(prompt), max_tokens=tokens),))
                for _ in range(level)
            )
        )

    return make


def _prefill(prompts: PromptMaker, level: int) -> Scenario:
    # Alone, one after the other: what is timed is one prompt's prefill.
    calls = tuple(Call(text=prompts.prompt(level), max_tokens=1) for _ in range(3))
    return Scenario(lanes=(Lane(calls=calls),))


def _chat(prompts: PromptMaker, level: int) -> Scenario:
    system = prompts.prompt(200)
    return Scenario(
        lanes=tuple(
            Lane(
                system=system,
                calls=tuple(Call(text=prompts.prompt(30), max_tokens=24) for _ in range(6)),
            )
            for _ in range(level)
        )
    )


def _agents(prompts: PromptMaker, level: int) -> Scenario:
    prefix = prompts.prompt(1500)
    calls = [Call(text=prefix + " " + prompts.prompt(20), max_tokens=16) for _ in range(32)]
    return Scenario(lanes=tuple(Lane(calls=tuple(calls[i::level])) for i in range(level)))


def _arrival(prompts: PromptMaker, level: int) -> Scenario:
    streams = tuple(
        Lane(calls=(Call(text=prompts.prompt(60), max_tokens=64),), label="streams")
        for _ in range(level)
    )
    call = Call(text=prompts.prompt(2000), max_tokens=8)
    return Scenario(lanes=(*streams, Lane(calls=(call,), label="arrival", after_pieces=8)))


_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def _mixed(prompts: PromptMaker, level: int) -> Scenario:
    kinds: tuple[tuple[str, dict[str, object]], ...] = (
        ("greedy", {}),
        ("sampled", {"temperature": 0.8, "top_p": 0.9, "top_k": 40}),
        ("logprobs", {"logprobs": 5}),
        ("grammar", {"json_schema": json.dumps(_SCHEMA)}),
    )
    lanes = []
    for index in range(level):
        label, options = kinds[index % len(kinds)]
        call = Call(
            text=prompts.prompt(100),
            max_tokens=24,
            options=options,
            exact=label != "grammar",
        )
        lanes.append(Lane(calls=(call,), label=label))
    return Scenario(lanes=tuple(lanes))


WORKLOADS = (
    Workload(
        name="decode",
        letter="a",
        what="180-token prompts, 32 tokens out",
        levels=(1, 4, 8, 16),
        make=_decode(180, 32),
    ),
    Workload(
        name="decode-long",
        letter="a",
        what="180-token prompts, 128 tokens out",
        levels=(1, 2, 4, 8, 16, 32),
        make=_decode(180, 128),
    ),
    Workload(
        name="prefill",
        letter="b",
        what="one prompt at a time, one token out",
        levels=(512, 2000),
        level_means="prompt tokens",
        make=_prefill,
        standing="ttft_s",
    ),
    Workload(
        name="chat",
        letter="c",
        what="6 turns, one system prompt for all users",
        levels=(8,),
        level_means="users",
        make=_chat,
        needs=frozenset({"chat"}),
        standing="ttft_s",
    ),
    Workload(
        name="agents",
        letter="d",
        what="one 1,500-token prefix, 32 short suffixes",
        levels=(8,),
        make=_agents,
        needs=frozenset({"lanes"}),
        standing="ttft_s",
    ),
    Workload(
        name="arrival",
        letter="e",
        what="a 2,000-token prompt beside running streams",
        levels=(8,),
        level_means="streams",
        make=_arrival,
        needs=frozenset({"lanes"}),
        standing="worst_gap_s:streams",
    ),
    Workload(
        name="mixed",
        letter="f",
        what="greedy, sampled, log-probability and grammar rows in one batch",
        levels=(8,),
        make=_mixed,
        needs=frozenset({"sampling", "grammar"}),
    ),
    Workload(
        name="tiny",
        letter="g",
        what="a 2-layer, 64-wide random model: the host's side is all there is",
        levels=(1, 4, 16, 32),
        make=_decode(64, 128),
        model="tiny",
    ),
)

DEFAULT_WORKLOADS = ("decode",)


def choose(names: str) -> tuple[Workload, ...]:
    """Workloads by a comma-separated list of names or letters, or ``all``.

    Raises:
        BenchError: If a name is unknown.
    """
    if names == "all":
        return WORKLOADS
    chosen: list[Workload] = []
    for name in names.split(","):
        found = [each for each in WORKLOADS if name.strip() in (each.name, each.letter)]
        if not found:
            known = ", ".join(f"{each.name} ({each.letter})" for each in WORKLOADS)
            raise BenchError(f"There is no workload {name.strip()!r}; there are: {known}.")
        chosen += [each for each in found if each not in chosen]
    return tuple(chosen)
