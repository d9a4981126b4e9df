"""``sglang-mlx contracts``."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["add_parser"]


def add_parser(subparsers: Any) -> None:
    """Register the subcommand; it leaves a function ``run(args) -> int`` in the defaults.

    Args:
        subparsers: What `argparse.ArgumentParser.add_subparsers` gave.
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "contracts",
        help="check what this package builds on in a SGLang release",
        description=(
            "Check the SGLang symbols that this package builds on, without importing SGLang. "
            "The exit status is 1 when a contract is broken, 2 when a release cannot be read."
        ),
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--release", metavar="V", help="a release by name, downloaded once")
    what.add_argument(
        "--matrix", metavar="A..B", help="all releases from A to B; A.. goes to the newest"
    )
    what.add_argument(
        "--path", type=Path, metavar="P", help="a wheel, a clone, or a folder with sglang in it"
    )
    what.add_argument(
        "--used-by-us", action="store_true", help="what our source uses and the table lacks"
    )
    what.add_argument(
        "--write-docs",
        type=Path,
        metavar="FILE",
        help="write docs/contracts.md from the table and the recorded matrix",
    )
    parser.add_argument(
        "--record", action="store_true", help="with --matrix: keep it for --write-docs"
    )
    parser.add_argument("--no-cache", action="store_true", help="check anew")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from .source import SourceError

    try:
        if args.used_by_us:
            return _used_by_us(args)
        if args.write_docs is not None:
            return _write_docs(args.write_docs)
        if args.matrix:
            return _matrix(args)
        return _one(args)
    except SourceError as error:
        print(f"sglang-mlx contracts: {error}", file=sys.stderr)
        return 2


def _one(args: argparse.Namespace) -> int:
    from . import history, releases, source
    from .docs import RECORD
    from .live import check_tree

    started = time.perf_counter()
    tree: source.SourceTree
    if args.path is not None:
        tree = source.open_tree(args.path)
    elif args.release:
        tree = source.open_tree(releases.download(releases.parse_version(args.release)))
    else:
        tree = source.installed_tree()
    report = check_tree(tree, use_cache=not args.no_cache)
    with contextlib.suppress(OSError, ValueError, KeyError):
        report.notes += history.unrecorded_demands(history.load_history(RECORD), report)
    if args.json:
        print(json.dumps(report.as_json(), indent=2))
        return 0 if report.ok else 1
    for problem in report.problems:
        print(f"broken  {problem.sentence}")
    for note in report.notes:
        print(f"note    {note}")
    seen = ", ".join(f"{number} {what}" for what, number in report.checked.items())
    verdict = "all hold" if report.ok else f"{len(report.problems)} broken"
    print(
        f"SGLang {report.release}: {verdict} ({seen} checked in "
        f"{time.perf_counter() - started:.2f} s)"
    )
    return 0 if report.ok else 1


def _matrix(args: argparse.Namespace) -> int:
    from . import history, releases
    from .docs import RECORD

    reports = history.check_wheels(
        releases.wheels_in_range(args.matrix), use_cache=not args.no_cache
    )
    found = history.build_history(reports)
    if args.record:
        RECORD.write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found.as_json(), indent=2) if args.json else history.render_history(found))
    return 1 if any(line.broken for line in found.lines) else 0


def _used_by_us(args: argparse.Namespace) -> int:
    from .inventory import take_inventory
    from .live import our_tree
    from .source import installed_tree
    from .table import TABLE

    inventory = take_inventory(installed_tree(), our_tree(), "sglang_mlx_plugin", TABLE)
    if args.json:
        data = {
            "uses": [[u.kind, u.target, u.where] for u in inventory.uses],
            "missing": [[u.kind, u.target, u.where] for u in inventory.missing],
            "stale": [row.target for row in inventory.stale],
        }
        print(json.dumps(data, indent=2))
    else:
        for use in inventory.missing:
            print(f"no row   {use.kind:9} {use.target}   {use.where}")
        for row in inventory.stale:
            print(f"no use   {row.use:9} {row.target}")
        names = len({use.target for use in inventory.uses})
        print(
            f"{names} upstream names in {len(inventory.uses)} places; "
            f"{len({u.target for u in inventory.missing})} without a row, "
            f"{len(inventory.stale)} rows without a use"
        )
    return 1 if inventory.missing or inventory.stale else 0


def _write_docs(path: Path) -> int:
    from .docs import render

    path.write_text(render(), encoding="utf-8")
    print(path)
    return 0
