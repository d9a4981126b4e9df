"""The one error of this room."""

__all__ = ["ModelFileError"]


class ModelFileError(RuntimeError):
    """A model that cannot be fetched or converted; the message is a sentence for the user."""
