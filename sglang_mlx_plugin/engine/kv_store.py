"""The token-slot KV store: keys and values of every attention layer, one memory.

A layer's keys lie in one array of shape (slots * heads, key_dim): head h of slot s is row
``s * heads + h``. With one index array a layer can then write its new tokens and gather
the tokens of a whole batch as (B, heads, S, key_dim), contiguous, whatever slots they lie
in: requests join, leave and share prefixes without a copy of anybody's cache.

Slot 0 takes the writes of padding and is never read.

The arrays grow as slots are used, ahead of need and a few layers a pass: copying a gigabyte
at once would keep every running request waiting for seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from sglang_mlx_plugin.engine.decode_window import SHARE, DecodeWindow

if TYPE_CHECKING:
    from sglang_mlx_plugin.engine.types import BatchView
    from sglang_mlx_plugin.hooks.types import KVLayerSpec, KVStoreSpec

__all__ = ["SlotKVCache", "SlotKVStore", "create_kv_store"]

# Slots are allocated in steps, so that an idle server does not hold all that it may come to
# need; a doubling step keeps the copies of growth to a constant factor of what is stored.
# The first step is taken at start-up: memory that is touched for the first time is slow, and
# nobody waits yet. It is an eighth of the store, within these bounds in slots and in bytes.
FIRST_BLOCK = 4096
LARGEST_FIRST_BLOCK = 32768
_LARGEST_FIRST_BYTES = 3 << 29
# The share of the slots in use from which the next step is prepared.
_GROW_AT = 0.75


def create_kv_store(spec: KVStoreSpec) -> SlotKVStore:
    """Build the store that `spec` asks for.

    Raises:
        ValueError: For a KV cache dtype that this store cannot hold.
    """
    dtype_name = spec.dtype if spec.kv_cache_dtype == "auto" else spec.kv_cache_dtype
    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    dtype_name = names.get(dtype_name, dtype_name)
    if dtype_name not in ("float32", "float16", "bfloat16"):
        raise ValueError(
            f"--kv-cache-dtype {spec.kv_cache_dtype} is not available on MLX; "
            "use auto, bfloat16 or float16."
        )
    return SlotKVStore(
        spec.layers, spec.capacity, getattr(mx, dtype_name), decode_window=spec.device == "cpu"
    )


class SlotKVStore:
    """Keys and values by token slot (see the module's text).

    Args:
        layers: Shape of each attention layer.
        capacity: Tokens, in slots 1..capacity.
        dtype: What keys and values are stored in.
        decode_window: Whether running rows are kept gathered between steps, for a CPU
            (`sglang_mlx_plugin.engine.decode_window`).
    """

    def __init__(
        self,
        layers: Sequence[KVLayerSpec],
        capacity: int,
        dtype: mx.Dtype,
        *,
        decode_window: bool = False,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"a KV store needs room for at least one token, got {capacity}")
        self.layers = tuple(layers)
        self.dtype = dtype
        self._capacity = int(capacity)
        # Slots of each layer; they differ while the store grows.
        self._slots = [0] * len(self.layers)
        self._keys = [mx.zeros((0, layer.key_dim), dtype) for layer in self.layers]
        self._values = [mx.zeros((0, layer.value_dim), dtype) for layer in self.layers]
        self._window: DecodeWindow | None = None
        # An index of keys alone has values of width 0: nothing to keep side by side.
        if decode_window and all(layer.value_dim for layer in layers):
            self._window = DecodeWindow(layers, capacity // SHARE)
        room = min(
            self._capacity // 8, LARGEST_FIRST_BLOCK, _LARGEST_FIRST_BYTES // self._slot_bytes
        )
        self._goal = min(max(FIRST_BLOCK, room), self._capacity + 1)
        self._grow(len(self.layers))

    @property
    def capacity(self) -> int:
        """Tokens that can be held."""
        return self._capacity

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token over all layers, its share of the decode window included."""
        own = self._slot_bytes
        return own if self._window is None else own + -(-own // SHARE)

    @property
    def _slot_bytes(self) -> int:
        return sum(map(self._layer_bytes, self.layers))

    def _layer_bytes(self, layer: KVLayerSpec) -> int:
        """Bytes of one token in one layer."""
        return layer.heads * (layer.key_dim + layer.value_dim) * self.dtype.size

    @property
    def nbytes(self) -> int:
        """Bytes allocated now."""
        held = sum(int(array.nbytes) for array in self._gathered())
        sizes = zip(self._slots, self.layers, strict=True)
        return held + sum(slots * self._layer_bytes(layer) for slots, layer in sizes)

    def arrays(self) -> list[mx.array]:
        """Every array of the store."""
        return [*self._keys, *self._values, *self._gathered()]

    def _gathered(self) -> list[mx.array]:
        return [] if self._window is None else self._window.arrays()

    def caches(self, view: BatchView) -> list[SlotKVCache]:
        """One cache for each layer, for one forward pass over `view`'s rows."""
        self._make_room(max(view.max_slot + 1, 1), view.host_write_slots.size)
        pass_ = _Pass(view)
        if self._window is not None:
            if view.decode:
                pass_.window = self._window if self._window.enter(view) else None
            else:
                self._window.wrote(view.host_write_slots)
        return [SlotKVCache(self, layer, pass_) for layer in range(len(self.layers))]

    def write(self, layer: int, rows: mx.array, keys: mx.array, values: mx.array) -> None:
        """Store new tokens.

        Args:
            layer: Index into `layers`.
            rows: int32 (B, heads, N) rows of the layer's arrays.
            keys: (B, heads, N, key_dim).
            values: (B, heads, N, value_dim).
        """
        self._keys[layer][rows] = keys.astype(self.dtype)
        # An index of keys alone has values of width 0, on which MLX's CPU scatter dies.
        if self.layers[layer].value_dim:
            self._values[layer][rows] = values.astype(self.dtype)

    def read(self, layer: int, rows: mx.array) -> tuple[mx.array, mx.array]:
        """Gather tokens.

        Args:
            layer: Index into `layers`.
            rows: int32 (B, heads, S) rows of the layer's arrays.

        Returns:
            Keys (B, heads, S, key_dim) and values (B, heads, S, value_dim).
        """
        keys = mx.take(self._keys[layer], rows, axis=0)
        if not self.layers[layer].value_dim:
            return keys, mx.zeros((*rows.shape, 0), self.dtype)
        return keys, mx.take(self._values[layer], rows, axis=0)

    def _make_room(self, needed: int, new: int) -> None:
        """See that the arrays hold `needed` slots, and grow ahead of need.

        Args:
            needed: Slots, the padding's included.
            new: Slots that this pass writes.

        Raises:
            ValueError: If that is beyond the capacity.
        """
        most = self._capacity + 1
        if needed > most:
            raise ValueError(
                f"KV slot {needed - 1} is beyond the store's capacity of {self._capacity}"
            )
        if needed > self._goal:
            self._goal = min(max(needed, 2 * self._goal), most)
        held = min(self._slots, default=most)
        if needed > held:
            self._grow(len(self.layers))
            held = self._goal
        if held == self._goal < most and needed > _GROW_AT * held:
            self._goal = min(2 * held, most)
        if held < self._goal:
            # As many layers as there must be, if the passes to come are like this one.
            behind = sum(slots < self._goal for slots in self._slots)
            passes = (held - needed) // max(new, 1)
            self._grow(-(-behind // max(passes, 1)))

    def _grow(self, count: int) -> None:
        """Bring up to `count` layers to the goal."""
        for index, layer in enumerate(self.layers):
            if not count:
                return
            more = (self._goal - self._slots[index]) * layer.heads
            if not more:
                continue
            keys = mx.pad(self._keys[index], [(0, more), (0, 0)])
            values = self._values[index]
            if layer.value_dim:
                values = mx.pad(values, [(0, more), (0, 0)])
            # One layer at a time, so that growth never holds the old and the new whole.
            mx.eval(keys, values)
            self._keys[index], self._values[index] = keys, values
            self._slots[index] = self._goal
            count -= 1


class _Pass:
    """What all layers share in one forward pass: index arrays and masks."""

    def __init__(self, view: BatchView) -> None:
        self.view = view
        self.window: DecodeWindow | None = None
        self._rows: dict[int, tuple[mx.array, mx.array]] = {}
        self._masks: dict[int | None, mx.array] = {}

    def rows(self, heads: int) -> tuple[mx.array, mx.array]:
        """Rows to write (B, heads, N) and to read (B, heads, S) for a head count."""
        found = self._rows.get(heads)
        if found is None:
            head = mx.arange(heads, dtype=mx.int32)[None, :, None]
            found = (
                head + self.view.write_slots[:, None, :] * heads,
                head + self.view.kv_slots[:, None, :] * heads,
            )
            self._rows[heads] = found
        return found

    def mask(self, window: int | None) -> mx.array:
        """bool (B, 1, N, S): which stored tokens each new token sees.

        A padding token sees what its row's last token sees, so that no row of the softmax
        is empty.
        """
        found = self._masks.get(window)
        if found is None:
            view = self.view
            steps = mx.arange(view.width, dtype=mx.int32)[None, :]
            last = (view.prefix_lens + view.new_lens - 1)[:, None]
            positions = mx.minimum(view.prefix_lens[:, None] + steps, last)[:, :, None]
            columns = mx.arange(view.kv_slots.shape[1], dtype=mx.int32)[None, None, :]
            found = columns <= positions
            if window is not None:
                found = found & (columns > positions - window)
            found = found[:, None]
            self._masks[window] = found
        return found


class SlotKVCache:
    """One attention layer's cache in one forward pass: mlx-lm's cache protocol.

    Attributes:
        offset: Position of each row's first new token, for rope: int32 (B,), or for a row
            alone the plain number that mlx-lm's own cache has.
        keys: What `update_and_fetch` answered, once it has; some models touch these to keep
            mlx-lm's own arrays in the graph.
        values: Likewise.
    """

    keys: mx.array | None = None
    values: mx.array | None = None

    def __init__(
        self, store: SlotKVStore, layer: int, pass_: _Pass, window: int | None = None
    ) -> None:
        self._store = store
        self._layer = layer
        self._pass = pass_
        self.max_size = window
        self.offset = pass_.view.offset

    def with_window(self, window: int) -> SlotKVCache:
        """The same layer seen through a sliding window of `window` tokens."""
        return type(self)(self._store, self._layer, self._pass, window)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Store the new tokens and return all of each row's tokens.

        Args:
            keys: (B, heads, N, key_dim).
            values: (B, heads, N, value_dim).

        Returns:
            Keys (B, heads, S, key_dim) and values (B, heads, S, value_dim); columns past a
            row's end repeat a token of the same row and must be masked.
        """
        write, read = self._pass.rows(self._store.layers[self._layer].heads)
        self._store.write(self._layer, write, keys, values)
        # Some models update once and then read the offset for later layers' masks.
        self.offset = self._pass.view.end
        store, layer, window = self._store, self._layer, self._pass.window
        if window is None:
            fetched = store.read(layer, read)
        else:
            new = keys.astype(store.dtype), values.astype(store.dtype)
            fetched = window.fetch(layer, self._pass.view, new, lambda at: store.read(layer, at))
        self.keys, self.values = fetched
        return fetched

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What `update_and_fetch` answered, for layers that share another one's cache."""
        assert self.keys is not None and self.values is not None
        return self.keys, self.values

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """The attention mask for N new tokens (`mlx_lm.models.base.create_attention_mask`)."""
        view = self._pass.view
        window = window_size or self.max_size
        longest = int(view.kv_slots.shape[1])
        if window is not None and window >= longest:
            window = None
        if window is None and not return_array:
            if N == 1 and view.uniform:
                return None
            if N == view.width > 1 and view.causal:
                return "causal"
        return self._pass.mask(window)

    def is_trimmable(self) -> bool:
        """Slots are trimmed by SGLang's allocator, never through the cache."""
        return False

    def empty(self) -> bool:
        """Whether no row has stored tokens."""
        return not bool(np.any(self._pass.view.host_prefix_lens))

    def size(self) -> int:
        """Tokens of the longest row, the new ones included."""
        return int(self._pass.view.kv_slots.shape[1])

    @property
    def state(self) -> Any:
        """Nothing: the store holds the state."""
        return []
