"""``sglang-mlx fetch-model``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

__all__ = ["add_parser"]


def add_parser(subparsers: Any) -> None:
    """Register the subcommand; it leaves a function ``run(args) -> int`` in the defaults.

    Args:
        subparsers: What `argparse.ArgumentParser.add_subparsers` gave.
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "fetch-model",
        help="build the embedded default model's folder and print its path",
        description=(
            "Build a model folder, once, and print its path as the last line of standard output."
        ),
    )
    parser.add_argument("name", nargs="?", help="the model (default: SmolLM2-135M-Instruct)")
    parser.add_argument(
        "--dir", type=Path, metavar="D", help="the folder to build (default: in the cache)"
    )
    parser.add_argument(
        "--from-gguf",
        type=Path,
        metavar="FILE",
        help="convert this GGUF file of the llama architecture instead",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    # Inside, so that every other subcommand starts without this room.
    from .errors import ModelFileError
    from .fetch import convert_folder, fetch_model
    from .progress import Progress

    if args.name is not None and args.from_gguf is not None:
        print(
            "sglang-mlx fetch-model: give either a NAME or --from-gguf FILE, not both.",
            file=sys.stderr,
        )
        return 2
    progress = Progress(args.quiet)
    try:
        if args.from_gguf is not None:
            folder = convert_folder(args.from_gguf, args.dir, progress=progress)
        else:
            folder = fetch_model(args.name, args.dir, progress=progress)
    except ModelFileError as error:
        print(f"sglang-mlx fetch-model: {error}", file=sys.stderr)
        return 1
    print(folder)
    return 0
