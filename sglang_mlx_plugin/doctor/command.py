"""``sglang-mlx doctor``."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

__all__ = ["add_parser"]


def add_parser(subparsers: Any) -> None:
    """Register the subcommand; it leaves a function ``run(args) -> int`` in the defaults.

    Args:
        subparsers: What `argparse.ArgumentParser.add_subparsers` gave.
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "doctor",
        help="say whether this machine is ready to serve, and what to do if not",
        description=(
            "Look at everything that a launch needs, without launching. The exit status is 1 "
            "when something would stop the launch or keep MLX out of it, and 0 otherwise, also "
            "with warnings."
        ),
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from .checks import examine
    from .report import as_data, as_text, worst

    if sys.stderr.isatty():
        print("Importing MLX, torch and SGLang ...", file=sys.stderr, flush=True)
    findings = examine()
    print(json.dumps(as_data(findings), indent=2) if args.json else as_text(findings))
    return 1 if worst(findings) == "failure" else 0
