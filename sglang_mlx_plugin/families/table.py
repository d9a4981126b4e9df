"""The table of families: recorded from tests, held against the mlx-lm that is installed.

``table.json`` is written by ``python -m tests.support.family_table --write``, which builds a
tiny model of each family and asks the engine how it runs it. Families that the installed mlx-lm
has beyond it are listed as untested: a new mlx-lm release hides nothing.
"""

from __future__ import annotations

import ast
import json
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["Family", "as_markdown", "as_text", "families", "installed_modules", "recorded"]

_TABLE = Path(__file__).with_name("table.json")

# What each column means, in the document.
LEGEND = {
    "family": "module of `mlx_lm.models`, which is `model_type` in most `config.json` files; a "
    "variant with other caches is named behind it",
    "cache kinds": "classes that mlx-lm's `make_prompt_cache` gives",
    "batched": "`yes`: requests of any lengths share a pass; `equal lengths`: those whose new "
    "tokens are as many; `row by row`: each runs alone inside the step, which is exact and slower",
    "prefix reuse": "`tokens`: a hit of any length; `snapshots`: from the deepest border at which "
    "the state was kept",
    "quantised KV": "`--kv-cache-dtype` below 16 bits",
    "exactness tested": "`yes`: greedy tokens and logits against mlx-lm alone, in the tests; "
    "otherwise why not",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One line of the table.

    Attributes:
        name: Family, a variant's name behind it.
        module: Module of ``mlx_lm.models``.
        kinds: Cache classes.
        batched: ``yes``, ``equal lengths``, ``row by row``, or ``-``.
        reuse: ``tokens``, ``snapshots``, or ``-``.
        quantised: ``no`` or ``yes``.
        tested: ``yes``, or why not.
    """

    name: str
    module: str
    kinds: tuple[str, ...] = ()
    batched: str = "-"
    reuse: str = "-"
    quantised: str = "-"
    tested: str = "yes"

    @property
    def cells(self) -> tuple[str, ...]:
        """In the order of `LEGEND`."""
        kinds = ", ".join(self.kinds) or "-"
        return self.name, kinds, self.batched, self.reuse, self.quantised, self.tested


def recorded() -> tuple[str, list[Family]]:
    """The mlx-lm version of the record, and its lines."""
    data: dict[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    lines = [Family(**{**line, "kinds": tuple(line["kinds"])}) for line in data["families"]]
    return data["mlx_lm"], lines


def installed_modules() -> set[str] | None:
    """Model modules of the installed mlx-lm, found without importing it; None without one."""
    spec = find_spec("mlx_lm")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)), "models")
    return {path.stem for path in folder.glob("*.py") if _is_model(path)}


def families() -> list[Family]:
    """The record, with what the installed mlx-lm has beyond it, and without what it lacks."""
    _, lines = recorded()
    present = installed_modules()
    if present is None:
        return lines
    known = {line.module for line in lines}
    found = [line for line in lines if line.module in present]
    found += [
        Family(name=module, module=module, tested=f"no: new in mlx-lm {installed_version()}")
        for module in sorted(present - known)
    ]
    return sorted(found, key=lambda line: line.name)


def installed_version() -> str:
    """The installed mlx-lm's version, or a dash."""
    try:
        return version("mlx-lm")
    except PackageNotFoundError:
        return "-"


def as_text(lines: list[Family]) -> str:
    """The table for a terminal."""
    rows = [tuple(LEGEND), *(line.cells for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(LEGEND))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def as_markdown(lines: list[Family], mlx_lm: str) -> str:
    """``docs/families.md``."""
    head = [
        "# Model families",
        "",
        "Made by `sglang-mlx families --write-docs`; do not edit. Recorded with "
        f"mlx-lm {mlx_lm}: a tiny random model of each family, run by the engine as it would be "
        "served. `sglang-mlx families` prints the table for the mlx-lm that is installed.",
        "",
        *(f"- **{name}**: {text}." for name, text in LEGEND.items()),
        "",
        "How a family runs is found when a model is loaded, by running a few tokens in pieces and "
        "at once; a model that cannot be served exactly is refused then, with its name.",
        "",
        "| " + " | ".join(LEGEND) + " |",
        "|" + " --- |" * len(LEGEND),
    ]
    return "\n".join([*head, *("| " + " | ".join(line.cells) + " |" for line in lines), ""])


def as_json(lines: list[Family]) -> str:
    """For other programs."""
    return json.dumps(
        {"mlx_lm": installed_version(), "families": [asdict(line) for line in lines]}, indent=1
    )


def _is_model(path: Path) -> bool:
    """Whether a module has a ``Model`` and its ``ModelArgs``; the others are parts of models."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {"Model", "ModelArgs"} <= names | imported
