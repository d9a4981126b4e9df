"""Penalties count the whole output, the newest token too, with two steps in flight."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import families
from tests.support.driver import Driver, engine_of, greedy_rows

from sglang_mlx_plugin.engine.types import PenaltyRows, SamplingRows  # isort: skip

PROMPT = [5, 77, 31, 9, 120, 64]
COUNT = 24


def penalised(outputs: int, history: list[int] | None, **values: float) -> SamplingRows:
    rows = greedy_rows(1)
    rows.penalties = PenaltyRows(
        frequency=np.array([values.get("frequency", 0)], np.float32),
        presence=np.array([values.get("presence", 0)], np.float32),
        repetition=np.array([values.get("repetition", 1)], np.float32),
        min_new_tokens=np.array([values.get("min_new_tokens", 0)], np.int32),
        outputs=np.array([outputs], np.int32),
        stop_ids=[tuple(range(64)) if "min_new_tokens" in values else ()],
        histories=[history],
    )
    return rows


def by_hand(model: object, **values: float) -> list[int]:
    """The same, one token at a time with numpy on mlx-lm's own logits."""
    output: list[int] = []
    for _ in range(COUNT):
        logits = families.reference_logits(model, PROMPT + output)[-1].astype(np.float32).copy()
        counts = np.bincount(np.array(output, np.int64), minlength=len(logits))
        logits -= values.get("frequency", 0) * counts + values.get("presence", 0) * (counts > 0)
        if len(output) < values.get("min_new_tokens", 0):
            logits[:64] = -np.inf
        factor = np.where(counts > 0, values.get("repetition", 1), 1)
        logits = np.where(logits < 0, logits * factor, logits / factor)
        output.append(int(logits.argmax()))
    return output


@pytest.mark.parametrize(
    "values",
    [{"frequency": 0.7}, {"presence": 1.5}, {"repetition": 1.6}, {"min_new_tokens": 9}],
    ids=lambda values: next(iter(values)),
)
def test_penalties_match_a_reference_token_by_token(values: dict[str, float]) -> None:
    model, config = families.build("llama")
    driver = Driver(engine_of(model, config))
    sequence = driver.add(PROMPT)
    pending = driver.step([(sequence, len(PROMPT))], sampling_params=penalised(0, [], **values))
    waiting = [pending]
    for outputs in range(1, COUNT):
        # Built before the step before is read: the count of its token is still lazy.
        waiting.append(
            driver.step(decode=[sequence], sampling_params=penalised(outputs, None, **values))
        )
    tokens = [int(step.read().tokens[0]) for step in waiting]
    assert tokens == by_hand(model, **values)
    assert tokens != by_hand(model)


def test_a_row_that_comes_back_brings_its_history() -> None:
    """After a retraction the output so far is prefilled again, and counts again."""
    model, config = families.build("llama")
    expected = by_hand(model, frequency=0.7)
    driver = Driver(engine_of(model, config))
    known = expected[:10]
    sequence = driver.add(PROMPT + known)
    tokens = []
    step = driver.step(
        [(sequence, len(PROMPT) + 10)], sampling_params=penalised(10, known, frequency=0.7)
    )
    tokens.append(int(step.read().tokens[0]))
    for outputs in range(11, COUNT):
        step = driver.step(
            decode=[sequence], sampling_params=penalised(outputs, None, frequency=0.7)
        )
        tokens.append(int(step.read().tokens[0]))
    assert known + tokens == expected
