"""Draws follow the exact distribution, and depend on seed and position alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.support.driver import sampling_rows

import mlx.core as mx  # isort: skip
from sglang_mlx_plugin.engine.sampling import BatchSampler, edit_logits, uniforms  # isort: skip
from sglang_mlx_plugin.engine.types import TOP_K_ALL  # isort: skip

VOCAB = 40
DRAWS = 20_000
LOGITS = np.random.default_rng(3).normal(0, 2, VOCAB).astype(np.float32)


def exact(temperature: float, top_p: float, top_k: int, min_p: float) -> np.ndarray:
    """The filtered distribution, as SGLang's reference sampler defines it, in float64."""
    probs = np.exp(LOGITS.astype(np.float64) / temperature)
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    ranked = probs[order]
    before = np.cumsum(ranked) - ranked
    keep = (np.arange(VOCAB) < top_k) & (before <= top_p) & (ranked >= min_p * ranked[0])
    kept = np.zeros(VOCAB)
    kept[order[keep]] = ranked[keep]
    return kept / kept.sum()


def agree(drawn: np.ndarray, probs: np.ndarray) -> None:
    counts = np.bincount(drawn, minlength=VOCAB)
    assert counts[probs == 0].sum() == 0, "a token outside the filtered set was drawn"
    likely = probs * len(drawn) >= 5
    observed = np.append(counts[likely], counts[~likely].sum())
    expected = np.append(probs[likely], probs[~likely].sum()) * len(drawn)
    if expected[-1] < 5:
        observed, expected = (
            observed[:-1],
            expected[:-1] * observed[:-1].sum() / expected[:-1].sum(),
        )
    if len(observed) > 1:
        assert stats.chisquare(observed, expected).pvalue > 1e-4


FILTERS = [
    pytest.param((1.0, 1.0, TOP_K_ALL, 0.0), id="plain"),
    pytest.param((0.5, 1.0, TOP_K_ALL, 0.0), id="temperature"),
    pytest.param((2.5, 1.0, TOP_K_ALL, 0.0), id="hot"),
    pytest.param((1.0, 0.8, TOP_K_ALL, 0.0), id="top-p"),
    pytest.param((1.0, 1.0, 5, 0.0), id="top-k"),
    pytest.param((1.0, 1.0, TOP_K_ALL, 0.1), id="min-p"),
    pytest.param((1.3, 0.9, 12, 0.02), id="all"),
]


@pytest.mark.parametrize("how", FILTERS)
def test_each_filter_alone(how: tuple[float, float, int, float]) -> None:
    temperature, top_p, top_k, min_p = how
    rows = sampling_rows(
        DRAWS, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seeds=[7] * DRAWS
    )
    logits = mx.broadcast_to(mx.array(LOGITS), (DRAWS, VOCAB))
    drawn = np.array(BatchSampler(VOCAB)(logits, rows, mx.arange(DRAWS)))
    agree(drawn, exact(*how))


def test_rows_of_every_filter_mixed_draw_what_they_draw_alone() -> None:
    """A row's token is the same whatever its neighbours ask for, greedy ones among them."""
    every = [param.values[0] for param in FILTERS] + [(1.0, 1.0, 1, 0.0)]
    count = len(every)
    rows = sampling_rows(count, seeds=[11 + i for i in range(count)])
    for i, (temperature, top_p, top_k, min_p) in enumerate(every):
        rows.temperature[i], rows.top_p[i] = temperature, top_p
        rows.top_k[i], rows.min_p[i] = top_k, min_p
    logits = mx.broadcast_to(mx.array(LOGITS), (count, VOCAB))
    sampler = BatchSampler(VOCAB)
    for position in range(200):
        mixed = np.array(sampler(logits, rows, mx.full((count,), position, mx.int32)))
        for i in range(count):
            alone = sampler(logits[:1], rows.take(np.array([i])), mx.full((1,), position, mx.int32))
            assert int(alone[0]) == mixed[i]
        assert mixed[-1] == LOGITS.argmax()


def test_seeds() -> None:
    """The same seed gives the same number; 0 is a seed; neighbours in value share nothing."""
    first, second, third = (
        np.array(uniforms(np.array([seed] * 500, np.uint64), mx.arange(500))) for seed in (0, 1, 0)
    )
    assert (first == third).all()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.15
    assert stats.kstest(first, "uniform").pvalue > 1e-4
    by_seed = np.array(
        uniforms(np.arange(500, dtype=np.uint64) << np.uint64(40), mx.zeros(500, mx.int32))
    )
    assert stats.kstest(by_seed, "uniform").pvalue > 1e-4


def test_a_tiny_top_p_is_greedy() -> None:
    rows = sampling_rows(64, top_p=0.01)
    logits = mx.broadcast_to(mx.array(LOGITS), (64, VOCAB))
    drawn = np.array(BatchSampler(VOCAB)(logits, rows, mx.arange(64)))
    assert (drawn == LOGITS.argmax()).all()


def test_masked_tokens_are_never_drawn() -> None:
    rows = sampling_rows(2000)
    rows.allowed = np.zeros((2000, VOCAB), np.bool_)
    rows.allowed[:, [3, 9]] = True
    logits = edit_logits(mx.broadcast_to(mx.array(LOGITS), (2000, VOCAB)), rows)
    drawn = np.array(BatchSampler(VOCAB)(logits, rows, mx.arange(2000)))
    assert set(drawn) == {3, 9}
