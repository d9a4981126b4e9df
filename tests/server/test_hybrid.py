"""Models with auxiliary state through the standard launch, tiny and random."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import families
from tests.support.reference import same_or_tie
from tests.support.server import Server, launched

pytestmark = pytest.mark.server

# A hybrid whose padded batches are exact, and a purely recurrent one whose are not and whose
# class SGLang does not know.
ARCHITECTURES = {"qwen3_next": "Qwen3NextForCausalLM", "mamba": "MambaForCausalLM"}
RUNNING = 4
NEW = 14


@dataclass
class Served:
    """A launched server and the model that it serves."""

    server: Server
    model: Any

    def check(self, prompt: list[int], answer: dict[str, Any]) -> None:
        """The answer is mlx-lm's own of the prompt alone."""
        got = answer["output_ids"]
        tokens, logits = families.reference_generate(self.model, prompt, len(got))
        same_or_tie(got, list(tokens), np.asarray(logits), tolerance=1e-4)

    def ask(self, prompt: list[int], count: int = NEW) -> dict[str, Any]:
        return self.server.generate(prompt, max_new_tokens=count, ignore_eos=True)

    def idle(self) -> None:
        """Fails if the scheduler's check of its pools found a leak while idle."""
        self.server.flush()
        assert self.server.process.poll() is None, self.server.tail()
        assert "leak detected" not in self.server.log.read_text(errors="replace")


def save(name: str, folder: Path) -> Any:
    model, config = families.build(name)
    families.save(model, {**config, "architectures": [ARCHITECTURES[name]]}, folder)
    return model


def draw(*lengths: int) -> list[list[int]]:
    random = np.random.default_rng(sum(lengths))
    return [random.integers(3, families.VOCAB, length).tolist() for length in lengths]


ARGS = ("--max-running-requests", str(RUNNING), "--mem-fraction-static", "0.3")


@pytest.fixture(scope="module", params=list(ARCHITECTURES))
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    model = save(request.param, folder / "model")
    with launched(folder / "model", folder, *ARGS, "--chunked-prefill-size", "32") as server:
        yield Served(server, model)


@pytest.fixture(scope="module")
def long_prompts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that reads a prompt in one piece."""
    folder = tmp_path_factory.mktemp("long")
    model = save("qwen3_next", folder / "model")
    with launched(folder / "model", folder, *ARGS) as server:
        yield Served(server, model)


def test_the_overlapped_scheduler_is_on(served: Served) -> None:
    assert not served.server.get("/get_server_info")["disable_overlap_schedule"]


def test_concurrent_requests_equal_mlx_lm_alone(served: Served) -> None:
    prompts = draw(1, 5, 70, 33, 12, 64, 2, 90, 31, 32, 8, 47)
    served.server.flush()
    calls = [{"tokens": p, "max_new_tokens": NEW, "ignore_eos": True} for p in prompts]
    for _ in range(2):
        for prompt, answer in zip(prompts, served.server.together(calls), strict=True):
            served.check(prompt, answer)


def test_turns_of_a_chat_recompute_only_what_is_new(served: Served) -> None:
    served.server.flush()
    (known,) = draw(40)
    total = cached = 0
    for turn in range(10):
        answer = served.ask(known)
        served.check(known, answer)
        total += answer["meta_info"]["prompt_tokens"]
        cached += answer["meta_info"]["cached_tokens"]
        if turn:
            # The earlier answer is covered, but for its last token, which was never an input.
            assert answer["meta_info"]["cached_tokens"] >= len(known) - 8
        known = known + answer["output_ids"] + draw(7)[0]
    assert (total - cached) / total < 0.15


def test_two_requests_fork_one_snapshot(served: Served) -> None:
    served.server.flush()
    (prompt,) = draw(50)
    known = prompt + served.ask(prompt)["output_ids"]
    forks = [[*known, 7], [*known, 9, 8]]
    calls = [{"tokens": p, "max_new_tokens": NEW, "ignore_eos": True} for p in forks]
    for fork, answer in zip(forks, served.server.together(calls), strict=True):
        assert answer["meta_info"]["cached_tokens"] >= len(known) - 1
        served.check(fork, answer)


def test_the_same_prompt_again_and_prompts_that_begin_alike(long_prompts: Served) -> None:
    """States are kept inside prompts: at a border near the end, and where others branched."""
    served = long_prompts
    served.server.flush()
    shared, first, second, third = draw(90, 160, 41, 23)
    prompt = shared + first
    served.check(prompt, served.ask(prompt))
    again = served.ask(prompt)
    served.check(prompt, again)
    assert again["meta_info"]["cached_tokens"] == 192
    # The second one to begin alike finds no state where it branches off, and leaves one.
    seen = [served.ask(shared + rest)["meta_info"]["cached_tokens"] for rest in (second, third)]
    assert seen == [0, 64]
    served.check(shared + second[::-1], served.ask(shared + second[::-1]))
    # A request that ends with its first token leaves its border as well.
    (short,) = draw(201)
    served.check(short, served.ask(short, 1))
    twin = served.ask(short)
    served.check(short, twin)
    assert twin["meta_info"]["cached_tokens"] == 192
    served.idle()


def test_nothing_leaks_over_many_times_the_capacity(served: Served) -> None:
    lengths = [1 + 7 * i % 90 for i in range(3 * 4 * RUNNING)]
    calls = [
        {"tokens": p, "max_new_tokens": 1 + i % 9, "ignore_eos": True}
        for i, p in enumerate(draw(*lengths))
    ]
    served.server.together(calls)
    served.idle()


def test_nothing_leaks_without_the_radix_cache(tmp_path: Path) -> None:
    """One slot a request: were one not freed, the next round would find none."""
    model = save("qwen3_next", tmp_path / "model")
    with launched(tmp_path / "model", tmp_path, *ARGS, "--disable-radix-cache") as server:
        served = Served(server, model)
        prompts = draw(3, 41, 17, 60)
        calls = [{"tokens": p, "max_new_tokens": 6, "ignore_eos": True} for p in prompts]
        for _ in range(4):
            for prompt, answer in zip(prompts, server.together(calls), strict=True):
                served.check(prompt, answer)
                assert answer["meta_info"]["cached_tokens"] == 0
        served.idle()
