"""The register is code: our source and the table agree, and the document is made from both."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from sglang_mlx_plugin.contracts import docs
from sglang_mlx_plugin.contracts.inventory import Inventory, take_inventory
from sglang_mlx_plugin.contracts.live import our_tree
from sglang_mlx_plugin.contracts.report import Report
from sglang_mlx_plugin.contracts.source import installed_tree
from sglang_mlx_plugin.contracts.static import check
from sglang_mlx_plugin.contracts.table import NOT_REACHED, SUPPORTED, TABLE
from sglang_mlx_plugin.host import releases

DOCUMENT = Path(__file__).parents[2] / "docs" / "contracts.md"


@pytest.fixture(scope="module")
def inventory() -> Inventory:
    return take_inventory(installed_tree(), our_tree(), "sglang_mlx_plugin", TABLE)


@pytest.fixture(scope="module")
def report() -> Report:
    return check(installed_tree(), our_tree(), TABLE, not_reached=NOT_REACHED)


def test_the_installed_release_is_supported() -> None:
    assert str(installed_tree().version) in SUPPORTED


def test_the_installed_release_keeps_every_contract(report: Report) -> None:
    assert [problem.sentence for problem in report.problems] == []


def test_everything_that_our_source_uses_has_a_row(inventory: Inventory) -> None:
    assert sorted({f"{use.target} ({use.where})" for use in inventory.missing}) == []


def test_every_row_is_used(inventory: Inventory) -> None:
    assert [row.target for row in inventory.stale] == []


def test_what_a_supported_release_lacks_is_used_in_one_module_only(inventory: Inventory) -> None:
    """Elsewhere, an import of it alone ends every launch on that release."""
    window = [Version(release) for release in SUPPORTED]
    # Nobody calls an override where upstream has no such method, so one may stand anywhere.
    leaned_on = [row for row in TABLE if row.use not in ("override", "implement", "write")]
    lacking = {row.target for row in leaned_on if not all(map(row.applies_to, window))}
    astray = [
        f"{use.target} ({use.where})"
        for use in inventory.uses
        if use.target in lacking and not use.where.startswith("host/releases.py:")
    ]
    assert astray == []


def test_every_waiver_is_needed(report: Report) -> None:
    assert report.unused_waivers == []


def test_the_window_is_the_one_that_the_launch_asks_for() -> None:
    assert SUPPORTED == releases.SUPPORTED


def test_no_row_twice() -> None:
    targets = [row.target for row in TABLE]
    assert sorted(targets) == sorted(set(targets))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.target.removeprefix("sglang.srt."))
def test_a_row_says_why_and_what_breaks(row) -> None:
    for text in (row.why, row.breaks):
        assert text and text == text.strip() and not text.endswith(".")
    if row.use in ("override", "replace", "implement"):
        assert row.ours.startswith("sglang_mlx_plugin.")


def test_the_document_is_fresh() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == docs.render(), (
        "write it anew: sglang-mlx contracts --write-docs docs/contracts.md"
    )
