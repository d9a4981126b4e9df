"""States by slot: what the engine's auxiliary store keeps, and what it lets go."""

from __future__ import annotations

import numpy as np
import pytest

from sglang_mlx_plugin.engine.device import lend_blas

lend_blas()

import mlx.core as mx  # noqa: E402
from mlx_lm.models.cache import ArraysCache, KVCache  # noqa: E402

from sglang_mlx_plugin.engine.aux_store import AuxStore, StateSpec  # noqa: E402
from sglang_mlx_plugin.engine.types import BatchView  # noqa: E402

SPECS = (StateSpec(ArraysCache(2), True, 28),)


def view(slots: list[int], prefixes: list[int], lengths: list[int]) -> BatchView:
    """A pass over rows that go on after `prefixes` tokens with `lengths` new ones."""
    rows, width = len(slots), max(lengths)
    return BatchView(
        prefix_lens=mx.array(prefixes),
        new_lens=mx.array(lengths),
        kv_slots=mx.zeros((rows, 1), mx.int32),
        write_slots=mx.zeros((rows, width), mx.int32),
        aux_slots=np.array(slots, np.int32),
        host_prefix_lens=np.array(prefixes, np.int32),
        host_new_lens=np.array(lengths, np.int32),
        host_kv_slots=np.zeros((rows, 1), np.int32),
        host_write_slots=np.zeros((rows, width), np.int32),
        max_slot=0,
    )


def run(store: AuxStore, slots: list[int], prefixes: list[int], lengths: list[int]) -> list[float]:
    """A pass whose model adds each row's new tokens to its state; the states it ended with."""
    part = view(slots, prefixes, lengths)
    (cache,) = store.caches(part)
    before = cache[0] if cache[0] is not None else mx.zeros((len(slots), 3))
    cache[0] = before + mx.array(lengths)[:, None]
    cache[1] = mx.full((len(slots), 4), 7.0)
    store.store(part, [cache])
    return [float(value) for value in cache[0][:, 0].tolist()]


def test_rows_go_on_from_their_own_states_whatever_batch_they_were_in() -> None:
    store = AuxStore(SPECS, 5)
    assert run(store, [1, 2, 3], [0, 0, 0], [4, 2, 1]) == [4, 2, 1]
    # Reordered, one left out, a new one joins.
    assert run(store, [3, 5, 1], [1, 0, 4], [1, 6, 1]) == [2, 6, 5]
    assert run(store, [2], [2], [3]) == [5]
    assert [store.length(slot) for slot in (1, 2, 3, 4, 5)] == [5, 5, 2, 0, 6]


def test_the_same_rows_hand_their_arrays_on_without_a_copy() -> None:
    store = AuxStore(SPECS, 2)
    run(store, [1, 2], [0, 0], [1, 1])
    held = store._slots[1][0].batch
    rows = [store._resume(slot, 1) for slot in (1, 2)]
    from sglang_mlx_plugin.engine.aux_store import _gather

    assert _gather(rows) is held


def test_padding_is_told_to_the_cache_only_where_there_is_some() -> None:
    store = AuxStore(SPECS, 2)
    (even,) = store.caches(view([1, 2], [0, 0], [3, 3]))
    (ragged,) = store.caches(view([1, 2], [0, 0], [3, 1]))
    assert even.lengths is None
    assert ragged.lengths.tolist() == [3, 1]


def test_a_slot_remembers_its_last_two_lengths() -> None:
    """The overlapped scheduler asks for the state of a step after the next was launched."""
    store = AuxStore(SPECS, 3)
    run(store, [1], [0], [4])
    run(store, [1], [4], [1])
    run(store, [1], [5], [1])
    assert store.snapshot(1, 2, 5)
    assert run(store, [2], [5], [1]) == [6]
    assert not store.snapshot(1, 3, 4), "only the last two lengths are kept"
    assert store.length(3) == 0


def test_a_row_that_resumes_at_the_length_before_the_last() -> None:
    store = AuxStore(SPECS, 1)
    run(store, [1], [0], [4])
    run(store, [1], [4], [3])
    assert run(store, [1], [4], [1]) == [5]
    with pytest.raises(RuntimeError, match=r"goes on after 7"):
        run(store, [1], [7], [1])


def test_settle_keeps_the_deepest_state_that_the_key_covers() -> None:
    store = AuxStore(SPECS, 1)
    run(store, [1], [0], [4])
    run(store, [1], [4], [1])
    assert store.settle(1, 4) == 4
    assert run(store, [1], [4], [1]) == [5]
    assert store.settle(1, 3) == 0
    assert store.length(1) == 0


def test_a_fork_shares_and_then_goes_its_own_way() -> None:
    store = AuxStore(SPECS, 3)
    run(store, [1], [0], [4])
    taken = store.nbytes
    store.fork(1, 2)
    store.fork(1, 3)
    assert store.nbytes == taken, "a fork copies references only"
    assert run(store, [2, 3], [4, 4], [1, 2]) == [5, 6]
    assert run(store, [1], [4], [1]) == [5]


def test_a_snapshot_does_not_hold_the_batch_that_it_was_in() -> None:
    store = AuxStore(SPECS, 9, versions=1)
    run(store, list(range(1, 9)), [0] * 8, [1] * 8)
    assert store.snapshot(1, 9, 1)
    store.clear(range(1, 9))
    assert store.nbytes == store.slot_bytes


def test_an_empty_slot_is_not_gone_on_from() -> None:
    store = AuxStore(SPECS, 2)
    run(store, [1], [0], [4])
    store.clear([1])
    with pytest.raises(RuntimeError, match="slot 1 holds the states after"):
        run(store, [1], [4], [1])
    with pytest.raises(IndexError, match=r"1\.\.2"):
        store.clear([3])


def test_what_a_slot_held_does_not_reach_a_row_that_starts() -> None:
    store = AuxStore(SPECS, 1)
    run(store, [1], [0], [4])
    assert run(store, [1], [0], [2]) == [2]


def test_objects_are_kept_whole_and_never_shared() -> None:
    """A cache that updates in place cannot reach a snapshot of itself."""
    store = AuxStore((StateSpec(KVCache(), False, 0),), 2)
    part = view([1], [0], [2])
    (cache,) = store.caches(part)
    cache.update_and_fetch(mx.ones((1, 1, 2, 4)), mx.ones((1, 1, 2, 4)))
    store.store(part, [cache])
    store.fork(1, 2)
    part = view([1], [2], [1])
    (cache,) = store.caches(part)
    cache.update_and_fetch(mx.full((1, 1, 1, 4), 9.0), mx.ones((1, 1, 1, 4)))
    store.store(part, [cache])
    (fork,) = store.caches(view([2], [2], [1]))
    assert fork.offset == 2
    assert fork.update_and_fetch(mx.zeros((1, 1, 1, 4)), mx.ones((1, 1, 1, 4)))[0][
        0, 0, :, 0
    ].tolist() == [1, 1, 0]


def test_new_states_are_named_once_for_evaluation() -> None:
    store = AuxStore(SPECS, 1)
    run(store, [1], [0], [4])
    assert len(store.take_unevaluated()) == 2
    assert store.take_unevaluated() == []


def test_a_kept_state_waits_for_its_snapshot() -> None:
    """The state inside a prompt outlives the two newest, until the tree has taken it."""
    store = AuxStore(SPECS, 3)
    part = view([1], [0], [4])
    (cache,) = store.caches(part)
    cache[0], cache[1] = mx.full((1, 3), 4.0), mx.zeros((1, 4))
    store.store(part, [cache], keep=True)
    for length in (4, 5, 6, 7):
        run(store, [1], [length], [1])
    assert store.border(1) == 4
    assert store.snapshot(1, 2, 4)
    assert store.border(1) == 0
    assert run(store, [2], [4], [1]) == [5]
    assert store.length(1) == 8
