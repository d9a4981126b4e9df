"""Models with state: what the tree does with snapshots gives mlx-lm's own tokens (float32)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support import families
from tests.support.driver import Driver, engine_of
from tests.support.reference import same_or_tie

from sglang_mlx_plugin.engine.step import Engine  # isort: skip

# One family of each way that state is kept: arrays in padded batches, arrays in batches of
# equal lengths, arrays beside keys and values in one cache, beside windows, objects.
KINDS = ("qwen3_next", "mamba2", "mamba", "falcon_h1", "recurrent_gemma", "lfm2", "llama4")
_engines: dict[str, tuple[Any, Engine]] = {}


def of(name: str) -> tuple[Any, Driver]:
    if name not in _engines:
        model, config = families.build(name)
        _engines[name] = (model, engine_of(model, config))
    model, engine = _engines[name]
    return model, Driver(engine)


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(3, families.VOCAB, length).tolist()


def check(model: Any, prompt: list[int], output: list[int]) -> None:
    tokens, logits = families.reference_generate(model, prompt, len(output))
    same_or_tie(output, list(tokens), np.asarray(logits), tolerance=1e-4)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("chunk", [1, 7])
def test_a_hit_restores_the_deepest_snapshot(name: str, chunk: int) -> None:
    """Prefixes that end at, before and after a chunk's border, and two forks of one snapshot."""
    model, driver = of(name)
    first = driver.add(prompt_of(33))
    driver.prefill([first], chunk)
    driver.decode([first], 4)
    driver.keep_state(first)
    known = first.prompt + first.output
    for prefix in (7, 13, 14, 33, len(known) - 1):
        new = [*known[:prefix], 5, 9, 44]
        forks = [driver.add(new, shared=first, prefix=prefix) for _ in range(2)]
        assert 0 < forks[0].stored <= prefix
        assert prefix - forks[0].stored < max(chunk, 5)
        shared = forks[0].stored
        driver.prefill(forks, 5)
        driver.decode([*forks, first], 4)
        for fork in forks:
            check(model, fork.prompt, fork.output)
            driver.drop(fork, keep=shared)
    check(model, first.prompt, first.output)


@pytest.mark.parametrize("name", KINDS)
def test_a_state_kept_inside_a_prompt(name: str) -> None:
    """Rows are cut at borders of their own, beside a row that is not and one that decodes."""
    model, driver = of(name)
    store = driver.engine.aux_store
    assert store is not None
    goes_on = driver.add(prompt_of(6))
    driver.prefill([goes_on], 100)
    rows = [driver.add(prompt_of(length)) for length in (40, 23, 31)]
    borders = [17, 0, 30]
    step = driver.step(
        prefill=[(row, row.remaining) for row in rows], decode=[goes_on], borders=[*borders, 0]
    )
    driver.read(step)
    driver.decode([*rows, goes_on], 3)
    for row, border in zip(rows, borders, strict=True):
        assert store.border(row.row) == border
        if border:
            slot = driver._states.pop()
            assert store.snapshot(row.row, slot, border)
            row.states[border] = slot
            again = driver.add(row.prompt, shared=row, prefix=border)
            assert again.stored == border
            driver.prefill([again], 100)
            driver.decode([again], 4)
            check(model, again.prompt, again.output)
    for row in [*rows, goes_on]:
        check(model, row.prompt, row.output)


@pytest.mark.parametrize("name", KINDS)
def test_slots_change_hands_without_a_trace(name: str) -> None:
    """A slot that was another's, freed or not, starts from nothing."""
    model, driver = of(name)
    for turn in range(3):
        rows = [driver.add(prompt_of(5 + turn + 9 * row)) for row in range(3)]
        driver.prefill(rows, 6)
        driver.decode(rows, 5)
        for row in rows:
            check(model, row.prompt, row.output)
            driver.drop(row)


@pytest.mark.parametrize("name", KINDS)
def test_a_row_that_was_retracted_starts_again(name: str) -> None:
    """Retraction drops the state; the prompt and the answer so far are read once more."""
    model, driver = of(name)
    stays, goes = driver.add(prompt_of(12)), driver.add(prompt_of(19))
    driver.prefill([stays, goes], 100)
    driver.decode([stays, goes], 3)
    driver.drop(goes)
    driver.decode([stays], 3)
    back = driver.add(goes.prompt + goes.output)
    driver.prefill([back], 8)
    driver.decode([stays, back], 4)
    check(model, stays.prompt, stays.output)
    check(model, goes.prompt, goes.output + back.output)


@pytest.mark.parametrize("name", KINDS)
def test_a_slot_takes_the_bytes_that_were_said(name: str) -> None:
    _, driver = of(name)
    store = driver.engine.aux_store
    assert store is not None
    row = driver.add(prompt_of(20))
    driver.prefill([row], 100)
    driver.drop(row)
    # The snapshot and the live state are one: references.
    assert store.slot_bytes == driver.engine.layout.slot_bytes
    if driver.engine.layout.keeps_objects:
        assert store.nbytes > 0
    else:
        assert store.nbytes == store.slot_bytes


def test_a_state_does_not_hold_the_prompt_that_it_came_from() -> None:
    """A convolution's tail is a slice; kept as one, it would keep 3,000 tokens in memory."""
    import mlx.core as mx

    _, driver = of("lfm2")
    store = driver.engine.aux_store
    assert store is not None
    # The first one makes the KV memory grow.
    for turn in range(2):
        mx.synchronize()
        before = mx.get_active_memory()
        row = driver.add(prompt_of(3000 + turn))
        driver.prefill([row], 4000)
        driver.drop(row)
        mx.synchronize()
        held = mx.get_active_memory() - before
        if not turn:
            store.clear_all()
    assert held <= 2 * store.slot_bytes, f"{held} bytes for a state of {store.slot_bytes}"
