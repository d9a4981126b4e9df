"""The engine's greedy tokens are mlx-lm's own of each sequence alone (float32, tiny models)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support import families
from tests.support.driver import Driver, engine_of
from tests.support.reference import same_or_tie

from sglang_mlx_plugin.engine.caches import UnsupportedModelError  # isort: skip
from sglang_mlx_plugin.engine.step import Engine  # isort: skip

NEW = 10
# One family of each way that a model's caches lead to token slots; the rest of the families
# are in the long part (`make test-families`).
QUICK = ("llama", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "mixtral", "deepseek_v2", "cohere2")
_engines: dict[str, tuple[Any, Engine]] = {}


def of(name: str) -> tuple[Any, Driver]:
    """A family's model and a fresh driver of its engine."""
    if name not in _engines:
        model, config = families.build(name)
        _engines[name] = (model, engine_of(model, config))
    model, engine = _engines[name]
    return model, Driver(engine)


def all_families() -> list[Any]:
    return [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.families])
        for name in families.FAMILIES
        if families.runnable(name)
    ]


def prompts(*lengths: int) -> list[list[int]]:
    draw = np.random.default_rng(sum(lengths))
    return [draw.integers(3, families.VOCAB, length).tolist() for length in lengths]


def check(name: str, model: Any, prompt: list[int], output: list[int]) -> None:
    tokens, logits = families.reference_generate(model, prompt, len(output))
    same_or_tie(output, list(tokens), np.asarray(logits), tolerance=1e-4)


@pytest.fixture(params=all_families())
def family(request: pytest.FixtureRequest) -> str:
    name = request.param
    try:
        of(name)
    except UnsupportedModelError as refused:
        # Refusing by name is an answer too: it has to name the family and say why.
        assert families.config_of(name)["model_type"] in str(refused)
        pytest.skip(f"refused: {refused}")
    return str(name)


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_alone_in_chunks(family: str, chunk: int) -> None:
    model, driver = of(family)
    (prompt,) = prompts(41)
    sequence = driver.add(prompt)
    driver.prefill([sequence], chunk)
    driver.decode([sequence], NEW - 1)
    check(family, model, prompt, sequence.output)


@pytest.mark.parametrize("count", [2, 5, 9])
def test_ragged_batches(family: str, count: int) -> None:
    model, driver = of(family)
    wanted = prompts(*[1, 30, 2, 17, 9, 64, 5, 33, 12][:count])
    sequences = [driver.add(prompt) for prompt in wanted]
    driver.prefill(sequences, 1000)
    driver.decode(sequences, NEW - 1)
    for prompt, sequence in zip(wanted, sequences, strict=True):
        check(family, model, prompt, sequence.output)


def test_rows_join_and_leave(family: str) -> None:
    """Mixed steps: one row prefills in chunks while others decode, and rows come and go."""
    model, driver = of(family)
    first, second, third = (driver.add(prompt) for prompt in prompts(11, 26, 7))
    driver.prefill([first], 4)
    while second.remaining:
        step = driver.step(prefill=[(second, min(9, second.remaining))], decode=[first])
        driver.read(step)
    driver.decode([first, second], 3)
    driver.read(driver.step(prefill=[(third, third.remaining)], decode=[first, second]))
    driver.drop(first)
    driver.decode([second, third], 4)
    driver.drop(second)
    driver.decode([third], 3)
    for sequence in (first, second, third):
        check(family, model, sequence.prompt, sequence.output)


@pytest.mark.parametrize("prefix", [1, 6, 7, 8, 20, 29])
def test_prefix_hits(family: str, prefix: int) -> None:
    """A second prompt starts in the first one's slots, its own answer included."""
    model, driver = of(family)
    (prompt,) = prompts(21)
    first = driver.add(prompt)
    driver.prefill([first], 1000)
    driver.decode([first], NEW)
    known = prompt + first.output
    second = driver.add([*known[:prefix], 5, 9, 44], shared=first, prefix=prefix)
    driver.prefill([second], 2)
    driver.decode([first, second], 6)
    check(family, model, second.prompt, second.output)
    check(family, model, first.prompt, first.output)


def test_slots_are_reused_without_a_trace(family: str) -> None:
    model, driver = of(family)
    for round_ in range(3):
        wanted = prompts(13 + round_, 25)
        sequences = [driver.add(prompt) for prompt in wanted]
        driver.prefill(sequences, 10)
        driver.decode(sequences, NEW - 1)
        for prompt, sequence in zip(wanted, sequences, strict=True):
            check(family, model, prompt, sequence.output)
            driver.drop(sequence)
