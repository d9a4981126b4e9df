"""``make bench``: the same as ``sglang-mlx bench``, from the checkout."""

from __future__ import annotations

import sys
from pathlib import Path

from sglang_mlx_plugin.cli import main

RESULTS = Path(__file__).resolve().parent / "results"

if __name__ == "__main__":
    sys.exit(main(["bench", "--results", str(RESULTS), *sys.argv[1:]]))
