"""``python -m sglang_mlx_plugin`` is ``sglang-mlx``."""

import sys

from .cli import main

sys.exit(main())
