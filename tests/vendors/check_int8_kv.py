"""Compares the installed example's 8-bit KV store with the built-in one, in its own process.

Usage: ``python -m tests.vendors.check_int8_kv FAMILY``, with the example on the path; prints
one JSON line. It replaces methods of the example, so a test must not run it in its own process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from tests.support.families import build  # lends BLAS to MLX: before MLX is imported

# isort: split

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache
from sglang_mlx_int8_kv.store import Table  # type: ignore[import-not-found]

from sglang_mlx_plugin.engine import kv_store
from sglang_mlx_plugin.engine.types import BatchView
from sglang_mlx_plugin.hooks import get_hooks
from sglang_mlx_plugin.hooks.types import KVLayerSpec, KVStoreSpec

CAPACITY = 3000


def view(prefix: list[int], new: list[int]) -> BatchView:
    """Two rows whose slots lie scattered over the store, the second one shorter."""
    host_prefix, host_new = np.array(prefix, np.int32), np.array(new, np.int32)
    total, width = host_prefix + host_new, int(host_new.max())
    slots = np.stack([np.arange(1, CAPACITY, 149)[:20], np.arange(CAPACITY - 2, 0, -149)[:20]])
    longest = int(total.max())
    read = [
        np.r_[row[:n], np.full(longest - n, row[0])] for row, n in zip(slots, total, strict=True)
    ]
    write = [
        np.r_[row[p : p + n], np.zeros(width - n)]
        for row, p, n in zip(slots, host_prefix, host_new, strict=True)
    ]

    def array(values: Any) -> mx.array:
        return mx.array(np.array(values).astype(np.int32))

    return BatchView(
        prefix_lens=array(host_prefix),
        new_lens=array(host_new),
        kv_slots=array(read),
        write_slots=array(write),
        aux_slots=None,
        host_prefix_lens=host_prefix,
        host_new_lens=host_new,
        host_kv_slots=slots,
        host_write_slots=np.array(write, np.int32),
        max_slot=int(slots.max()),
    )


def main(family: str) -> None:
    """Measure, and print what was measured."""
    model, _ = build(family)
    known = make_prompt_cache(model)
    mx.eval(model(mx.array([[1]]), cache=known))
    layers = tuple(
        KVLayerSpec(
            index=index,
            heads=cache.keys.shape[1],
            key_dim=cache.keys.shape[3],
            value_dim=cache.values.shape[3],
        )
        for index, cache in enumerate(known)
    )
    spec = KVStoreSpec(
        layers=layers,
        capacity=CAPACITY,
        dtype="float32",
        kv_cache_dtype="auto",
        device="cpu",
    )
    hooks = get_hooks()
    exact, store = kv_store.create_kv_store(spec), hooks.create_kv_store(spec)
    random = np.random.default_rng(7)
    tokens = mx.array(random.integers(1, 90, (2, 13)))

    def caches(store: Any, rows: BatchView) -> list[Any]:
        return [
            leaf.with_window(like.max_size) if isinstance(like, RotatingKVCache) else leaf
            for leaf, like in zip(store.caches(rows), known, strict=True)
        ]

    def moved(other: Any) -> float:
        """The greatest difference of logits, in a prefill of two rows and a decode after it."""
        found = 0.0
        steps = [([0, 0], [12, 9], tokens[:, :12]), ([12, 9], [1, 1], tokens[:, 12:])]
        for prefix, new, piece in steps:
            want, got = (
                np.array(model(piece, cache=caches(each, view(prefix, new))))
                for each in (exact, other)
            )
            for row, n in enumerate(new):
                found = max(found, float(np.abs(want[row, :n] - got[row, :n]).max()))
        return found

    def rounding() -> float:
        """The greatest loss of a number, as a share of the greatest number beside it."""
        layer = layers[0]
        found = 0.0
        wanted = [
            random.normal(size=(2, layer.heads, 12, width)).astype(np.float32)
            for width in (layer.key_dim, layer.value_dim)
        ]
        cache = store.caches(view([0, 0], [12, 12]))[0]
        answers = cache.update_and_fetch(*map(mx.array, wanted))
        for want, got in zip(wanted, answers, strict=True):
            loss = np.abs(np.array(got) - want) / np.abs(want).max(-1, keepdims=True)
            found = max(found, float(loss.max()))
        return found

    measured = {
        "moved": moved(store),
        "rounding": rounding(),
        "nbytes": store.nbytes,
        "held": sum(array.nbytes for array in store.arrays()),
        "room": store.bytes_per_token * (CAPACITY + 1),
        "int8": hooks.kv_bytes_per_token(spec),
        "float32": exact.bytes_per_token,
    }

    # The same store with nothing rounded: what is left is slots, windows and masks.
    def write(self: Any, slots: mx.array, rows: mx.array) -> None:
        self.numbers = self.numbers.astype(self.dtype)
        self.numbers[slots] = rows.transpose(0, 2, 1, 3)

    Table.write = write
    Table.read = lambda self, slots: self.numbers[slots].transpose(0, 2, 1, 3)
    print(json.dumps({**measured, "unrounded": moved(hooks.create_kv_store(spec))}))


if __name__ == "__main__":
    main(sys.argv[-1])
