"""``python -m sglang_mlx_plugin``: the same as ``sglang-mlx``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
