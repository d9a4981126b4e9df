"""What mlx-lm's own caches give for each family: alone in chunks, and in ragged batches.

    python -m tests.support.mlx_lm_batching [FAMILY ...] > table.md

Every run is fed the tokens of `reference_generate`, so that its logits can be compared step by
step with the reference's whatever a tie would have chosen. Columns:

- chunks: one sequence alone, its prompt in pieces of 7 and then of 1.
- fresh: a ragged batch, prompts padded on the right, mlx-lm's `prepare` and `finalize`.
- join: rows prefilled alone, then merged into one batch that decodes.
- resume: rows with histories of unequal length, merged, that take up another ragged piece of
  their prompts together, and then decode.
- slots: as resume, but with keys and values in `AlignedRows`: no padding on the left, token i
  of each row in column i, windows by mask over the whole row: what a store by token slot gives.

`ok` is agreement within 1e-4 of the logits' spread; a number is the worst disagreement in
units of it; otherwise the exception, where it was raised.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.families import FAMILIES, VOCAB, build, cache_kinds, reference_generate, runnable

import mlx.core as mx  # isort: skip
import numpy as np  # isort: skip
from mlx_lm.models.cache import (  # isort: skip
    CacheList,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

STEPS = 6
LENGTHS = (3, 20, 11)
TOLERANCE = 1e-4

Prompts = Sequence[list[int]]
Reference = tuple[list[int], np.ndarray]


def prompts(seed: int = 0) -> list[list[int]]:
    """Three prompts of the lengths that the table uses."""
    random = np.random.default_rng(seed)
    return [[int(t) for t in random.integers(3, VOCAB, length)] for length in LENGTHS]


def settle(caches: list[Any]) -> None:
    """Evaluate what the caches hold."""
    mx.eval([cache.state for cache in caches if cache is not None])


def merge(rows: list[list[Any]]) -> list[Any]:
    """One batch cache out of each row's own."""
    return [None if row[0] is None else row[0].merge(list(row)) for row in zip(*rows, strict=True)]


def feed(model: Any, caches: list[Any], pieces: Prompts) -> None:
    """Run ragged pieces of prompts through a batch, padded on the right."""
    lengths = [len(piece) for piece in pieces]
    padding = [max(lengths) - length for length in lengths]
    if any(padding):
        for cache in caches:
            cache.prepare(lengths=lengths, right_padding=padding)
    padded = [piece + [0] * pad for piece, pad in zip(pieces, padding, strict=True)]
    model(mx.array(padded), cache=caches)
    settle(caches)
    if any(padding):
        for cache in caches:
            cache.finalize()
        settle(caches)


def decode(model: Any, caches: list[Any], given: Prompts, references: Sequence[Reference]) -> float:
    """Decode with the reference's tokens; the worst disagreement of the logits."""
    worst = 0.0
    spread = max(float(logits.std()) for _, logits in references)
    last = [prompt[-1] for prompt in given]
    for step in range(STEPS):
        logits = np.array(model(mx.array(last)[:, None], cache=caches)[:, -1].astype(mx.float32))
        for row, (tokens, expected) in enumerate(references):
            worst = max(worst, float(np.abs(logits[row] - expected[step]).max()) / spread)
            last[row] = tokens[step]
        if not np.isfinite(worst):
            return float("inf")
    return worst


def in_chunks(model: Any, given: Prompts, references: Sequence[Reference]) -> float:
    """One sequence alone, in pieces."""
    worst = 0.0
    for size in (7, 1):
        caches = make_prompt_cache(model)
        head = given[1][:-1]
        for start in range(0, len(head), size):
            model(mx.array([head[start : start + size]]), cache=caches)
            settle(caches)
        worst = max(worst, decode(model, caches, given[1:2], references[1:2]))
    return worst


def fresh(model: Any, given: Prompts, references: Sequence[Reference]) -> float:
    """A ragged batch from nothing."""
    caches = merge([make_prompt_cache(model) for _ in given])
    feed(model, caches, [prompt[:-1] for prompt in given])
    return decode(model, caches, given, references)


def history(model: Any, tokens: list[int]) -> list[Any]:
    """The cache of one sequence alone."""
    caches = make_prompt_cache(model)
    model(mx.array([tokens]), cache=caches)
    settle(caches)
    return caches


def join(model: Any, given: Prompts, references: Sequence[Reference]) -> float:
    """Rows that were prefilled alone."""
    caches = merge([history(model, prompt[:-1]) for prompt in given])
    return decode(model, caches, given, references)


def resume(model: Any, given: Prompts, references: Sequence[Reference]) -> float:
    """Rows that go on with their prompts together."""
    cuts = (1, 6, 3)
    caches = merge([history(model, prompt[:cut]) for prompt, cut in zip(given, cuts, strict=True)])
    feed(model, caches, [prompt[cut:-1] for prompt, cut in zip(given, cuts, strict=True)])
    return decode(model, caches, given, references)


class AlignedRows:
    """Keys and values of a ragged batch, each row from column 0 on; an oracle, not fast."""

    def __init__(self, caches: Sequence[Any]) -> None:
        filled = [cache.keys is not None for cache in caches]
        self.rows = [cache.keys_and_values() if all(filled) else None for cache in caches]
        self.window = getattr(caches[0], "max_size", None)
        self.offset = mx.array([cache.offset for cache in caches])
        self.lengths: list[int] | None = None
        self.keys = self.values = None

    @property
    def state(self) -> list[Any]:
        """What to evaluate."""
        return [row for row in self.rows if row is not None]

    def prepare(self, *, lengths: list[int], **_: Any) -> None:
        """The next piece is padded on the right to its longest row."""
        self.lengths = lengths

    def finalize(self) -> None:
        """The piece is through."""
        self.lengths = None

    def make_mask(
        self, size: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        """Who sees whom, (rows, 1, size, columns)."""
        windows = [window for window in (self.window, window_size) if window is not None]
        columns = mx.arange(int(self.offset.max().item()) + size)
        last = self.offset[:, None, None, None] + mx.arange(size)[:, None]
        mask = columns <= last
        return mask & (columns > last - min(windows)) if windows else mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append each row's tokens; all rows, padded on the right."""
        size = keys.shape[2]
        taken = self.lengths or [size] * len(self.rows)
        width = int(self.offset.max().item()) + size
        fetched: list[list[mx.array]] = [[], []]
        for index, row in enumerate(self.rows):
            stored = []
            for part, (new, all_rows) in enumerate(zip((keys, values), fetched, strict=True)):
                new = new[index : index + 1]
                whole = new if row is None else mx.concatenate([row[part], new], axis=2)
                missing = width - whole.shape[2]
                all_rows.append(mx.pad(whole, [(0, 0), (0, 0), (0, missing), (0, 0)]))
                stored.append(whole[:, :, : whole.shape[2] - size + taken[index]])
            self.rows[index] = tuple(stored)
        # Bound anew, never changed in place: models hold on to the one they read.
        self.offset = self.offset + mx.array(taken)
        self.keys, self.values = (mx.concatenate(rows) for rows in fetched)
        return self.keys, self.values

    def keys_and_values(self) -> tuple[Any, Any]:
        """What was fetched last."""
        return self.keys, self.values


def align(caches: Sequence[Any]) -> Any:
    """Batch caches of one layer, keys and values in `AlignedRows`."""
    if isinstance(caches[0], CacheList):
        return CacheList(*(align(parts) for parts in zip(*(c.caches for c in caches), strict=True)))
    if isinstance(caches[0], (KVCache, RotatingKVCache)):
        return AlignedRows(caches)
    return caches[0].merge(list(caches))


def slots(model: Any, given: Prompts, references: Sequence[Reference]) -> float:
    """As `resume`, with rows that begin at column 0."""
    cuts = (1, 6, 3)
    rows = [history(model, prompt[:cut]) for prompt, cut in zip(given, cuts, strict=True)]
    caches = [align(layer) for layer in zip(*rows, strict=True)]
    feed(model, caches, [prompt[cut:-1] for prompt, cut in zip(given, cuts, strict=True)])
    return decode(model, caches, given, references)


def attempt(check: Callable[..., float], *args: Any) -> str:
    """A cell of the table."""
    try:
        worst = check(*args)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        words = " ".join(str(error).split())[:60].replace("|", "/")
        return f"{type(error).__name__} {Path(frame.filename).name}:{frame.lineno} {words}"
    return "ok" if worst < TOLERANCE else f"**{worst:.1g}**"


CHECKS: dict[str, Callable[..., float]] = {
    "chunks": in_chunks,
    "fresh": fresh,
    "join": join,
    "resume": resume,
    "slots": slots,
}


def main(names: Sequence[str]) -> None:
    """Print the table, a row as soon as it is known."""
    print("| family | caches |", " | ".join(CHECKS), "|")
    print("|---|---|" + "---|" * len(CHECKS))
    for name in names or FAMILIES:
        if not runnable(name):
            print(f"| {name} | {', '.join(FAMILIES[name].kinds)} | needs Metal |" + " |" * 3)
            continue
        model, _ = build(name)
        given = prompts()
        references = [reference_generate(model, prompt, STEPS) for prompt in given]
        cells = [attempt(check, model, given, references) for check in CHECKS.values()]
        kinds = ", ".join(cache_kinds(make_prompt_cache(model)))
        print(f"| {name} | {kinds} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
