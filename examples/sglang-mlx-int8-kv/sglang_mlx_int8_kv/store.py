"""Keys and values as int8, with a float16 scale for each head and token."""

from __future__ import annotations

import mlx.core as mx

from sglang_mlx_plugin.engine.types import BatchView
from sglang_mlx_plugin.hooks.types import KVStoreSpec

BLOCK = 1024


class Table:
    """One layer's keys or values: int8 (slots, heads, width), float16 (slots, heads, 1)."""

    def __init__(self, heads: int, width: int, dtype: mx.Dtype) -> None:
        self.dtype = dtype
        self.numbers = mx.zeros((0, heads, width), mx.int8)
        self.scales = mx.zeros((0, heads, 1), mx.float16)

    def grow(self, slots: int) -> None:
        more = slots - self.numbers.shape[0]
        self.numbers = mx.pad(self.numbers, [(0, more), (0, 0), (0, 0)])
        self.scales = mx.pad(self.scales, [(0, more), (0, 0), (0, 0)])

    def write(self, slots: mx.array, rows: mx.array) -> None:
        rows = rows.transpose(0, 2, 1, 3).astype(mx.float32)
        scales = (mx.abs(rows).max(axis=-1, keepdims=True) / 127).astype(mx.float16)
        rows = rows / mx.maximum(scales.astype(mx.float32), 1e-8)
        self.numbers[slots] = mx.clip(mx.round(rows), -127, 127).astype(mx.int8)
        self.scales[slots] = scales

    def read(self, slots: mx.array) -> mx.array:
        rows = self.numbers[slots].astype(self.dtype) * self.scales[slots].astype(self.dtype)
        return rows.transpose(0, 2, 1, 3)


class Int8Store:
    """A `KVStore`: one pair of tables for each attention layer, grown as slots are named."""

    def __init__(self, spec: KVStoreSpec) -> None:
        dtype = getattr(mx, spec.dtype)
        self.capacity = spec.capacity
        # One byte a number, and a scale for keys and one for values, each in two.
        self.bytes_per_token = sum(n.heads * (n.key_dim + n.value_dim + 4) for n in spec.layers)
        self.layers = [
            (Table(n.heads, n.key_dim, dtype), Table(n.heads, n.value_dim, dtype))
            for n in spec.layers
        ]
        self.slots = 0

    @property
    def nbytes(self) -> int:
        return self.slots * self.bytes_per_token

    def arrays(self) -> list[mx.array]:
        tables = [table for pair in self.layers for table in pair]
        return [array for table in tables for array in (table.numbers, table.scales)]

    def caches(self, view: BatchView) -> list[Int8Cache]:
        if view.max_slot >= self.slots:
            wanted = max(view.max_slot + 1, 2 * self.slots, BLOCK)
            self.slots = min(wanted, self.capacity + 1)
            for table in (table for pair in self.layers for table in pair):
                table.grow(self.slots)
        return [Int8Cache(pair, view) for pair in self.layers]


class Int8Cache:
    """One layer's cache in one forward pass, as mlx-lm's models use it."""

    def __init__(
        self, pair: tuple[Table, Table], view: BatchView, window: int | None = None
    ) -> None:
        self.pair, self.view, self.max_size = pair, view, window
        self.offset = view.offset

    def with_window(self, window: int) -> Int8Cache:
        return Int8Cache(self.pair, self.view, window)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        for table, rows in zip(self.pair, (keys, values), strict=True):
            table.write(self.view.write_slots, rows)
        self.offset = self.view.end
        return self.pair[0].read(self.view.kv_slots), self.pair[1].read(self.view.kv_slots)

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        first, last = self.view.prefix_lens, self.view.prefix_lens + self.view.new_lens - 1
        # A padding token sees what its row's last token sees: no row of the softmax is empty.
        at = mx.minimum(first[:, None] + mx.arange(N)[None], last[:, None])[..., None]
        columns = mx.arange(self.view.kv_slots.shape[1])[None, None]
        window = window_size or self.max_size
        seen = columns <= at if window is None else (columns <= at) & (columns > at - window)
        return seen[:, None]
