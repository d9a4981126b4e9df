"""Our uses of upstream against the table: what lacks a row, and which rows nothing uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .contract import Contract
from .source import SourceTree
from .universe import Universe
from .usage import Use, collect_uses

__all__ = ["Inventory", "take_inventory"]


@dataclass(frozen=True)
class Inventory:
    """The outcome.

    Attributes:
        uses: Everything our source uses, in the order of targets.
        missing: Uses whose target has no row.
        stale: Rows whose target nothing uses.
    """

    uses: tuple[Use, ...]
    missing: tuple[Use, ...]
    stale: tuple[Contract, ...]


def take_inventory(
    upstream: SourceTree, ours: SourceTree, package: str, rows: Sequence[Contract]
) -> Inventory:
    """Compare our source with the table, names taken as ``upstream`` defines them.

    Args:
        upstream: A release that has all that we use; the newest of the window.
        ours: Our source.
        package: Our top-level package.
        rows: The table.
    """
    universe = Universe(ours, upstream)
    uses = sorted(collect_uses(universe, ours, package), key=lambda u: (u.target, u.where))

    def canonical(target: str) -> str:
        symbol = universe.resolve(target)
        return symbol.name if symbol is not None else target

    rowed = {canonical(row.target): row for row in rows}
    owners = {".".join(parts[:n]) for parts in map(_parts, rowed) for n in range(1, len(parts))}
    # `get_schedule().max_total_tokens` speaks for `get_schedule` too.
    owners |= {row.target.split("().", 1)[0] for row in rows if "()." in row.target}
    used: set[str] = set()
    missing: list[Use] = []
    for use in uses:
        names = {use.target, use.symbol.name if use.symbol is not None else use.target}
        used |= names
        if names & rowed.keys():
            continue
        # Importing a class is said by the rows of its members, and so on.
        if use.kind in ("import", "name", "call") and names & owners:
            continue
        missing.append(use)
    stale = [row for name, row in rowed.items() if name not in used and row.use != "implement"]
    return Inventory(tuple(uses), tuple(missing), tuple(stale))


def _parts(name: str) -> list[str]:
    return name.split(".")
