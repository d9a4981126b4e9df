"""A model's parameters as a flat list; MLX's own function is typed for any tree."""

from __future__ import annotations

from typing import cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

__all__ = ["named_parameters"]


def named_parameters(module: nn.Module) -> list[tuple[str, mx.array]]:
    """Dotted names and arrays of all parameters of `module`."""
    return cast("list[tuple[str, mx.array]]", tree_flatten(module.parameters()))
