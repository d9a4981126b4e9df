"""The family table: what is recorded is what the engine does, and nothing new is hidden."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_mlx_plugin.cli import main
from sglang_mlx_plugin.families import table
from tests.support import family_table
from tests.support.families import FAMILIES, UNTESTED, model_modules

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "families.md"


def test_the_record_is_what_the_engine_does() -> None:
    """Every family is built and asked again; `python -m tests.support.family_table --write`."""
    _, recorded = table.recorded()
    assert recorded == family_table.lines()


def test_every_family_is_listed() -> None:
    """The modules found without importing mlx-lm are those found by importing it."""
    assert table.installed_modules() == set(model_modules())
    listed = {line.module for line in table.families()}
    assert listed == {recipe.module for recipe in FAMILIES.values()} | set(UNTESTED)


def test_a_new_family_is_shown_as_untested(monkeypatch: pytest.MonkeyPatch) -> None:
    known = set(model_modules())
    monkeypatch.setattr(table, "installed_modules", lambda: {*known, "brand_new"} - {"llama"})
    lines = {line.name: line for line in table.families()}
    assert lines["brand_new"].tested.startswith("no: new in mlx-lm")
    assert lines["brand_new"].batched == "-"
    assert not any(name.startswith("llama ") or name == "llama" for name in lines)


def test_without_mlx_lm_the_record_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "installed_modules", lambda: None)
    assert table.families() == table.recorded()[1]


def test_document_is_fresh() -> None:
    version, lines = table.recorded()
    assert DOCUMENT.read_text() == table.as_markdown(lines, version)


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["families", "qwen3_next", "gemma2"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out] == ["family", "gemma2", "qwen3_next"]
    assert "row by row" in out[1] and "snapshots" in out[2]
    assert main(["families", "--json", "mamba2"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["families"]
    assert line["kinds"] == ["ArraysCache"]
    assert main(["families", "no-such-family"]) == 1
    assert "no-such-family" in capsys.readouterr().out
