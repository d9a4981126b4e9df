"""What a model's caches say of it, and how they map onto the engine's stores.

mlx-lm's own `make_prompt_cache` is asked once, after a one-token probe run: which of the
caches hold keys and values that are sliceable by token (plain and sliding-window ones), with
what shapes, and which hold state that is not. No family is known by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList, KVCache, RotatingKVCache, make_prompt_cache

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


_Node = _Leaf | tuple["_Node", ...] | None


@dataclass(frozen=True)
class CacheLayout:
    """A model's caches, as the stores serve them.

    Attributes:
        layers: Attention layers, in the order of the store.
        nodes: One entry for each cache that the model expects: a leaf, a nested tuple for
            a `CacheList`, or None for a layer without one.
        row_by_row: Whether rows must run alone.
    """

    layers: tuple[KVLayerSpec, ...]
    nodes: tuple[_Node, ...]
    row_by_row: bool = False

    @property
    def has_kv(self) -> bool:
        """Whether the model stores keys and values at all."""
        return bool(self.layers)

    def caches(self, view: BatchView, store: KVStore | None) -> list[Any]:
        """The cache objects for one forward pass."""
        leaves = store.caches(view) if store is not None else []

        def build(node: _Node) -> Any:
            if node is None:
                return None
            if isinstance(node, tuple):
                return CacheList(*(build(child) for child in node))
            leaf = leaves[node.layer]
            return leaf if node.window is None else leaf.with_window(node.window)

        return [build(node) for node in self.nodes]


def probe(model: Any, family: str) -> CacheLayout:
    """Find out what `model` caches, by running one token.

    Args:
        model: An mlx-lm model with its weights loaded.
        family: Its ``model_type``, for messages.

    Raises:
        UnsupportedModelError: If a cache is of a kind that cannot be served exactly.
    """
    caches = make_prompt_cache(model)
    mx.eval(model(mx.array([[1, 2]]), cache=caches))
    layers: list[KVLayerSpec] = []

    def read(cache: Any) -> _Node:
        if cache is None:
            return None
        if isinstance(cache, CacheList):
            return tuple(read(child) for child in cache.caches)
        # Exact types: a subclass may cache something else under the same methods.
        if type(cache) not in (KVCache, RotatingKVCache):
            raise UnsupportedModelError(
                f"The model family {family!r} keeps its state in mlx-lm's "
                f"{type(cache).__name__}, which this release cannot serve exactly; choose a "
                "model with attention layers only (full or sliding-window)."
            )
        if cache.keys is None:
            return None
        if isinstance(cache, RotatingKVCache) and cache.keep:
            raise UnsupportedModelError(
                f"The model family {family!r} keeps its first {cache.keep} tokens beside a "
                "sliding window, which this release cannot serve exactly."
            )
        layer = KVLayerSpec(
            index=len(layers),
            heads=int(cache.keys.shape[1]),
            key_dim=int(cache.keys.shape[3]),
            value_dim=int(cache.values.shape[3]),
        )
        layers.append(layer)
        window = cache.max_size if isinstance(cache, RotatingKVCache) else None
        return _Leaf(layer=layer.index, window=window)

    nodes = tuple(read(cache) for cache in caches)
    return CacheLayout(layers=tuple(layers), nodes=nodes)
