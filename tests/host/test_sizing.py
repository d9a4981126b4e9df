"""How the memory is shared between KV and auxiliary state, value by value."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from sglang_mlx_plugin.engine.memory import MemoryBudget
from sglang_mlx_plugin.hooks.types import ConcurrencyLimits
from sglang_mlx_plugin.host.concurrency import resolve_max_running_requests
from sglang_mlx_plugin.host.sizing import Costs, PoolSizes, size_pools

BUDGET = MemoryBudget(working_set=20_000, static=12_000, weights=2_000)


def size(*, token: int = 10, slot: int = 100, versions: int = 2, **asked: Any) -> PoolSizes:
    ratio = asked.pop("ratio", 1.0)
    tokens = asked.pop("max_total_tokens", None)
    asked.setdefault("is_hybrid", slot > 0)
    asked.setdefault("auxiliary_slots_per_request", 4)
    return size_pools(
        BUDGET,
        Costs(token=token, slot=slot, versions=versions),
        ConcurrencyLimits(max_total_num_tokens=0, **asked),
        max_total_tokens=tokens,
        context_len=64,
        memory_ratio=ratio,
        resolve=resolve_max_running_requests,
    )


def test_full_attention_takes_all_for_keys_and_values() -> None:
    assert size(slot=0) == PoolSizes(tokens=1000, running=500)


def test_unset_cap_is_what_the_share_of_states_can_back() -> None:
    # Half of 10,000 bytes; a request takes 4 slots and one version more, 500 bytes.
    sizes = size()
    assert (sizes.running, sizes.auxiliary) == (10, 40)
    assert sizes.auxiliary_bytes == 5000
    assert sizes.tokens == 500


def test_what_states_do_not_need_goes_to_keys_and_values() -> None:
    sizes = size(requested=2)
    assert (sizes.running, sizes.auxiliary, sizes.auxiliary_bytes) == (2, 8, 1000)
    assert sizes.tokens == 900


def test_the_ratio_is_of_states_to_keys_and_values() -> None:
    assert size(ratio=0.25).auxiliary_bytes == 2000
    assert size(ratio=0.25).tokens == 800


def test_without_the_radix_cache_a_request_takes_one_slot() -> None:
    sizes = size(auxiliary_slots_per_request=1, versions=1, disable_radix_cache=True)
    assert (sizes.running, sizes.auxiliary) == (50, 50)


def test_a_given_number_of_slots_is_taken_and_caps_the_requests() -> None:
    sizes = size(max_mamba_cache_size=12)
    assert (sizes.running, sizes.auxiliary, sizes.auxiliary_bytes) == (3, 12, 1500)
    assert sizes.tokens == 850


def test_a_given_number_of_slots_that_does_not_fit_is_refused_with_numbers() -> None:
    with pytest.raises(RuntimeError, match=r"--max-mamba-cache-size 100 needs .* fits is 80\."):
        size(max_mamba_cache_size=100)
    assert size(max_mamba_cache_size=76).auxiliary == 76


def test_recurrent_models_need_no_keys_and_values() -> None:
    sizes = size(token=0)
    assert (sizes.running, sizes.auxiliary) == (20, 80)
    assert sizes.tokens == 64 * 64


def test_a_state_that_fits_nowhere_is_refused_with_numbers() -> None:
    with pytest.raises(RuntimeError, match=r"--mamba-full-memory-ratio 1.0 leave"):
        size(slot=2000)


def test_a_cap_that_states_cannot_back_is_reduced_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert size(requested=64).running == 10
    assert "--max-running-requests 64 was reduced to 10" in caplog.text


def test_the_whole_never_exceeds_the_budget() -> None:
    for requested in (None, 1, 3, 9, 40):
        for slots in (None, 4, 9, 23):
            for ratio in (0.1, 0.9, 3.0):
                try:
                    sizes = size(requested=requested, max_mamba_cache_size=slots, ratio=ratio)
                except RuntimeError:
                    continue
                assert sizes.tokens * 10 + sizes.auxiliary_bytes <= BUDGET.kv
                assert sizes.auxiliary >= sizes.running * 4
