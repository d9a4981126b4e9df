"""What a model's caches say of it, and how they map onto the engine's stores.

mlx-lm's own `make_prompt_cache` is asked once, after a one-token probe run: which of the
caches hold keys and values that are sliceable by token (plain and sliding-window ones), with
what shapes, and which hold state that is not: those go into auxiliary slots, a list of arrays
row by row, any other kind as the object that it is. No family is known by its name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from sglang_mlx_plugin.engine.aux_store import StateSpec, arrays_of
from sglang_mlx_plugin.hooks.types import KVLayerSpec

if TYPE_CHECKING:
    from sglang_mlx_plugin.engine.types import BatchView
    from sglang_mlx_plugin.hooks.types import KVStore

__all__ = ["CacheLayout", "UnsupportedModelError", "probe"]


class UnsupportedModelError(ValueError):
    """A model that the engine cannot serve exactly; the message names it and says why."""


@dataclass(frozen=True)
class _Leaf:
    """One cache of the model: a KV layer of the store, seen through a window or not."""

    layer: int
    window: int | None


@dataclass(frozen=True)
class _State:
    """One cache of the model that lives in auxiliary slots."""

    index: int


_Node = _Leaf | _State | tuple["_Node", ...] | None


@dataclass(frozen=True)
class CacheLayout:
    """A model's caches, as the stores serve them.

    Attributes:
        layers: Attention layers, in the order of the store.
        nodes: One entry for each cache that the model expects: a leaf, a nested tuple for
            a `CacheList`, or None for a layer without one.
        states: Caches that live in auxiliary slots, in the order of the auxiliary store.
        row_by_row: Whether rows must run alone.
        padded: Whether rows of unequal length may share a pass, padded on the right.
    """

    layers: tuple[KVLayerSpec, ...]
    nodes: tuple[_Node, ...]
    states: tuple[StateSpec, ...] = ()
    row_by_row: bool = False
    padded: bool = True

    @property
    def has_kv(self) -> bool:
        """Whether the model stores keys and values by token at all."""
        return bool(self.layers)

    @property
    def has_state(self) -> bool:
        """Whether the model has state that is not sliceable by token."""
        return bool(self.states)

    @property
    def keeps_objects(self) -> bool:
        """Whether some state is kept as the model's own cache objects."""
        return any(not state.batched for state in self.states)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one auxiliary slot; 0 without auxiliary state."""
        return sum(state.nbytes for state in self.states)

    def caches(
        self, view: BatchView, store: KVStore | None, states: Sequence[Any] = ()
    ) -> list[Any]:
        """The cache objects for one forward pass.

        Args:
            view: The rows.
            store: Keys and values.
            states: What `AuxStore.caches` gives for `view`.
        """
        leaves = store.caches(view) if store is not None else []
        return [_build(node, leaves, states) for node in self.nodes]


def _build(node: _Node, leaves: Sequence[Any], states: Sequence[Any]) -> Any:
    # Not a function inside `caches`: one that calls itself is a cycle, and would keep what a
    # pass has gathered until the garbage collector comes by.
    if node is None:
        return None
    if isinstance(node, tuple):
        return CacheList(*(_build(child, leaves, states) for child in node))
    if isinstance(node, _State):
        return states[node.index]
    leaf = leaves[node.layer]
    return leaf if node.window is None else leaf.with_window(node.window)


def probe(model: Any, *, context_len: int = 0, whole: bool = False) -> CacheLayout:
    """Find out what `model` caches, by running two tokens.

    Args:
        model: An mlx-lm model with its weights loaded.
        context_len: Tokens of the longest sequence, for the size of states that grow.
        whole: Keep every cache as the object that it is, for models whose code takes no
            other.
    """
    caches = make_prompt_cache(model)
    mx.eval(model(mx.array([[1, 2]]), cache=caches))
    layers: list[KVLayerSpec] = []
    states: list[StateSpec] = []

    def state(cache: Any, empty: Any, *, batched: bool) -> _State:
        states.append(StateSpec(empty, batched, _state_bytes(cache, context_len)))
        return _State(len(states) - 1)

    def read(cache: Any, empty: Any) -> _Node:
        if cache is None:
            return None
        if whole:
            return state(cache, empty, batched=False)
        # Exact types: a subclass may cache something else under the same methods.
        if type(cache) is CacheList:
            return tuple(
                read(child, vacant)
                for child, vacant in zip(cache.caches, empty.caches, strict=True)
            )
        if type(cache) is ArraysCache:
            return state(cache, empty, batched=True)
        sliding = isinstance(cache, RotatingKVCache)
        if type(cache) not in (KVCache, RotatingKVCache) or (sliding and cache.keep):
            return state(cache, empty, batched=False)
        if cache.keys is None:
            return None
        layer = KVLayerSpec(
            index=len(layers),
            heads=int(cache.keys.shape[1]),
            key_dim=int(cache.keys.shape[3]),
            value_dim=int(cache.values.shape[3]),
        )
        layers.append(layer)
        window = cache.max_size if sliding else None
        return _Leaf(layer=layer.index, window=window)

    vacant = make_prompt_cache(model)
    nodes = tuple(read(cache, empty) for cache, empty in zip(caches, vacant, strict=True))
    layout = CacheLayout(layers=tuple(layers), nodes=nodes, states=tuple(states))
    if layout.keeps_objects:
        # An object that holds one sequence cannot take a batch.
        return CacheLayout(layout.layers, layout.nodes, layout.states, row_by_row=True)
    return layout


def _state_bytes(cache: Any, context_len: int) -> int:
    """Bytes that one sequence's `cache` takes at most, two tokens after it was empty.

    Keys and values grow to the cache's own limit, or to the context; a list of arrays stays
    as large as it is.
    """
    if isinstance(cache, CacheList):
        return sum(_state_bytes(child, context_len) for child in cache.caches)
    if isinstance(cache, ArraysCache):
        return sum(array.nbytes for array in arrays_of(cache.cache))
    grown = 0
    for array in arrays_of(cache):
        if array.ndim == 4:
            limit = getattr(cache, "max_size", None) or getattr(cache, "chunk_size", None)
            tokens = max(min(limit or context_len, max(context_len, 1)), 1)
            grown += math.prod((*array.shape[:2], tokens, array.shape[3])) * array.dtype.size
        else:
            grown += array.nbytes
    return grown
