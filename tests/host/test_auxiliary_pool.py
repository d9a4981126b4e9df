"""Auxiliary slots have one owner at a time, and none is lost.

Each rule's test fails without the rule; `mutants` at the end shows it for the two that decide
who releases.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

from sglang_mlx_plugin.hooks.types import RequestPoolSpec
from sglang_mlx_plugin.host.auxiliary_pool import AuxiliaryRequestPool, Owner
from sglang_mlx_plugin.host.pools import create_request_pool

ROWS, SLOTS = 4, 10


class Kv(SimpleNamespace):
    """`ReqKvInfo`, as far as the pool reads it."""

    @property
    def holds_kv(self) -> bool:
        return self.req_pool_idx is not None

    @property
    def holds_mamba(self) -> bool:
        return self.mamba_pool_idx is not None


def request(name: str = "r") -> Any:
    return SimpleNamespace(
        rid=name, kv=Kv(req_pool_idx=None, mamba_pool_idx=None, kv_allocated_len=1)
    )


def make(*, radix_cache: bool, size: int = ROWS, slots: int = SLOTS) -> AuxiliaryRequestPool:
    return AuxiliaryRequestPool(
        size=size,
        max_context_len=16,
        device="cpu",
        enable_memory_saver=False,
        auxiliary_size=slots,
        owns_auxiliary_state_release=not radix_cache,
    )


class Store:
    """Stands where the engine's store is."""

    def __init__(self) -> None:
        self.cleared: list[int] = []
        self.forks: list[tuple[int, int]] = []

    def clear(self, slots: list[int]) -> None:
        self.cleared += slots

    def clear_all(self) -> None:
        self.cleared.append(0)

    def fork(self, source: int, target: int) -> None:
        self.forks.append((source, target))


def test_the_factory_makes_it_for_hybrid_models() -> None:
    spec = RequestPoolSpec(
        size=2,
        max_context_len=8,
        is_hybrid=True,
        auxiliary_size=8,
        auxiliary_slot_bytes=100,
        disable_radix_cache=True,
    )
    pool = create_request_pool(spec)
    assert isinstance(pool, HybridReqToTokenPool), "upstream asks with isinstance"
    assert pool.owns_auxiliary_state_release
    assert pool.mamba_pool.size == 8
    assert pool.mamba_pool.mem_usage == 800 / (1 << 30)
    assert pool.available_size() == 2


def test_each_request_gets_a_row_and_a_slot_and_keeps_them() -> None:
    pool = make(radix_cache=True)
    first, second = request(), request()
    rows = pool.alloc([first, second])
    assert rows == [first.kv.req_pool_idx, second.kv.req_pool_idx]
    slots = pool.get_mamba_indices(torch.tensor(rows)).tolist()
    assert slots == [int(first.kv.mamba_pool_idx), int(second.kv.mamba_pool_idx)]
    assert len(set(slots)) == 2
    # A chunk later the same row and slot are used.
    assert pool.alloc([first]) == [first.kv.req_pool_idx]
    assert pool.mamba_allocator.available_size() == SLOTS - 2


def test_a_slot_from_a_prefix_hit_is_kept() -> None:
    pool = make(radix_cache=True)
    req = request()
    req.kv.mamba_pool_idx = pool.mamba_allocator.alloc(1)[0]
    taken = int(req.kv.mamba_pool_idx)
    (row,) = pool.alloc([req])
    assert pool.get_mamba_indices(torch.tensor([row])).tolist() == [taken]
    assert pool.mamba_allocator.available_size() == SLOTS - 1


def test_too_few_slots_take_nothing() -> None:
    pool = make(radix_cache=True, slots=ROWS)
    pool.mamba_allocator.alloc(ROWS - 1)
    assert pool.alloc([request(), request()]) is None
    assert pool.available_size() == ROWS
    assert pool.mamba_allocator.available_size() == 1
    assert pool.alloc([request()]) is not None


def test_fewer_slots_than_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="3 auxiliary slots are fewer than the 4 requests"):
        make(radix_cache=False, slots=3)


def test_no_leak_without_the_radix_cache() -> None:
    """Three times the capacity passes through; the pool frees with the row."""
    pool = make(radix_cache=False)
    for _ in range(3 * SLOTS):
        reqs = [request() for _ in range(ROWS)]
        assert pool.alloc(reqs) is not None
        for req in reqs:
            pool.free(req)
            assert not req.kv.holds_mamba
    assert pool.mamba_allocator.available_size() == SLOTS
    assert pool.available_size() == ROWS


def test_no_leak_with_the_radix_cache() -> None:
    """The tree takes some slots and evicts them again; the pool leaves them alone."""
    pool = make(radix_cache=True)
    held: list[torch.Tensor] = []
    for turn in range(3 * SLOTS):
        req = request()
        if pool.mamba_allocator.available_size() == 0:
            pool.mamba_allocator.free_from_tree(held.pop(0))
        assert pool.alloc([req]) is not None
        slot = req.kv.mamba_pool_idx.reshape(1)
        if turn % 3:
            pool.mamba_allocator.hand_to_tree(slot)
            held.append(slot)
        else:
            pool.free_mamba_cache(req)
        pool.free(req)
        assert pool.mamba_allocator.available_size() + len(held) == SLOTS


def test_with_the_radix_cache_the_pool_leaves_the_slot_to_the_tree() -> None:
    pool = make(radix_cache=True)
    req = request()
    pool.alloc([req])
    pool.mamba_allocator.hand_to_tree(req.kv.mamba_pool_idx)
    pool.free(req)
    assert pool.mamba_allocator.owner(int(req.kv.mamba_pool_idx)) is Owner.TREE
    assert pool.mamba_allocator.available_size() == SLOTS - 1


@pytest.mark.parametrize("radix_cache", [True, False])
def test_freeing_twice_raises(radix_cache: bool) -> None:
    pool = make(radix_cache=radix_cache)
    req = request()
    pool.alloc([req])
    slot = req.kv.mamba_pool_idx
    pool.free_mamba_cache(req)
    with pytest.raises(RuntimeError, match="holds no auxiliary slot"):
        pool.free_mamba_cache(req)
    with pytest.raises(RuntimeError, match="freed as a running request's, but it is free"):
        pool.mamba_allocator.free(slot)
    assert pool.mamba_allocator.available_size() == SLOTS


def test_freeing_one_slot_twice_in_a_call_raises() -> None:
    pool = make(radix_cache=True)
    slot = pool.mamba_allocator.alloc(1)
    with pytest.raises(RuntimeError, match="freed"):
        pool.mamba_allocator.free(torch.cat([slot, slot]))


def test_freeing_a_slot_of_the_tree_raises() -> None:
    pool = make(radix_cache=False)
    req = request()
    pool.alloc([req])
    slot = req.kv.mamba_pool_idx
    pool.mamba_allocator.hand_to_tree(slot)
    with pytest.raises(RuntimeError, match="but it is the radix tree's"):
        pool.free(req)
    with pytest.raises(RuntimeError, match="but it is the radix tree's"):
        pool.mamba_allocator.free(slot)
    pool.mamba_allocator.free_from_tree(slot)
    with pytest.raises(RuntimeError, match="freed as the radix tree's, but it is free"):
        pool.mamba_allocator.free_from_tree(slot)


def test_the_tree_takes_only_what_a_request_owns() -> None:
    pool = make(radix_cache=True)
    with pytest.raises(RuntimeError, match="handed to the radix tree"):
        pool.mamba_allocator.hand_to_tree(torch.tensor([1]))
    with pytest.raises(RuntimeError, match=rf"1\.\.{SLOTS}"):
        pool.mamba_allocator.free(torch.tensor([0]))


def test_a_freed_slot_is_cleared_and_a_fork_goes_to_the_store() -> None:
    pool, store = make(radix_cache=False), Store()
    pool.bind(store)  # type: ignore[arg-type]
    first, second = request(), request()
    pool.alloc([first, second])
    slots = [int(first.kv.mamba_pool_idx), int(second.kv.mamba_pool_idx)]
    pool.mamba_pool.copy_from(torch.tensor(slots[:1]), torch.tensor(slots[1:]))
    assert store.forks == [tuple(slots)]
    pool.free(first)
    assert store.cleared == slots[:1]
    pool.clear()
    assert store.cleared == [slots[0], 0]
    assert pool.mamba_allocator.available_size() == SLOTS
    assert pool.available_size() == ROWS


def test_numbers_that_the_scheduler_adds_up() -> None:
    pool = make(radix_cache=True)
    allocator = pool.mamba_allocator
    allocator.alloc_group_begin(3)
    slot = allocator.alloc(1)
    allocator.alloc_group_end()
    assert allocator.available_size() == allocator.schedulable_available_size() == SLOTS - 1
    assert set(allocator.free_slots.tolist()) == set(range(1, SLOTS + 1)) - set(slot.tolist())
    assert allocator.alloc(SLOTS) is None


def mutants() -> dict[str, type[AuxiliaryRequestPool]]:
    """The pool with one rule taken out."""

    class NeverReleases(AuxiliaryRequestPool):
        def free(self, req: Any) -> None:
            super(HybridReqToTokenPool, self).free(req)

    class AlwaysReleases(AuxiliaryRequestPool):
        def free(self, req: Any) -> None:
            if req.kv.holds_mamba:
                self.free_mamba_cache(req)
            super(HybridReqToTokenPool, self).free(req)

    return {
        "test_no_leak_without_the_radix_cache": NeverReleases,
        "test_with_the_radix_cache_the_pool_leaves_the_slot_to_the_tree": AlwaysReleases,
    }


@pytest.mark.parametrize("test", mutants())
def test_a_pool_without_the_rule_fails_its_test(test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "AuxiliaryRequestPool", mutants()[test])
    with pytest.raises((AssertionError, RuntimeError)):
        globals()[test]()
