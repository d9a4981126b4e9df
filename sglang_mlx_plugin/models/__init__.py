"""Model folders: the embedded default model, and local GGUF files, as mlx-lm reads them.

`fetch_model` builds or finds the default model's folder, `convert_folder` that of a GGUF file.
Works without SGLang, torch and MLX: a conversion is numpy over bytes.
"""

from __future__ import annotations

from .errors import ModelFileError
from .fetch import convert_folder, fetch_model

__all__ = ["ModelFileError", "convert_folder", "fetch_model"]
