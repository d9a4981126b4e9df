"""Serve language models on Apple's MLX through the standard SGLang server."""

from ._version import __version__

__all__ = ["__version__"]
