"""mlx-lm running one sequence alone: what every answer of ours is held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sglang_mlx_plugin.engine.device import lend_blas

lend_blas()

import mlx.core as mx  # noqa: E402  (binds its BLAS when it is imported)
from mlx.utils import tree_map  # noqa: E402
from mlx_lm.models.cache import make_prompt_cache  # noqa: E402
from mlx_lm.utils import dequantize_model, load_model  # noqa: E402


def load_float32(folder: Path) -> Any:
    """A model folder through mlx-lm's own loader, unpacked to float32."""
    model, _ = load_model(folder, lazy=True)
    model = dequantize_model(model)

    def cast(value: Any) -> Any:
        floating = isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating)
        return value.astype(mx.float32) if floating else value

    model.update(tree_map(cast, model.parameters()))
    mx.eval(model.parameters())
    return model


def greedy(model: Any, prompt: list[int], count: int) -> tuple[list[int], np.ndarray]:
    """Greedy tokens of `prompt` alone, and the logits that each was chosen from.

    Returns:
        The tokens, and float32 (count, vocab) logits.
    """
    cache = make_prompt_cache(model)
    step = mx.array([prompt])
    tokens: list[int] = []
    logits: list[np.ndarray] = []
    for _ in range(count):
        out = model(step, cache=cache)[0, -1].astype(mx.float32)
        token = int(mx.argmax(out))
        tokens.append(token)
        logits.append(np.array(out))
        step = mx.array([[token]])
    return tokens, np.stack(logits)


def same_or_tie(
    got: list[int], want: list[int], logits: np.ndarray, tolerance: float = 1e-3
) -> None:
    """Assert that two greedy runs agree, up to a first token that is a tie.

    A tie is shown to be one: the reference's logits of the two tokens differ by less than
    `tolerance`; what follows a tie cannot be compared.
    """
    for at, (ours, theirs) in enumerate(zip(got, want, strict=False)):
        if ours != theirs:
            gap = float(logits[at][theirs] - logits[at][ours])
            assert gap < tolerance, (
                f"token {at} is {ours}, mlx-lm alone gives {theirs}, and its logit is "
                f"{gap:.5f} higher: got {got}, want {want}"
            )
            return
    assert len(got) >= min(len(want), 1)
