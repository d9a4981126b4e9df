"""Only the positions that need logits reach the output head.

A vocabulary is wide: for a 512-token prefill the head would cost as much as many layers, and
one position's logits are all that is used. mlx-lm's models end in ``lm_head`` or in the tied
embedding's ``as_linear``; the gate stands in front of whichever it is, told by the model's
attributes rather than by its name, and models where it cannot stand are cut afterwards.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

__all__ = ["HeadGate"]

# What mlx-lm's models call their token embedding.
_TABLES = ("embed_tokens", "wte", "tok_embeddings", "embeddings", "word_embeddings")


class _Picks:
    """The flat positions of the pass in progress; None lets everything through."""

    def __init__(self) -> None:
        self.index: mx.array | None = None

    def apply(self, hidden: mx.array) -> mx.array:
        if self.index is None:
            return hidden
        return hidden.reshape(-1, hidden.shape[-1])[self.index][None]


class _GatedHead(nn.Module):
    """Stands where ``lm_head`` stood."""

    def __init__(self, head: nn.Module, picks: _Picks) -> None:
        super().__init__()
        self.head = head
        self._picks = picks

    def __call__(self, hidden: mx.array) -> mx.array:
        return self.head(self._picks.apply(hidden))


class _GatedEmbedding(nn.Module):
    """Stands where a tied embedding stood; looking tokens up is untouched."""

    def __init__(self, embedding: nn.Module, picks: _Picks) -> None:
        super().__init__()
        self.embedding = embedding
        self._picks = picks

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.embedding(tokens)

    def as_linear(self, hidden: mx.array) -> mx.array:
        return self.embedding.as_linear(self._picks.apply(hidden))

    @property
    def weight(self) -> mx.array:
        return self.embedding.weight


class HeadGate:
    """Puts the gate into `model`, where it fits.

    Args:
        model: An mlx-lm model.

    Attributes:
        gated: Whether the gate stands; if not, `run` cuts the full logits.
    """

    def __init__(self, model: Any) -> None:
        self._picks = _Picks()
        self._undo: list[tuple[Any, str, Any]] = []
        self.gated = self._install(model)

    def _install(self, model: Any) -> bool:
        for owner in _owners(model):
            head = owner.get("lm_head") if isinstance(owner, nn.Module) else None
            if isinstance(head, nn.Module):
                owner.lm_head = _GatedHead(head, self._picks)
                self._undo.append((owner, "lm_head", head))
        if not self._undo:
            for owner in _owners(model):
                for name in _TABLES:
                    table = owner.get(name) if isinstance(owner, nn.Module) else None
                    if isinstance(table, nn.Module) and hasattr(table, "as_linear"):
                        setattr(owner, name, _GatedEmbedding(table, self._picks))
                        self._undo.append((owner, name, table))
        return bool(self._undo)

    def verify(self, model: Any, caches: list[Any], tokens: mx.array) -> None:
        """Run `tokens` once and take the gate out again if it did not act.

        Args:
            model: The model.
            caches: Fresh caches for the run; they are used up.
            tokens: int32 (1, N), N at least 2.
        """
        if not self.gated:
            return
        self._picks.index = mx.array([tokens.shape[1] - 1])
        try:
            out = model(tokens, cache=caches)
            acted = out.shape[:-1] == (1, 1)
        except Exception:
            # Whatever a model does with a head that answers fewer positions, it is one
            # that the gate does not fit; the uncut run that follows is the judge.
            acted = False
        finally:
            self._picks.index = None
        if not acted:
            for owner, name, module in self._undo:
                setattr(owner, name, module)
            self._undo.clear()
            self.gated = False

    def run(self, model: Any, tokens: mx.array, caches: list[Any], picks: np.ndarray) -> mx.array:
        """Forward `tokens` and answer the logits at `picks`.

        Args:
            model: The model.
            tokens: int32 (B, N).
            caches: One cache object for each of the model's layers.
            picks: int64 (K,) flat positions (row * N + step).

        Returns:
            float32 (K, vocab).
        """
        batch, width = tokens.shape
        every = len(picks) == batch * width and bool((picks == np.arange(len(picks))).all())
        # With nothing to pick the run is for the caches alone; one position keeps the
        # graph's shape and is dropped below.
        index = None if every else mx.array(picks if len(picks) else np.zeros(1, np.int64))
        if self.gated:
            self._picks.index = index
            try:
                out = model(tokens, cache=caches)
            finally:
                self._picks.index = None
            flat = out.reshape(-1, out.shape[-1])
        else:
            out = model(tokens, cache=caches)
            flat = out.reshape(-1, out.shape[-1])
            if index is not None:
                flat = flat[index]
        return flat[: len(picks)].astype(mx.float32)


def _owners(model: Any) -> list[Any]:
    """The model and the wrappers that may hold its head, outermost first."""
    owners = [model]
    for name in ("language_model", "model", "transformer", "backbone"):
        for owner in list(owners):
            inner = owner.get(name) if isinstance(owner, nn.Module) else None
            if isinstance(inner, nn.Module) and inner not in owners:
                owners.append(inner)
    return owners
