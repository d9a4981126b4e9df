"""The check at start-up, and of any one release: cached by what was read.

Neither imports SGLang. The first check of a release parses some two hundred of its files; the
next ones read one small JSON file, unless a file of the release or of ours has changed.
"""

from __future__ import annotations

from pathlib import Path

from .cache import load_report, our_fingerprint, store_report
from .report import Report
from .source import FolderTree, SourceTree, installed_tree
from .static import check
from .table import NOT_REACHED, TABLE

__all__ = ["check_installed", "check_tree", "our_tree"]

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = "sglang_mlx_plugin"


def our_tree() -> FolderTree:
    """The source of this package, as it is installed."""
    return FolderTree(_ROOT, _PACKAGE)


def check_installed(*, use_cache: bool = True) -> Report:
    """Check the contracts of the installed SGLang.

    Args:
        use_cache: False checks anew, and still stores the outcome.

    Returns:
        The report: ``report.ok``, and ``problem.sentence`` for each of ``report.problems``.

    Raises:
        SourceError: SGLang is not installed.
    """
    return check_tree(installed_tree(), use_cache=use_cache)


def check_tree(tree: SourceTree, *, use_cache: bool = True) -> Report:
    """Check the contracts of one release.

    Args:
        tree: The release.
        use_cache: False checks anew, and still stores the outcome.
    """
    key = f"{tree.version}-{tree.fingerprint()}-{our_fingerprint()}"
    report = load_report(key) if use_cache else None
    if report is None:
        report = check(tree, our_tree(), TABLE, not_reached=NOT_REACHED, package=_PACKAGE)
        store_report(key, report)
    return report
