"""The KV store grows ahead of need, a few layers a pass, and loses nothing while it does."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from sglang_mlx_plugin.engine import kv_store
from sglang_mlx_plugin.engine.kv_store import SlotKVStore
from sglang_mlx_plugin.hooks.types import KVLayerSpec
from tests.support import families
from tests.support.driver import Driver, engine_of
from tests.support.reference import same_or_tie

LAYERS = tuple(
    KVLayerSpec(index=index, heads=2, key_dim=8, value_dim=8 * (index != 3)) for index in range(8)
)


def sizes(store: SlotKVStore) -> list[int]:
    """Slots of each layer, read off its arrays."""
    found = [array.shape[0] // 2 for array in store._keys]
    assert [array.shape[0] // 2 for array in store._values if array.shape[1]] == [
        slots for slots, layer in zip(found, LAYERS, strict=True) if layer.value_dim
    ]
    return found


def test_growth_is_spread_over_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding four rows there is always room, and at most two layers grow in one pass."""
    monkeypatch.setattr(kv_store, "FIRST_BLOCK", 256)
    monkeypatch.setattr(kv_store, "LARGEST_FIRST_BLOCK", 64)
    store = SlotKVStore(LAYERS, 1000, mx.float32)
    before, most = sizes(store), 0
    assert before == [256] * 8
    for needed in range(4, 1001, 4):
        store._make_room(needed, 4)
        now = sizes(store)
        assert min(now) >= needed
        grown = sum(a != b for a, b in zip(before, now, strict=True))
        most, before = max(most, grown), now
    assert 1 <= most <= 2
    assert before == [1001] * 8
    assert store.nbytes == 1001 * store.bytes_per_token


def test_a_leap_grows_all_layers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that needs more than is there gets it, the first time and while layers differ."""
    monkeypatch.setattr(kv_store, "FIRST_BLOCK", 64)
    monkeypatch.setattr(kv_store, "LARGEST_FIRST_BLOCK", 64)
    store = SlotKVStore(LAYERS, 5000, mx.float32)
    store._make_room(52, 4)
    assert sorted(set(sizes(store))) == [64, 128]
    store._make_room(120, 90)
    assert min(sizes(store)) >= 128
    store._make_room(4000, 2)
    assert min(sizes(store)) >= 4000
    with pytest.raises(ValueError, match="5001 is beyond the store's capacity of 5000"):
        store._make_room(5002, 1)


def test_tokens_stay_while_layers_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was stored before, between and after growth is attended to, as mlx-lm has it."""
    monkeypatch.setattr(kv_store, "FIRST_BLOCK", 16)
    monkeypatch.setattr(kv_store, "LARGEST_FIRST_BLOCK", 16)
    model, config = families.build("llama")
    driver = Driver(engine_of(model, config, capacity=600), capacity=600)
    # Slots in order, as SGLang's allocator gives them.
    driver._free.sort(reverse=True)
    rows = [driver.add([5, 9, 17, 3]), driver.add([44, 6, 71, 8, 2, 30])]
    driver.prefill(rows, 100)
    driver.decode(rows, 40)
    late = driver.add(list(range(3, 80)))
    driver.prefill([late], 20)
    rows.append(late)
    driver.decode(rows, 20)
    assert min(array.shape[0] for array in driver.engine.kv_store.arrays()) > 16
    for row in rows:
        tokens, logits = families.reference_generate(model, row.prompt, len(row.output))
        same_or_tie(row.output, list(tokens), np.asarray(logits), tolerance=1e-4)
