"""Greedy tokens through the server equal mlx-lm's own of each sequence alone, in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support import reference
from tests.support.server import Server

pytestmark = pytest.mark.server

LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 127, 128, 129, 144, 200, 256, 257, 383, 700, 1500)
NEW_TOKENS = 8


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Twenty prompts of words, 1 to 1,500 tokens."""
    draw = np.random.default_rng(7)
    return [draw.integers(300, 40_000, length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def expected(default_model: Path, prompts: list[list[int]]) -> list[tuple[list[int], np.ndarray]]:
    """mlx-lm alone."""
    model = reference.load_float32(default_model)
    return [reference.greedy(model, prompt, NEW_TOKENS) for prompt in prompts]


def check(answers: list[dict[str, object]], expected: list[tuple[list[int], np.ndarray]]) -> None:
    for answer, (tokens, logits) in zip(answers, expected, strict=True):
        reference.same_or_tie(answer["output_ids"], tokens, logits)  # type: ignore[arg-type]


def test_alone(
    server: Server,
    prompts: list[list[int]],
    expected: list[tuple[list[int], np.ndarray]],
) -> None:
    """One at a time, prefill in chunks of 128."""
    server.flush()
    answers = [
        server.generate(prompt, max_new_tokens=NEW_TOKENS, ignore_eos=True) for prompt in prompts
    ]
    check(answers, expected)


def test_all_at_once(
    server: Server,
    prompts: list[list[int]],
    expected: list[tuple[list[int], np.ndarray]],
) -> None:
    """All twenty in one batch, joining and leaving as they please."""
    server.flush()
    calls = [
        {"tokens": prompt, "max_new_tokens": NEW_TOKENS, "ignore_eos": True} for prompt in prompts
    ]
    check(server.together(calls), expected)


def test_after_prefix_hits(
    server: Server,
    prompts: list[list[int]],
    expected: list[tuple[list[int], np.ndarray]],
) -> None:
    """Whole-prompt hits: at least one token is recomputed, and the answer is the same."""
    calls = [
        {"tokens": prompt, "max_new_tokens": NEW_TOKENS, "ignore_eos": True} for prompt in prompts
    ]
    server.together(calls)
    again = [server.generate(**call) for call in calls]
    for prompt, answer in zip(prompts, again, strict=True):
        cached = answer["meta_info"]["cached_tokens"]
        assert cached <= len(prompt) - 1
        if len(prompt) > 1:
            assert cached >= len(prompt) - 1
    check(again, expected)


def test_logprobs_agree_with_mlx_lm(
    server: Server,
    prompts: list[list[int]],
    expected: list[tuple[list[int], np.ndarray]],
) -> None:
    """The chosen tokens' logprobs are those of mlx-lm's logits, to 1e-4."""
    for prompt, (tokens, logits) in list(zip(prompts, expected, strict=True))[:12]:
        answer = server.generate(
            prompt,
            max_new_tokens=NEW_TOKENS,
            ignore_eos=True,
            return_logprob=True,
            top_logprobs_num=3,
        )
        wide = logits.astype(np.float64)
        logprobs = wide - np.log(np.exp(wide - wide.max(-1, keepdims=True)).sum(-1, keepdims=True))
        logprobs -= wide.max(-1, keepdims=True)
        got = answer["meta_info"]["output_token_logprobs"]
        for at, (value, token, _) in enumerate(got):
            if token != tokens[at]:
                break
            assert abs(value - logprobs[at][token]) < 1e-3
            top = answer["meta_info"]["output_top_logprobs"][at]
            assert [entry[0] for entry in top] == sorted((e[0] for e in top), reverse=True)
            assert top[0][1] == token
