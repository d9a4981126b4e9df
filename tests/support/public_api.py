"""The interface that vendors may lean on, as data.

``python -m tests.support.public_api`` compares it with the record;
``python -m tests.support.public_api --write`` records it anew, which is a decision: what was
removed or changed must have warned for one minor release (docs/hooks.md, "What is stable").
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import sglang_mlx_plugin
from sglang_mlx_plugin import hooks
from sglang_mlx_plugin.engine.types import BatchView, SamplingRows
from sglang_mlx_plugin.hooks import Hooks, plugins, specs, types
from sglang_mlx_plugin.host import concurrency

RECORD = Path(__file__).parents[1] / "hooks" / "public_api.json"
REMEDY = "python -m tests.support.public_api --write"


def collect() -> dict[str, Any]:
    """Names, signatures and fields."""
    received = [getattr(types, name) for name in types.__all__] + [BatchView, SamplingRows]
    return {
        "sglang_mlx_plugin": sorted(sglang_mlx_plugin.__all__),
        "sglang_mlx_plugin.hooks": sorted(hooks.__all__),
        "sglang_mlx_plugin.hooks.types": sorted(types.__all__),
        "entry-point group": plugins.GROUP,
        "hooks": {name: _signature(getattr(specs, name)) for name in specs.__all__},
        "calls": _members(Hooks),
        "types": {kind.__name__: _type(kind) for kind in received},
        "built-in rules": {
            name: _signature(getattr(concurrency, name)) for name in concurrency.__all__
        },
    }


def as_text(api: dict[str, Any]) -> str:
    """The record's form: one fact a line, for readable differences."""
    return json.dumps(api, indent=1, sort_keys=True) + "\n"


def _signature(function: Any) -> str:
    return str(inspect.signature(function)).replace("'", "")


def _type(kind: Any) -> dict[str, str]:
    if not dataclasses.is_dataclass(kind):
        return _members(kind)
    fields = {}
    for field in dataclasses.fields(kind):
        default = ""
        if field.default is not dataclasses.MISSING:
            default = f" = {field.default!r}"
        elif field.default_factory is not dataclasses.MISSING:
            default = f" = {field.default_factory()!r}"
        fields[field.name] = f"{field.type}{default}"
    return {**fields, **_members(kind)}


def _members(kind: type) -> dict[str, str]:
    members = {}
    for name, member in vars(kind).items():
        if name.startswith("_") and name != "__call__":
            continue
        if isinstance(member, property):
            members[name] = f"property {_signature(member.fget)}"
        elif inspect.isfunction(member):
            members[name] = _signature(member)
    return members


def main(arguments: list[str]) -> int:
    """Compare with the record, or write it."""
    text = as_text(collect())
    if "--write" in arguments:
        RECORD.write_text(text, encoding="utf-8")
        print(RECORD)
        return 0
    same = RECORD.read_text(encoding="utf-8") == text
    print("as recorded" if same else f"differs from the record; if it is meant so: {REMEDY}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
