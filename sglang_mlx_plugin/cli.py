"""The command ``sglang-mlx``: each subcommand is registered by the room that does its work."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from ._version import __version__

__all__ = ["main"]

# Modules with an `add_parser(subparsers)`; they import nothing heavy before they run.
_COMMANDS = (
    "sglang_mlx_plugin.models.command",
    "sglang_mlx_plugin.hooks.command",
    "sglang_mlx_plugin.contracts.command",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is the answer."""
    parser = argparse.ArgumentParser(
        prog="sglang-mlx",
        description="Tools of sglang-mlx-plugin. To serve, use SGLang's own `sglang serve`.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in _COMMANDS:
        import_module(name).add_parser(subparsers)
    args = parser.parse_args(argv)
    return int(args.run(args) or 0)


if __name__ == "__main__":
    sys.exit(main())
