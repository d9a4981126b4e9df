"""Which way of running a model is exact, found out at start-up on a few tokens.

Whether rows of a batch leave each other alone and padding stays out of their states depends
on each model's code in mlx-lm: some broadcast a mask against the wrong axis, read a cache's
offset as one number for all rows, or know nothing of padding. So it is tried: three short
sequences run through the stores, in ragged pieces, one of them starting while the others go
on, and their logits are compared with mlx-lm's own of each alone. The fastest way that agrees
is taken.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from sglang_mlx_plugin.engine.aux_store import AuxStore
from sglang_mlx_plugin.engine.caches import CacheLayout, UnsupportedModelError, probe
from sglang_mlx_plugin.engine.kv_store import SlotKVStore
from sglang_mlx_plugin.engine.planner import plan
from sglang_mlx_plugin.engine.types import SamplingRows, StepRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sglang_mlx_plugin.hooks.types import LoadedModel

__all__ = ["choose_layout", "disagreement"]

logger = logging.getLogger(__name__)

# New tokens of each sequence in each step; 0 for one that is not there yet. The second step
# has a row that starts beside rows that go on, the third is ragged, and one row's state is of
# a single token, which for some models is smaller than that of more.
STEPS = ((5, 1, 0), (4, 4, 4), (1, 3, 2), (1, 1, 1))
# Slots that each sequence may fill.
ROOM = 16
# Disagreement of logits, in units of their spread. Rounding stays far below; a state that
# padding or a neighbour has entered is off by a good part of 1.
TOLERANCE = {"float32": 1e-2, "float16": 0.1, "bfloat16": 0.2}

# What a few tokens cannot show: families that fail in a batch only beyond some length.
ROW_BY_ROW = {
    # mlx-lm 0.32: `_block_mask` places queries by column (S - L) once there are more blocks
    # than its budget, which is the row's own position only in a row alone.
    "minimax_m3_vl": "its sparse attention places queries by column",
}


def choose_layout(loaded: LoadedModel, *, context_len: int = 0) -> CacheLayout:
    """The layout that serves `loaded` exactly, and fastest.

    Args:
        loaded: The model.
        context_len: Tokens of the longest sequence.

    Raises:
        UnsupportedModelError: If not even one row at a time agrees with mlx-lm.
    """
    probed = probe(loaded.model, context_len=context_len)
    tolerance = TOLERANCE.get(loaded.dtype, TOLERANCE["bfloat16"])
    tried: list[str] = []
    if loaded.family in ROW_BY_ROW:
        tried.append(ROW_BY_ROW[loaded.family])
        probed = replace(probed, row_by_row=True)
    for name, layout in _ways(loaded.model, probed, context_len):
        worst = disagreement(loaded, layout)
        if worst <= tolerance:
            if tried:
                logger.warning(
                    "mlx-lm's model of family %s runs %s, which is exact but slower with "
                    "several requests: %s.",
                    loaded.family,
                    name,
                    "; ".join(tried),
                )
            return layout
        tried.append(
            f"{name} its logits are off by {worst:.2g} of their spread"
            if np.isfinite(worst)
            else f"{name} it fails"
        )
    raise UnsupportedModelError(
        f"The model family {loaded.family!r} cannot be served exactly: what mlx-lm computes in "
        f"pieces differs from what it computes at once ({'; '.join(tried)})."
    )


def _ways(model: Any, layout: CacheLayout, context_len: int) -> Iterator[tuple[str, CacheLayout]]:
    """The ways to run it, fastest first."""
    if not layout.row_by_row:
        yield "in batches", layout
        yield "in batches of equal lengths", replace(layout, padded=False)
    yield "one row at a time", replace(layout, row_by_row=True)
    whole = replace(probe(model, context_len=context_len, whole=True), row_by_row=True)
    yield "one row at a time, on mlx-lm's own caches", whole


def disagreement(loaded: LoadedModel, layout: CacheLayout) -> float:
    """How far `layout` is from mlx-lm alone, in units of the logits' spread; inf on an error."""
    totals = np.sum(STEPS, axis=0)
    tokens = [
        (np.arange(total) * (7 + 4 * row) + row) % min(loaded.vocab_size, 97) + 1
        for row, total in enumerate(totals)
    ]
    tokens = [row % loaded.vocab_size for row in tokens]
    try:
        found = _in_pieces(loaded.model, layout, tokens, getattr(mx, loaded.dtype))
        expected = [
            loaded.model(mx.array(row)[None], cache=make_prompt_cache(loaded.model))[0]
            for row in tokens
        ]
        worst = 0.0
        for row, position, logits in found:
            wanted = np.array(expected[row][position].astype(mx.float32))
            spread = max(float(wanted.std()), 1e-6)
            off = np.abs(np.array(logits.astype(mx.float32)) - wanted).max() / spread
            worst = max(worst, float(off)) if np.isfinite(off) else float("inf")
        return worst
    except Exception as error:
        # Any error means that the model's code does not take this layout.
        logger.debug("%s does not run this way: %s", loaded.family, error, exc_info=True)
        return float("inf")


def _in_pieces(
    model: Any, layout: CacheLayout, tokens: list[NDArray[np.int64]], dtype: mx.Dtype
) -> list[tuple[int, int, mx.array]]:
    """Run the sequences through stores of their own: (row, position, logits) of each piece."""
    rows = len(tokens)
    store = SlotKVStore(layout.layers, rows * ROOM, dtype) if layout.has_kv else None
    states = AuxStore(layout.states, rows) if layout.has_state else None
    done = np.zeros(rows, np.int32)
    found = []
    for lengths in STEPS:
        new = np.array(lengths, np.int32)
        present = np.flatnonzero(new)
        request = _request(tokens, done, new, present)
        padding = float("inf") if layout.padded else 0.0
        for part in plan(request, row_by_row=layout.row_by_row, max_padding=padding):
            assert part.tokens is not None
            inner = states.caches(part.view) if states is not None else []
            caches = layout.caches(part.view, store, inner)
            logits = model(mx.array(part.tokens), cache=caches)
            if states is not None:
                states.store(part.view, inner)
            for i, member in enumerate(part.members):
                row = int(present[member])
                last = int(part.view.host_new_lens[i]) - 1
                found.append((row, int(done[row]) + last, logits[i, last]))
        done = done + new
    return found


def _request(
    tokens: list[NDArray[np.int64]],
    done: NDArray[np.int32],
    new: NDArray[np.int32],
    present: NDArray[np.int64],
) -> StepRequest:
    count = len(present)
    pieces = [tokens[row][done[row] : done[row] + new[row]] for row in present]
    return StepRequest(
        rows=present.astype(np.int32),
        prefix_lens=done[present],
        new_lens=new[present],
        decode=np.zeros(count, np.bool_),
        token_ids=np.concatenate(pieces).astype(np.int32),
        kv_slots=(present[:, None] * ROOM + np.arange(ROOM) + 1).astype(np.int32),
        needs_token=np.ones(count, np.bool_),
        sampling=SamplingRows(
            temperature=np.ones(count, np.float32),
            top_p=np.ones(count, np.float32),
            top_k=np.ones(count, np.int32),
            min_p=np.zeros(count, np.float32),
            seeds=np.zeros(count, np.uint64),
        ),
        aux_slots=(present + 1).astype(np.int32),
    )
