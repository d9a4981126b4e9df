"""Auxiliary state by slot: everything of a request that is not sliceable by token.

A slot holds the state of one sequence at one length: recurrent states and convolution tails,
or whole cache objects of kinds that the KV store cannot hold. MLX arrays do not change once
they are made, so a slot holds references: fork and restore copy nothing, and the rows of a
batch go on from the very arrays that the pass before gave.

SGLang's overlapped scheduler processes a step after it has launched the next one, and only
then asks for the state at the length that the step ended on. So each slot keeps the states
of its last `versions` lengths.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from sglang_mlx_plugin.engine.types import BatchView

__all__ = ["OVERLAPPED_VERSIONS", "AuxStore", "StateSpec", "arrays_of"]

# The state that the last step left, and the one before it, for whoever processes that step
# after the next one was launched.
OVERLAPPED_VERSIONS = 2


@dataclass(frozen=True)
class StateSpec:
    """One of a model's caches that lives in auxiliary slots.

    Attributes:
        prototype: The cache as the model makes it, empty.
        batched: Whether it is a list of arrays with one row for each sequence
            (mlx-lm's `ArraysCache`); otherwise the object itself is kept.
        nbytes: Bytes for one sequence.
    """

    prototype: Any
    batched: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one forward pass left: for each spec its arrays, one row a sequence, or an object."""

    states: tuple[Any, ...]
    size: int


@dataclass(frozen=True, slots=True)
class _Version:
    """The state of one sequence after `length` tokens: a row of a batch.

    `kept` ones stay, beside the newest, until somebody has taken a snapshot of them.
    """

    length: int
    batch: _Batch
    row: int
    kept: bool = False


class AuxStore:
    """States by slot (see the module's text).

    Args:
        specs: The caches that a slot holds, in the order of the layout.
        size: Slots, numbered 1..size.
        versions: Lengths that a slot remembers.

    Nothing here waits for the device.
    """

    def __init__(
        self, specs: Sequence[StateSpec], size: int, versions: int = OVERLAPPED_VERSIONS
    ) -> None:
        if size < 1 or versions < 1:
            raise ValueError(f"a state store needs slots and versions, got {size} and {versions}")
        self.specs = tuple(specs)
        self.size = int(size)
        self.versions = int(versions)
        self._slots: list[list[_Version]] = [[] for _ in range(self.size + 1)]
        nothing = tuple(
            (None,) * len(spec.prototype.cache) if spec.batched else None for spec in self.specs
        )
        self._fresh = _Version(0, _Batch(nothing, 1), 0)
        self._unevaluated: list[mx.array] = []

    @property
    def slot_bytes(self) -> int:
        """Bytes of one state."""
        return sum(spec.nbytes for spec in self.specs)

    @property
    def nbytes(self) -> int:
        """Bytes of all states held, each array counted once."""
        found = {id(array): array.nbytes for slot in self._slots for array in self._held(slot)}
        return sum(found.values())

    def length(self, slot: int) -> int:
        """Tokens behind the newest state of `slot`; 0 for an empty one."""
        versions = self._at(slot)
        return versions[0].length if versions else 0

    def clear(self, slots: Iterable[int]) -> None:
        """Forget what `slots` hold."""
        for slot in slots:
            self._at(slot).clear()

    def clear_all(self) -> None:
        """Forget everything."""
        self.clear(range(1, self.size + 1))

    def fork(self, source: int, target: int) -> None:
        """Let `target` go on from the newest state of `source`; no state is copied."""
        versions = self._at(source)
        self._at(target)[:] = [self._alone(versions[0])] if versions else []

    def snapshot(self, source: int, target: int, length: int) -> bool:
        """Keep the state that `source` had after `length` tokens in `target`.

        Returns:
            Whether that state is still there; if not, `target` is left empty.
        """
        versions = self._at(source)
        found = [version for version in versions if version.length == length]
        self._at(target)[:] = [self._alone(found[0])] if found else []
        versions[:] = [v for v in versions if not (v.kept and v.length == length)]
        return bool(found)

    def border(self, slot: int) -> int:
        """Tokens behind the state that `slot` keeps for a snapshot, 0 for none."""
        return next((version.length for version in self._at(slot) if version.kept), 0)

    def settle(self, slot: int, length: int) -> int:
        """Keep only the deepest state of at most `length` tokens.

        Returns:
            Its length; 0, with the slot empty, if there is none.
        """
        versions = self._at(slot)
        found = [version for version in versions if 0 < version.length <= length]
        deepest = max(found, key=lambda version: version.length, default=None)
        versions[:] = [self._alone(deepest)] if deepest is not None else []
        return versions[0].length if versions else 0

    def caches(self, view: BatchView) -> list[Any]:
        """The states of a pass's rows as mlx-lm caches, one for each spec.

        Raises:
            RuntimeError: If a slot does not hold the state that its row goes on from.
        """
        assert view.aux_slots is not None
        prefixes = view.host_prefix_lens.tolist()
        slots = view.aux_slots.tolist()
        rows = [self._resume(slot, at) for slot, at in zip(slots, prefixes, strict=True)]
        batch = _gather(rows)
        ragged = bool((view.host_new_lens != view.width).any())
        caches = []
        for spec, state in zip(self.specs, batch.states, strict=True):
            if not spec.batched:
                caches.append(copy.deepcopy(spec.prototype if state is None else state))
                continue
            cache = copy.copy(spec.prototype)
            # Another handle on each array: a model may update what it is given in place.
            cache.cache = [copy.copy(array) for array in state]
            if ragged:
                cache.prepare(lengths=view.host_new_lens)
            caches.append(cache)
        return caches

    def store(self, view: BatchView, caches: Sequence[Any], *, keep: bool = False) -> None:
        """Take the states that a forward pass left in `caches`.

        Args:
            view: The rows.
            caches: What `caches` gave for them, used.
            keep: Whether the states wait for a snapshot (see `border`).
        """
        assert view.aux_slots is not None
        # A convolution's tail is a slice of all that went through it, which must not stay in
        # memory for its sake.
        states = tuple(
            tuple(None if array is None else mx.contiguous(array) for array in cache.cache)
            if spec.batched
            else cache
            for spec, cache in zip(self.specs, caches, strict=True)
        )
        batch = _Batch(states, view.batch_size)
        self._unevaluated += arrays_of(states)
        lengths = (view.host_prefix_lens + view.host_new_lens).tolist()
        for row, (slot, length) in enumerate(zip(view.aux_slots.tolist(), lengths, strict=True)):
            versions = self._at(slot)
            older = [version for version in versions if version.length < length]
            passing = [version for version in older if not version.kept][: self.versions - 1]
            kept = [] if keep else [version for version in older if version.kept][:1]
            versions[:] = [_Version(length, batch, row, keep), *passing, *kept]

    def take_unevaluated(self) -> list[mx.array]:
        """Arrays made since the last call; to be evaluated with a step's results."""
        arrays, self._unevaluated = self._unevaluated, []
        return arrays

    def _at(self, slot: int) -> list[_Version]:
        if not 1 <= slot <= self.size:
            raise IndexError(f"auxiliary slot {slot} is not one of 1..{self.size}")
        return self._slots[slot]

    def _resume(self, slot: int, length: int) -> _Version:
        if length == 0:
            return self._fresh
        for version in self._at(slot):
            if version.length == length:
                return version
        held = [version.length for version in self._at(slot)]
        raise RuntimeError(
            f"auxiliary slot {slot} holds the states after {held} tokens, but its row goes on "
            f"after {length}"
        )

    def _alone(self, version: _Version) -> _Version:
        """The same state, without the rest of its batch, which would stay in memory with it."""
        if version.batch.size == 1:
            return _Version(version.length, version.batch, 0)
        batch = _gather([version])
        mx.async_eval(*arrays_of(batch.states))
        return _Version(version.length, batch, 0)

    @staticmethod
    def _held(versions: list[_Version]) -> Iterator[mx.array]:
        for version in versions:
            yield from arrays_of(version.batch.states)


def arrays_of(tree: Any) -> list[mx.array]:
    """Every array in a tree of tuples, lists, dictionaries and objects with attributes."""
    if isinstance(tree, mx.array):
        return [tree]
    if tree is None or isinstance(tree, (bool, int, float, str, type)):
        return []
    if isinstance(tree, dict):
        children: Iterable[Any] = tree.values()
    elif isinstance(tree, (tuple, list)):
        children = tree
    else:
        children = getattr(tree, "__dict__", {}).values()
    return [array for child in children for array in arrays_of(child)]


def _gather(rows: Sequence[_Version]) -> _Batch:
    """One batch out of rows of others, in the order given.

    Rows that are all of one batch, in its order, are that batch: steps that decode the same
    requests again hand their arrays on as they are.
    """
    runs: list[tuple[_Batch, list[int]]] = []
    for version in rows:
        if runs and runs[-1][0] is version.batch:
            runs[-1][1].append(version.row)
        else:
            runs.append((version.batch, [version.row]))
    if len(runs) == 1 and _is_whole(*runs[0]):
        return runs[0][0]
    index = [None if _is_whole(batch, picked) else mx.array(picked) for batch, picked in runs]
    states = []
    for spec, first in enumerate(runs[0][0].states):
        if not isinstance(first, tuple):
            raise ValueError("states that are kept as objects are run one row at a time")
        entries = []
        for entry in range(len(first)):
            parts = [batch.states[spec][entry] for batch, _ in runs]
            entries.append(_join(parts, index, [len(picked) for _, picked in runs]))
        states.append(tuple(entries))
    return _Batch(tuple(states), len(rows))


def _is_whole(batch: _Batch, picked: list[int]) -> bool:
    return len(picked) == batch.size and picked == list(range(batch.size))


def _join(
    parts: Sequence[mx.array | None], index: Sequence[mx.array | None], counts: Sequence[int]
) -> mx.array | None:
    """Concatenate the picked rows of `parts`; a sequence without a state yet starts at zero."""
    known = next((part for part in parts if part is not None), None)
    if known is None:
        return None
    picked = []
    for part, rows, count in zip(parts, index, counts, strict=True):
        if part is None:
            picked.append(mx.zeros((count, *known.shape[1:]), known.dtype))
        else:
            picked.append(part if rows is None else mx.take(part, rows, axis=0))
    return picked[0] if len(picked) == 1 else mx.concatenate(picked)
