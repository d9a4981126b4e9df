"""``sglang-mlx hooks`` and ``sglang-mlx new-vendor``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["add_parser"]


def add_parser(subparsers: Any) -> None:
    """Register both subcommands; each leaves a function ``run(args) -> int`` in the defaults.

    Args:
        subparsers: What `argparse.ArgumentParser.add_subparsers` gave.
    """
    hooks: argparse.ArgumentParser = subparsers.add_parser(
        "hooks",
        help="list the hooks, who implements them and who is asked first",
        description="List every hook with its implementations in the order of calls.",
    )
    hooks.add_argument("--json", action="store_true", help="print JSON")
    hooks.add_argument(
        "--write-docs",
        metavar="FILE",
        type=Path,
        help="write the hooks' reference to FILE instead (docs/hooks.md in the repository)",
    )
    hooks.set_defaults(run=_run_hooks)
    vendor: argparse.ArgumentParser = subparsers.add_parser(
        "new-vendor",
        help="write the skeleton of a plugin distribution",
        description=(
            "Write a distribution with one hook and a test. Install it with pip install DIR, "
            "then run pytest in it."
        ),
    )
    vendor.add_argument("name", help="name of the distribution, such as acme-mlx")
    vendor.add_argument(
        "--dir", type=Path, help="folder to write; a new folder of that name by default"
    )
    vendor.set_defaults(run=_run_new_vendor)


def _run_hooks(args: argparse.Namespace) -> int:
    # Inside, so that every other subcommand starts without the vendors.
    from . import docs, listing
    from .errors import HookError
    from .manager import get_manager

    if args.write_docs is not None:
        args.write_docs.write_text(docs.render(), encoding="utf-8")
        print(args.write_docs)
        return 0
    try:
        data = listing.as_data(get_manager())
    except HookError as error:
        print(f"sglang-mlx hooks: {error}", file=sys.stderr)
        return 1
    print(json.dumps(data, indent=2) if args.json else listing.as_text(data))
    return 0


def _run_new_vendor(args: argparse.Namespace) -> int:
    from . import scaffold

    try:
        folder = scaffold.write_vendor(args.name, args.dir)
    except (ValueError, OSError) as error:
        print(f"sglang-mlx new-vendor: {error}", file=sys.stderr)
        return 1
    print(
        f"Next: pip install --no-deps --no-build-isolation {folder}, then pytest {folder}",
        file=sys.stderr,
    )
    print(folder)
    return 0
