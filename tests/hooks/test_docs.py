"""The reference is made from the docstrings, which say all that a vendor must know."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_mlx_plugin.hooks import HookManager, Hooks, docs, specs, types
from sglang_mlx_plugin.hooks.defaults import MODULES

DOCUMENT = Path(__file__).parents[2] / "docs" / "hooks.md"
DATACLASSES = [
    getattr(types, name) for name in types.__all__ if dataclasses.is_dataclass(getattr(types, name))
]
REMEDY = "write it anew: sglang-mlx hooks --write-docs docs/hooks.md"


def test_document_is_fresh() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == docs.render(), REMEDY


@pytest.mark.parametrize("name", specs.__all__)
def test_every_section_is_there(name: str) -> None:
    doc = docs.read_spec(name)
    assert doc.summary.endswith(".")
    assert tuple(doc.sections) == specs.SECTIONS
    assert doc.sections["Since"].count(".") == 2


@pytest.mark.parametrize("section", specs.SECTIONS)
def test_missing_section_is_noticed(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = specs.sglang_mlx_device
    text = inspect.getdoc(spec) or ""
    monkeypatch.setattr(spec, "__doc__", text.replace(f"{section}:\n", "Otherwise:\n"))
    with pytest.raises(ValueError, match=f"lacks the section .*{section}"):
        docs.read_spec("sglang_mlx_device")


def test_undescribed_argument_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = specs.sglang_mlx_alloc_memory_pool
    text = inspect.getdoc(spec) or ""
    monkeypatch.setattr(spec, "__doc__", text.replace("    memory_pool_config: ", "    "))
    with pytest.raises(ValueError, match="memory_pool_config"):
        docs.read_spec("sglang_mlx_alloc_memory_pool")


def test_every_spec_is_first_result_and_has_one_built_in() -> None:
    manager = HookManager([])
    assert len(MODULES) == len(specs.__all__)
    marked = {name for name, found in vars(specs).items() if hasattr(found, "sglang_mlx_spec")}
    assert marked == set(specs.__all__)
    for name in specs.__all__:
        assert getattr(specs, name).sglang_mlx_spec["firstresult"]
        assert manager.winner(name).plugin.builtin


def test_every_spec_has_a_typed_call_with_the_same_arguments() -> None:
    for name in specs.__all__:
        asked: Callable[..., object] = getattr(Hooks, name.removeprefix("sglang_mlx_"))
        wanted = list(inspect.signature(getattr(specs, name)).parameters)
        assert list(inspect.signature(asked).parameters)[1:] == wanted


@pytest.mark.parametrize("kind", DATACLASSES)
def test_every_field_is_described(kind: type) -> None:
    text = docs.render().partition(f"### {kind.__name__}\n")[2].partition("\n###")[0]
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        row = next(line for line in text.splitlines() if line.startswith(f"| `{field.name}`"))
        assert not row.endswith("|  |"), f"{kind.__name__}.{field.name} is not described"
