"""Does this model give in a batch what it gives alone? Asked once, when it is loaded.

Some of mlx-lm's models broadcast an attention mask against the wrong axis, or read a cache's
offset as one number for all rows. Served in a batch they would answer wrongly without a word,
so each model runs two small ragged batches against the same rows alone; one that differs, or
raises, is served row by row inside the step.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from sglang_mlx_plugin.engine.types import TOP_K_ALL, SamplingRows, StepRequest

if TYPE_CHECKING:
    from sglang_mlx_plugin.engine.step import Engine

__all__ = ["batches_exactly"]

logger = logging.getLogger(__name__)

# Two batch sizes, so that one of them differs from the number of KV heads: a mask on the
# wrong axis then either raises or shows.
_BATCHES = ((5, 2), (3, 7, 1))
_DECODE_STEPS = 2
# Rounding differs between batch sizes by about this share of the largest logit.
_TOLERANCE = {"float32": 1e-3, "float16": 3e-2, "bfloat16": 1e-1}


def batches_exactly(engine: Engine, dtype: str) -> bool:
    """Whether ragged batches give the logits of each row alone.

    Args:
        engine: An engine with at least 3 rows and 64 KV slots, which are used up.
        dtype: Name of the activations' dtype.
    """
    tolerance = _TOLERANCE.get(dtype, 1e-1)
    for lengths in _BATCHES:
        try:
            together = _logits(engine, lengths)
        except Exception as error:
            logger.info("A batch of %d rows raised %s: rows run alone.", len(lengths), error)
            return False
        for row, length in enumerate(lengths):
            alone = _logits(engine, (length,), first=row)[:, 0]
            scale = max(float(np.abs(alone).max()), 1e-6)
            worst = float(np.abs(together[:, row] - alone).max()) / scale
            if not worst < tolerance:
                logger.info("A batch differs from its rows alone by %.2g: rows run alone.", worst)
                return False
    return True


def _logits(engine: Engine, lengths: tuple[int, ...], first: int = 0) -> np.ndarray:
    """Logits of a prefill and some decode steps: float32 (steps, rows, vocab)."""
    rows = len(lengths)
    total = np.array(lengths, np.int32)
    slots = 1 + np.arange(rows * 16, dtype=np.int32).reshape(rows, 16)
    tokens = [
        (7 * (first + row) + 3 * np.arange(length) + 1) % engine.loaded.vocab_size
        for row, length in enumerate(lengths)
    ]
    sampling = SamplingRows(
        temperature=np.ones(rows, np.float32),
        top_p=np.ones(rows, np.float32),
        top_k=np.full(rows, TOP_K_ALL, np.int32),
        min_p=np.zeros(rows, np.float32),
        seeds=np.zeros(rows, np.uint64),
    )
    found = []
    for step in range(1 + _DECODE_STEPS):
        decoding = step > 0
        new = np.ones(rows, np.int32) if decoding else total
        request = StepRequest(
            rows=np.arange(1, rows + 1, dtype=np.int32),
            prefix_lens=total if decoding else np.zeros(rows, np.int32),
            new_lens=new,
            # Tokens are given in decode steps too: a row must not choose its own.
            decode=np.zeros(rows, np.bool_),
            token_ids=(
                np.full(rows, 2 + step, np.int32)
                if decoding
                else np.concatenate(tokens).astype(np.int32)
            ),
            kv_slots=slots,
            needs_token=np.ones(rows, np.bool_),
            sampling=sampling,
        )
        logits = engine.forward(request).logits
        assert logits is not None
        mx.eval(logits, *engine.state())
        found.append(np.array(logits))
        if decoding:
            total = total + 1
    return np.stack(found)
