"""``docs/contracts.md``, made from the table and from the recorded matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from .contract import Contract
from .demand import ROLES
from .history import History, Line, load_history
from .table import NOT_REACHED, SUPPORTED, TABLE

__all__ = ["RECORD", "render"]

RECORD = Path(__file__).resolve().parent / "matrix.json"

_HEAD = """\
# Contracts with SGLang

Made by `sglang-mlx contracts --write-docs docs/contracts.md`; do not edit.

Every SGLang symbol that this package replaces, overrides, calls, reads or writes is a row here.
The checker reads a release's source without importing it, finds what our source uses and what
SGLang's scheduler asks of our worker, runner, pools and platform, and names what does not fit.

| command | answers |
|---|---|
| `sglang-mlx contracts` | does the installed release keep the contracts? |
| `sglang-mlx contracts --release 0.5.23` | does that release? (downloaded once) |
| `sglang-mlx contracts --path FOLDER` | does this wheel, clone or folder? |
| `sglang-mlx contracts --matrix 0.5.14..` | each symbol over the releases, and where each broke |
| `sglang-mlx contracts --used-by-us` | what does our source use that has no row? |

All take `--json`; the exit status is 1 when something is broken. Supported releases: {window}.
"""


def render(record: Path = RECORD) -> str:
    """The document.

    Raises:
        OSError, ValueError, KeyError: The recorded matrix cannot be read.
    """
    history = load_history(record)
    lines = {line.target: line for line in history.lines}
    parts = [_HEAD.format(window=", ".join(SUPPORTED)), "\n## The table\n"]
    for title, rows in _sections(TABLE):
        parts.append(f"\n### {title}\n\n")
        parts.append("| symbol | use | why | without it | since | can go when |\n")
        parts.append("|---|---|---|---|---|---|\n")
        parts += [_row(row, lines.get(row.target), history) for row in rows]
    parts.append("\n## Read by SGLang and never reached with us\n\n")
    parts.append("| part | attributes | why |\n|---|---|---|\n")
    for waiver in NOT_REACHED:
        names = ", ".join(f"`{name}`" for name in waiver.attributes)
        parts.append(f"| {waiver.role} | {names} | {waiver.why} |\n")
    parts.append("\n## Parts that we play\n\n| part | SGLang's base | held in |\n|---|---|---|\n")
    for role in ROLES:
        held = ", ".join(f"`{name}`" for name in role.receivers)
        parts.append(f"| {role.name} | `{role.base.removeprefix('sglang.srt.')}` | {held} |\n")
    parts += _matrix(history)
    return "".join(parts)


def _sections(rows: Sequence[Contract]) -> Iterable[tuple[str, list[Contract]]]:
    """Rows by the class or module that they are of, in the order of the table."""
    sections: dict[str, list[Contract]] = {}
    for row in rows:
        owner = row.target.rpartition(".")[0]
        if row.use in ("construct", "import"):
            owner = row.target if row.target in sections else owner
        sections.setdefault(owner.removeprefix("sglang.srt."), []).append(row)
    return sections.items()


def _row(row: Contract, line: Line | None, history: History) -> str:
    name = row.target.rpartition(".")[2]
    since = _since(line, history)
    cells = [f"`{name}`", row.use, row.why, row.breaks, since, row.gone_when or ""]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _since(line: Line | None, history: History) -> str:
    if line is None:
        return ""
    first = next((first for first, _, text in line.spans if text not in ("", "-")), "")
    return f"{first} or before" if first == history.releases[0] else first


def _matrix(history: History) -> Iterable[str]:
    releases = history.releases
    yield f"\n## The matrix, {releases[0]} to {releases[-1]}\n\n"
    yield (
        "How our source of today fits each release: `x` is broken, `.` is not there and not "
        "needed there. Symbols that are there, alike and unbroken in all of them are left out.\n\n"
    )
    short = [release.removeprefix("0.5.") for release in releases]
    yield "| symbol | " + " | ".join(short) + " | |\n"
    yield "|---|" + "---|" * (len(short) + 1) + "\n"
    quiet = 0
    for line in history.lines:
        if len(line.spans) == 1 and not line.broken:
            quiet += 1
            continue
        marks = [_mark(line, release) for release in releases]
        name = line.target.removeprefix("sglang.srt.")
        yield f"| `{name}` | {' | '.join(marks)} | {_when(line)} |\n"
    yield f"\n{quiet} more are alike in all of them.\n"
    yield "\n### What SGLang began to ask of our parts, answered by its own base class\n\n"
    for release, names in history.new.items():
        if names:
            yield f"- {release}: {', '.join(f'`{name}`' for name in names)}\n"
    yield "\n### What changed\n\n"
    for line in history.lines:
        if len(line.spans) > 1:
            yield f"- `{line.target.removeprefix('sglang.srt.')}`\n"
            for first, last, text in line.spans:
                span = first if first == last else f"{first} to {last}"
                yield f"    - {span}: `{text or 'no row'}`\n"


def _mark(line: Line, release: str) -> str:
    return {"o": "", ".": ".", "x": "x"}[line.mark(release)]


def _when(line: Line) -> str:
    if line.first_break:
        return f"breaks at {line.first_break}"
    return f"holds since {line.holds_since}" if line.holds_since else ""
