"""The command ``sglang-mlx fetch-model``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

__all__ = ["add_parser"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "fetch-model",
        help="build the embedded default model's folder and print its path",
        description="Builds a model folder and prints its path as the last line.",
    )
    parser.add_argument("name", nargs="?", help="the model (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--dir", type=Path, help="where the folder goes (default: the cache)")
    parser.add_argument("--from-gguf", type=Path, metavar="FILE", help="convert this file instead")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fetch or convert; the path goes to stdout, everything else to stderr."""
    from .errors import ModelFileError
    from .fetch import convert_folder, fetch_model

    bar = _Bar(quiet=args.quiet)
    try:
        if args.from_gguf is not None:
            if args.dir is None:
                print("sglang-mlx: --from-gguf needs --dir, the folder to write.", file=sys.stderr)
                return 2
            folder = convert_folder(args.from_gguf, args.dir, progress=bar)
        else:
            folder = fetch_model(args.name, args.dir, progress=bar)
    except ModelFileError as error:
        print(f"sglang-mlx: {error}", file=sys.stderr)
        return 1
    finally:
        bar.close()
    print(folder)
    return 0


class _Bar:
    """A progress bar on stderr, silent where nobody looks."""

    def __init__(self, *, quiet: bool) -> None:
        self._off = quiet or not sys.stderr.isatty()
        self._bar: Any = None

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._off:
            return
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=what, unit="B", unit_scale=True)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """End the bar's line."""
        if self._bar is not None:
            self._bar.close()
