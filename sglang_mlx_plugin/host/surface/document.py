"""``docs/surface.md`` and ``sglang-mlx surface``: the registers in words."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..arguments import ARGUMENTS
from ..rules import Honoured, Irrelevant, Refused, Rule
from . import BEYOND, REGISTER

__all__ = ["TABLES", "as_json", "as_markdown", "as_text"]

# Every table by its name; server arguments by the flags' own names.
TABLES: dict[str, Mapping[str, Rule]] = {
    **REGISTER,
    "OpenAI fields beyond SGLang's classes": BEYOND,
    "ServerArgs": ARGUMENTS,
}


def describe(rule: Rule) -> tuple[str, str]:
    """One word, and one clause."""
    if isinstance(rule, Honoured):
        return "honoured", f"by {'SGLang' if rule.by == 'sglang' else f'`{rule.by}`'}"
    if isinstance(rule, Irrelevant):
        return "irrelevant", rule.why
    assert isinstance(rule, Refused)
    return "refused", f"{rule.why}; {rule.instead}"


def as_text(name: str) -> list[str]:
    """What becomes of the field or argument `name` in each table that has it."""
    plain = name.removeprefix("--").replace("-", "_")
    found = []
    for table, rows in TABLES.items():
        if plain in rows:
            word, clause = describe(rows[plain])
            found.append(f"{table}.{plain}: {word} ({clause.replace('`', '')})")
    return found


def as_json() -> str:
    """For other programs: table, field, word, clause."""
    return json.dumps(
        {
            table: {
                name: dict(zip(("what", "how"), describe(rule), strict=True))
                for name, rule in rows.items()
            }
            for table, rows in TABLES.items()
        },
        indent=1,
    )


def as_markdown() -> str:
    """The document."""
    lines = [
        "# The request surface",
        "",
        "Made by `sglang-mlx surface --write-docs`; do not edit. What becomes on MLX of every "
        "field of SGLang's requests and of every server argument: *honoured* (by whom), "
        "*irrelevant* (why it cannot matter) or *refused* (why, and what to do instead): a server "
        "argument when the server starts, a request's field with HTTP 400 that names it. An OpenAI "
        "request with a field that is in none of these tables is refused too, unless the server "
        "was started with `SGLANG_MLX_ALLOW_UNKNOWN_FIELDS=1`.",
    ]
    for table, rows in TABLES.items():
        counts = [
            f"{sum(describe(rule)[0] == word for rule in rows.values())} {word}"
            for word in ("honoured", "irrelevant", "refused")
        ]
        lines += ["", f"## {table}", "", f"{len(rows)} fields: {', '.join(counts)}.", ""]
        lines += ["| field | what becomes of it | how or why |", "| --- | --- | --- |"]
        for name in sorted(rows):
            word, clause = describe(rows[name])
            lines.append(f"| `{name}` | {word} | {clause.replace('|', chr(92) + '|')} |")
    return "\n".join([*lines, ""])
