"""``sglang-mlx families``: which model families are served, and how."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "families",
        help="list the model families that are served, and how",
        description="Lists mlx-lm's model families: caches, batching, prefix reuse, tests.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only families with this in them")
    parser.add_argument("--json", action="store_true", help="for other programs")
    parser.add_argument("--write-docs", type=Path, metavar="FILE", help="write docs/families.md")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print or write the table; 1 if a name is not in it."""
    from . import table

    if args.write_docs:
        version, lines = table.recorded()
        args.write_docs.write_text(table.as_markdown(lines, version), encoding="utf-8")
        print(args.write_docs)
        return 0
    lines = table.families()
    if args.names:
        lines = [line for line in lines if any(name in line.name for name in args.names)]
        if not lines:
            print(f"No model family of mlx-lm is called {' or '.join(args.names)}.")
            return 1
    print(table.as_json(lines) if args.json else table.as_text(lines))
    return 0
