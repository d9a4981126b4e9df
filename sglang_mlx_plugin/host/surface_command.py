"""``sglang-mlx surface``: what becomes of a request's field or a server argument."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "surface",
        help="say what becomes of a request's field or a server argument",
        description="Looks a request's field or a server argument up in the registers.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="top_k, tp-size, ...")
    parser.add_argument("--json", action="store_true", help="all of it, for other programs")
    parser.add_argument("--write-docs", type=Path, metavar="FILE", help="write docs/surface.md")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print or write; 1 if a name is in no register."""
    from .surface import document

    if args.write_docs:
        args.write_docs.write_text(document.as_markdown(), encoding="utf-8")
        print(args.write_docs)
        return 0
    if args.json:
        print(document.as_json())
        return 0
    if not args.names:
        print("Name a field or an argument (sglang-mlx surface top_k tp-size), or use --json.")
        return 2
    status = 0
    for name in args.names:
        found = document.as_text(name)
        if not found:
            print(f"{name} is in no register of this SGLang surface.", file=sys.stderr)
            status = 1
        print("\n".join(found), end="\n" if found else "")
    return status
