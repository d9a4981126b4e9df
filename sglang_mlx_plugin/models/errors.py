"""The one error of this room."""

from __future__ import annotations

__all__ = ["ModelFileError"]


class ModelFileError(RuntimeError):
    """A model that cannot be fetched or converted; the message is one sentence, with what to do."""
