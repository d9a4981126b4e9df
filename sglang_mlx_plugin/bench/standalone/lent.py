"""Runs a module as ``python -m`` would, with another BLAS lent to MLX first.

    python lent.py LIBRARY MODULE [ARGUMENTS...]

LIBRARY is loaded with its symbols visible to everything loaded later, or ``-`` for none. The
file stands alone, so that it runs in an environment that has nothing of ours.
"""

from __future__ import annotations

import ctypes
import runpy
import sys
from pathlib import Path

__all__ = ["main"]


def main() -> None:
    """Lend, then become the module."""
    library, module, *arguments = sys.argv[1:]
    if library != "-":
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    # What `python -m` would not have on the path.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path.insert(0, "")
    try:
        # transformers imports torchvision, which beside a CPU torch needs it.
        from sglang_mlx_plugin.host import torchvision_cure
    except ImportError:
        pass
    else:
        torchvision_cure.install()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
