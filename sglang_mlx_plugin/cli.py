"""The command ``sglang-mlx``, also ``python -m sglang_mlx_plugin``.

A subcommand is a module with a function ``add_parser(subparsers)`` that registers its parser
and leaves a function ``run(args) -> int`` in the parser's defaults; to add one, add its module
to `COMMANDS`. Such a module imports what it works with inside ``run``, so that one subcommand
never pays for, or fails with, what another needs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from ._version import __version__

__all__ = ["COMMANDS", "build_parser", "main"]

COMMANDS: tuple[str, ...] = (
    "sglang_mlx_plugin.models.command",
    "sglang_mlx_plugin.hooks.command",
    "sglang_mlx_plugin.contracts.command",
    "sglang_mlx_plugin.families.command",
    "sglang_mlx_plugin.host.surface_command",
    "sglang_mlx_plugin.doctor.command",
    "sglang_mlx_plugin.bench.command",
)


def build_parser() -> argparse.ArgumentParser:
    """The parser with every subcommand of `COMMANDS`."""
    parser = argparse.ArgumentParser(
        prog="sglang-mlx",
        description="Tools beside the SGLang server on MLX; the server itself is `sglang serve`.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(name).add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        argv: Arguments without the program's name; those of the process by default.

    Returns:
        The exit status: 0, or what the subcommand says; 130 after Ctrl-C.
    """
    args = build_parser().parse_args(argv)
    try:
        status = int(args.run(args))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has gone (`sglang-mlx hooks | head -1`). Python would complain once more
        # when it flushes at exit: give it somewhere to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
