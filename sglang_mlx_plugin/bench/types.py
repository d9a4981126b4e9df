"""The nouns of the harness: what is asked of a contestant, and what came back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["BenchError", "Call", "CallResult", "Lane", "RoundResult", "Scenario"]


class BenchError(RuntimeError):
    """Something the harness cannot do; the message is a sentence for the user."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request.

    Attributes:
        text: The prompt, or the user's turn in a chat lane.
        max_tokens: Tokens to generate; the harness's folder declares no end token, so that
            every contestant generates all of them.
        options: More fields of the request's body (temperature, logprobs, ...).
        exact: Fewer tokens than asked for are an error; a grammar may end earlier.
    """

    text: str
    max_tokens: int
    options: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = True


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Requests sent one after the other; the lanes of a scenario run side by side.

    Attributes:
        calls: The requests.
        label: What its figures are grouped under.
        system: System prompt of a chat lane, which carries its answers along; None sends
            every call as a plain completion.
        after_pieces: Start only when every lane with 0 here has streamed this many pieces.
    """

    calls: tuple[Call, ...]
    label: str = ""
    system: str | None = None
    after_pieces: int = 0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What one round sends."""

    lanes: tuple[Lane, ...]


@dataclass(kw_only=True)
class CallResult:
    """What came back for one request.

    Attributes:
        label: Its lane's.
        lane: Its lane's place in the scenario.
        turn: Its place in the lane.
        start_s: When it was sent, seconds from the round's start.
        pieces_s: When each piece with text arrived, seconds after it was sent.
        wall_s: When it was over, seconds after it was sent.
        prompt_tokens: As the contestant counts them.
        cached_tokens: Of these, how many it found cached; None if it does not say.
        tokens: Generated.
        text: The answer.
        error: What went wrong, or None.
    """

    label: str
    lane: int
    turn: int
    start_s: float
    pieces_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    tokens: int = 0
    text: str = ""
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first piece with text."""
        return self.pieces_s[0] if self.pieces_s else None

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between pieces."""
        return [b - a for a, b in zip(self.pieces_s, self.pieces_s[1:], strict=False)]


@dataclass(kw_only=True)
class RoundResult:
    """One scenario run once by one contestant.

    Attributes:
        workload, level, contestant, repeat: Which round it was.
        wall_s: From the first request sent to the last one over.
        calls: The requests.
        peak_bytes: Highest resident memory of its processes, sampled; None without psutil.
        cpu_s: Processor seconds that its processes took; None without psutil.
        load: The machine's one-minute load before the round; None where it has none.
    """

    workload: str
    level: int
    contestant: str
    repeat: int
    wall_s: float
    calls: list[CallResult]
    peak_bytes: int | None = None
    cpu_s: float | None = None
    load: float | None = None

    def as_data(self) -> dict[str, Any]:
        """For JSON; times in microseconds' resolution."""

        def rounded(value: Any) -> Any:
            if isinstance(value, float):
                return round(value, 6)
            if isinstance(value, list):
                return [rounded(item) for item in value]
            if isinstance(value, dict):
                return {key: rounded(item) for key, item in value.items()}
            return value

        return dict(rounded(asdict(self)))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> RoundResult:
        """Back from JSON."""
        fields = dict(data)
        fields["calls"] = [CallResult(**call) for call in data["calls"]]
        return cls(**fields)
