"""The running rows' keys and values side by side, for a CPU.

Gathering a batch's tokens from their slots reads memory in pieces of a head's width, which on
a CPU takes as long as the attention that follows. While the same rows decode on, their tokens
are therefore kept gathered, and a step adds one column. It is a copy, so it is bounded
(`SHARE` of the store) and counted in the store's bytes per token; a batch that does not fit
is gathered each step, as on a GPU, where the gather runs at the memory's speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from sglang_mlx_plugin.engine.types import BatchView
    from sglang_mlx_plugin.hooks.types import KVLayerSpec

__all__ = ["SHARE", "DecodeWindow"]

# The window holds at most the store's capacity divided by this.
SHARE = 8
# Columns are taken in steps: rows grow that long before the window is built again.
_STEP = 64


def _size(least: int, step: int = 1) -> int:
    """`step` times 1, 2, 3, 4, 6, 8, 12, 16 and so on, at least `least`.

    MLX reuses a freed buffer for one of the same size only, and memory that is new to the
    process is slow. So windows come in few sizes.
    """
    size = step
    while size < least:
        half = size + size // 2
        if size > step and half >= least:
            return half
        size *= 2
    return size


class DecodeWindow:
    """Gathered keys and values of the rows of one decode pass after another.

    Args:
        layers: Shape of each layer.
        tokens: Most tokens that it may hold, padding included.
    """

    def __init__(self, layers: Sequence[KVLayerSpec], tokens: int) -> None:
        self._layers = tuple(layers)
        self._tokens = tokens
        self._slots: NDArray[np.int32] | None = None
        self._lens: NDArray[np.int32] = np.zeros(0, np.int32)
        # Rows and columns that the arrays have room for.
        self._lanes = 0
        self._columns = 0
        self._held: list[tuple[mx.array, mx.array] | None] = []
        # By head count; what `_room` gives is under its negative.
        self._index: dict[int, mx.array] = {}

    def enter(self, view: BatchView) -> bool:
        """Begin a decode pass; whether the window serves it."""
        total = view.host_prefix_lens + view.host_new_lens
        longest = int(total.max())
        columns, lanes = _size(longest + 1, _STEP), _size(len(total))
        if lanes * columns > self._tokens:
            self._slots, self._held = None, []
            return False
        if not self._goes_on(view, longest):
            self._held = [None] * len(self._layers)
            self._columns, self._lanes = columns, lanes
        self._slots, self._lens, self._index = view.host_kv_slots, total, {}
        return True

    def _goes_on(self, view: BatchView, longest: int) -> bool:
        """Whether the rows are those of the pass before, one token further.

        A slot that was given to another request meanwhile was written by a pass over that
        request, which had other rows: such a pass has built the window anew, or, having
        prefilled, brings a row whose slots are not these.
        """
        before = self._slots
        if before is None or longest > self._columns or len(before) != view.batch_size:
            return False
        if not np.array_equal(view.host_prefix_lens, self._lens):
            return False
        filled = np.arange(before.shape[1])[None] < self._lens[:, None]
        return bool((before == view.host_kv_slots[:, : before.shape[1]])[filled].all())

    def wrote(self, slots: NDArray[np.int32]) -> None:
        """A pass that is not the window's writes `slots`; rows that hold one are stale."""
        if self._slots is not None and bool(np.isin(slots[slots > 0], self._slots).any()):
            self._slots, self._held = None, []

    def fetch(
        self,
        layer: int,
        view: BatchView,
        new: tuple[mx.array, mx.array],
        gather: Callable[[mx.array], tuple[mx.array, mx.array]],
    ) -> tuple[mx.array, mx.array]:
        """Add the new tokens' column and answer all columns.

        Args:
            layer: Which layer.
            view: The pass.
            new: Keys (B, heads, 1, key_dim) and values (B, heads, 1, value_dim).
            gather: Reads rows of the store (lanes, heads, columns), the new tokens included.

        Returns:
            Keys (B, heads, S, key_dim) and values (B, heads, S, value_dim).
        """
        columns = int(view.kv_slots.shape[1])
        shape = self._layers[layer]
        held = self._held[layer]
        if held is None:
            keys, values = gather(self._room(view, shape.heads))
            held = keys.reshape(-1, shape.key_dim), values.reshape(-1, shape.value_dim)
        else:
            at = self._rows(view, shape.heads)
            held[0][at] = new[0]
            held[1][at] = new[1]
        self._held[layer] = held
        grid, batch = (self._lanes, shape.heads, self._columns, -1), view.batch_size
        return (
            held[0].reshape(*grid)[:batch, :, :columns],
            held[1].reshape(*grid)[:batch, :, :columns],
        )

    def arrays(self) -> list[mx.array]:
        """What a step must evaluate."""
        return [array for pair in self._held if pair is not None for array in pair]

    def _room(self, view: BatchView, heads: int) -> mx.array:
        """int32 (lanes, heads, columns): the store's rows, what is only room filled with any."""
        found = self._index.get(-heads)
        if found is None:
            slots = view.host_kv_slots
            room = [(0, self._lanes - len(slots)), (0, self._columns - slots.shape[1])]
            filled = np.pad(slots, room, mode="edge")
            lanes = mx.arange(heads, dtype=mx.int32)[None, :, None]
            found = mx.array(filled.astype(np.int32))[:, None, :] * heads + lanes
            self._index[-heads] = found
        return found

    def _rows(self, view: BatchView, heads: int) -> mx.array:
        """int32 (B, heads, 1): where each row's new column lies in the flat arrays."""
        found = self._index.get(heads)
        if found is None:
            lanes = mx.arange(view.batch_size * heads, dtype=mx.int32) * self._columns
            found = lanes.reshape(view.batch_size, heads, 1) + view.prefix_lens[:, None, None]
            self._index[heads] = found
        return found
