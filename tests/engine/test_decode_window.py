"""Rows that are kept gathered between decode steps: used, bounded, and never stale."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import families
from tests.support.driver import Driver, engine_of
from tests.support.reference import same_or_tie

from sglang_mlx_plugin.engine import decode_window, kv_store  # isort: skip
from sglang_mlx_plugin.hooks.types import KVLayerSpec, KVStoreSpec  # isort: skip


def drive() -> tuple[object, Driver]:
    model, config = families.build("llama")
    return model, Driver(engine_of(model, config))


def check(model: object, prompt: list[int], output: list[int]) -> None:
    tokens, logits = families.reference_generate(model, prompt, len(output))
    same_or_tie(output, list(tokens), np.asarray(logits), tolerance=1e-4)


def test_the_same_rows_are_gathered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight steps of the same rows read each layer's slots in the first one only."""
    model, driver = drive()
    rows = [driver.add([5, 9, 17, 3]), driver.add([44, 6])]
    driver.prefill(rows, 100)
    reads: list[int] = []
    read = kv_store.SlotKVStore.read
    monkeypatch.setattr(
        kv_store.SlotKVStore,
        "read",
        lambda store, layer, at: (reads.append(layer), read(store, layer, at))[1],
    )
    driver.decode(rows, 8)
    assert sorted(reads) == sorted(set(reads))
    for row in rows:
        check(model, row.prompt, row.output)


def test_rows_outgrow_the_columns() -> None:
    """Decoding past a step of columns builds the window anew, with the same tokens."""
    model, driver = drive()
    rows = [driver.add(list(range(3, 60))), driver.add([44, 6])]
    driver.prefill(rows, 100)
    driver.decode(rows, 20)
    for row in rows:
        check(model, row.prompt, row.output)


def test_a_new_request_in_the_very_slots_of_an_old_one() -> None:
    """As many tokens, the same slots, the same neighbour: only the write tells them apart."""
    model, driver = drive()
    old, neighbour = driver.add([5, 9, 17, 3]), driver.add([44, 6, 71])
    driver.prefill([old, neighbour], 100)
    driver.decode([old, neighbour], 3)
    slots = list(old.slots)
    driver.drop(old)
    # Taken from the end, so that the new request gets them in the old order.
    driver._free = driver._free[: -len(slots)] + slots[::-1]
    new = driver.add([101, 8, 88, 12, 64, 33, 20][: len(slots)])
    driver.prefill([new], 100)
    assert new.slots == slots
    driver.decode([new, neighbour], 5)
    check(model, new.prompt, new.output)
    check(model, neighbour.prompt, neighbour.output)


def test_a_batch_beyond_the_share_is_gathered_each_step() -> None:
    model, config = families.build("llama")
    # Room for 96 tokens side by side: two rows of 64 columns are more.
    driver = Driver(engine_of(model, config, capacity=96 * decode_window.SHARE), capacity=700)
    rows = [driver.add([5, 9, 17, 3]), driver.add([44, 6])]
    driver.prefill(rows, 100)
    driver.decode(rows, 4)
    assert driver.engine.kv_store is not None
    assert len(driver.engine.kv_store.arrays()) == 2 * len(model.layers)  # type: ignore[attr-defined]
    for row in rows:
        check(model, row.prompt, row.output)


@pytest.mark.parametrize(("device", "share"), [("cpu", 9 / 8), ("metal", 1), ("cuda", 1)])
def test_its_memory_is_counted_and_only_a_cpu_has_it(device: str, share: float) -> None:
    layer = KVLayerSpec(index=0, heads=2, key_dim=8, value_dim=8)
    spec = KVStoreSpec(
        layers=(layer,), capacity=64, dtype="float32", kv_cache_dtype="auto", device=device
    )
    assert kv_store.create_kv_store(spec).bytes_per_token == 2 * (8 + 8) * 4 * share


def test_windows_come_in_few_sizes() -> None:
    """Each size holds what was asked for and wastes less than half of it."""
    sizes = [decode_window._size(least) for least in range(1, 200)]
    assert sorted(set(sizes)) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    assert all(least <= size < 1.5 * least + 1 for least, size in enumerate(sizes, 1))
    assert decode_window._size(65, 64) == 128
    assert decode_window._size(129, 64) == 192
