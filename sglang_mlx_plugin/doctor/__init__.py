"""``sglang-mlx doctor``: whether a launch on this machine would be served by MLX, and if not, why.

What can crash, hang or never come back from an import (MLX, torch, SGLang) is asked in a child
process, `probe`; `checks` turns its answers and what is on disk into findings, `report` prints
them. Importing this package loads the standard library only.
"""

from __future__ import annotations

__all__: list[str] = []
