"""The resolver's rule, every value of DESIGN.md, and its sentences."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from sglang_mlx_plugin.hooks.types import ConcurrencyLimits
from sglang_mlx_plugin.host.concurrency import (
    auxiliary_pool_size,
    auxiliary_slots_per_request,
    resolve_max_running_requests,
)


def limits(requested: int | None, tokens: int, **others: Any) -> ConcurrencyLimits:
    return ConcurrencyLimits(max_total_num_tokens=tokens, requested=requested, **others)


@pytest.mark.parametrize(
    ("requested", "tokens", "others", "expected"),
    [
        (None, 1000, {}, 500),
        (None, 100_000, {}, 4096),
        (1, 100_000, {}, 1),
        (64, 100_000, {}, 64),
        (8, 100_000, {"attn_dp_size": 4}, 2),
        (1000, 100, {}, 50),
        (8, 1000, {"is_hybrid": True, "max_mamba_cache_size": 4}, 1),
        (8, 100_000, {"is_hybrid": True, "max_mamba_cache_size": 16}, 4),
        (None, 100_000, {"is_hybrid": True, "max_mamba_cache_size": 8}, 2),
        (8, 100_000, {"is_hybrid": True}, 8),
        (
            8,
            100_000,
            {"is_hybrid": True, "max_mamba_cache_size": 8, "disable_radix_cache": True},
            8,
        ),
        (8, 100_000, {"max_mamba_cache_size": 4}, 8),
        # Beyond DESIGN.md's list: the edges around it.
        (1, 100_000, {"attn_dp_size": 4}, 1),
        (7, 100_000, {"attn_dp_size": 2}, 3),
        (None, 2, {}, 1),
        (8, 100_000, {"is_hybrid": True, "max_mamba_cache_size": 32, "attn_dp_size": 2}, 4),
        (64, 100_000, {"is_hybrid": True, "max_mamba_cache_size": 32, "attn_dp_size": 2}, 4),
        (
            8,
            100_000,
            {"is_hybrid": True, "max_mamba_cache_size": 16, "auxiliary_slots_per_request": 2},
            8,
        ),
    ],
)
def test_value(requested: int | None, tokens: int, others: dict[str, Any], expected: int) -> None:
    assert resolve_max_running_requests(limits(requested, tokens, **others)) == expected


@pytest.mark.parametrize(
    ("requested", "tokens", "others", "names"),
    [
        (
            4,
            100,
            {"is_hybrid": True, "max_mamba_cache_size": 2},
            ["--max-mamba-cache-size 2", "max_mamba_cache_size", "at least 4"],
        ),
        (
            None,
            100_000,
            {"is_hybrid": True, "max_mamba_cache_size": 7, "attn_dp_size": 2},
            ["--max-mamba-cache-size 7", "at least 8"],
        ),
        (
            4,
            100,
            {"is_hybrid": True, "max_mamba_cache_size": 0, "disable_radix_cache": True},
            ["--max-mamba-cache-size 0", "at least 1"],
        ),
        (
            4,
            100,
            {"is_hybrid": True, "max_mamba_cache_size": -8},
            ["--max-mamba-cache-size -8", "at least 4"],
        ),
        (0, 100_000, {}, ["--max-running-requests 0", "at least 1"]),
        (-3, 100_000, {"attn_dp_size": 2}, ["--max-running-requests -3", "at least 1"]),
        (4, 1, {}, ["max_total_num_tokens=1", "--max-total-tokens", "at least 2"]),
        (None, 0, {}, ["max_total_num_tokens=0", "--max-total-tokens", "at least 2"]),
        (None, -4, {}, ["max_total_num_tokens=-4", "at least 2"]),
        (8, 100, {"attn_dp_size": 0}, ["attn_dp_size=0", "at least 1"]),
    ],
)
def test_no_room_is_an_error_that_says_what_works(
    requested: int | None, tokens: int, others: dict[str, Any], names: list[str]
) -> None:
    with pytest.raises(RuntimeError) as caught:
        resolve_max_running_requests(limits(requested, tokens, **others))
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("tokens", "others"),
    [
        (2, {}),
        (100, {"is_hybrid": True, "max_mamba_cache_size": 4}),
        (100, {"is_hybrid": True, "max_mamba_cache_size": 8, "attn_dp_size": 2}),
        (
            100,
            {"is_hybrid": True, "max_mamba_cache_size": 1, "disable_radix_cache": True},
        ),
    ],
)
def test_the_smallest_value_that_an_error_names_works(tokens: int, others: dict[str, Any]) -> None:
    assert resolve_max_running_requests(limits(None, tokens, **others)) == 1


@pytest.mark.parametrize(
    ("requested", "tokens", "others", "asked", "got", "cause"),
    [
        (1000, 100, {}, "1000", "50", "100 tokens"),
        (8, 1000, {"is_hybrid": True, "max_mamba_cache_size": 4}, "8", "1", "4"),
    ],
)
def test_reduced_value_is_a_warning_that_names_both(
    requested: int,
    tokens: int,
    others: dict[str, Any],
    asked: str,
    got: str,
    cause: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        resolve_max_running_requests(limits(requested, tokens, **others))
    (record,) = caplog.records
    text = record.getMessage()
    assert record.levelno == logging.WARNING
    assert f"--max-running-requests {asked}" in text
    assert f"reduced to {got}" in text
    assert cause in text.partition("reduced to")[2]


@pytest.mark.parametrize(
    ("requested", "tokens", "others"),
    [
        (64, 100_000, {}),
        (None, 1000, {}),
        (8, 100_000, {"attn_dp_size": 4}),
        (1, 100_000, {"attn_dp_size": 4}),
        (None, 100_000, {"is_hybrid": True, "max_mamba_cache_size": 8}),
    ],
)
def test_no_warning_where_nothing_was_taken_away(
    requested: int | None, tokens: int, others: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        resolve_max_running_requests(limits(requested, tokens, **others))
    assert not caplog.records


def test_slots_are_four_with_the_radix_cache_and_one_without() -> None:
    assert auxiliary_slots_per_request(limits(None, 100)) == 4
    assert auxiliary_slots_per_request(limits(None, 100, disable_radix_cache=True)) == 1


@pytest.mark.parametrize("radix_off", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("size", [None, 12, 13, 40])
@pytest.mark.parametrize("requested", [None, 1, 5, 9])
def test_pool_always_backs_the_cap(
    requested: int | None, size: int | None, workers: int, radix_off: bool
) -> None:
    """Cap and pool size come from one ratio: no cap is admitted that the pool cannot hold."""
    given = limits(
        requested,
        10_000,
        is_hybrid=True,
        attn_dp_size=workers,
        max_mamba_cache_size=size,
        disable_radix_cache=radix_off,
    )
    cap = resolve_max_running_requests(given)
    pool = auxiliary_pool_size(given, cap)
    assert pool >= cap * auxiliary_slots_per_request(given)
    if size is None:
        assert pool == cap * auxiliary_slots_per_request(given)


def test_no_pool_without_auxiliary_state() -> None:
    assert auxiliary_pool_size(limits(8, 1000, max_mamba_cache_size=16), 8) == 0
