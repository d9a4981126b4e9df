"""Whether our classes answer everything that upstream asks of them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Protocol

from packaging.version import Version

from .contract import Contract, NotReached
from .demand import Demand, Role, demands_of, self_demands
from .model import ClassModel
from .shapes import brief, misfit
from .source import SourceTree
from .universe import Symbol, Universe
from .usage import first_upstream

__all__ = ["Answers", "players"]


class Complain(Protocol):
    """Takes a broken target, the place that shows it, a clause, and the kind of break."""

    def __call__(self, target: str, where: str, text: str, key: str = "") -> None: ...


def players(universe: Universe, ours: SourceTree, package: str, role: Role) -> list[ClassModel]:
    """Our classes that derive from the role's base, most derived ones only."""
    base = universe.class_of(universe.resolve(role.base))
    found: list[ClassModel] = []
    for path in ours.paths(f"{package}/"):
        module = universe.module(
            path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        )
        for cls in universe.classes_in(module) if module is not None else []:
            if base is not None and base in universe.mro(cls):
                found.append(cls)
    return [c for c in found if not any(c in universe.mro(o)[1:] for o in found)]


class Answers:
    """Checks one role after another; what runs for the first decides what runs for the next.

    Args:
        universe: Our source and a release.
        complain: Takes the problems.
        rows: The table.
        release: The release, None when it is not known.
    """

    def __init__(
        self,
        universe: Universe,
        complain: Complain,
        rows: Sequence[Contract],
        release: Version | None,
    ) -> None:
        self.universe = universe
        self.complain = complain
        self.rows = [row for row in rows if row.use == "implement" and row.applies_to(release)]
        self.checked = 0
        self.asked: dict[str, str] = {}
        self.demanded: dict[str, set[str]] = {}
        self._inherited: set[int] = set()
        self._running: set[int] = set()
        self._needed_waivers: set[tuple[str, str]] = set()

    def unused_waivers(self, waivers: Sequence[NotReached]) -> list[str]:
        """Waived attributes that have an answer, or that nothing asks for."""
        return [
            f"{waiver.role}.{name}"
            for waiver in waivers
            for name in waiver.attributes
            if waiver.role in self.demanded and (waiver.role, name) not in self._needed_waivers
        ]

    def _runs(self, function: ast.AST) -> bool:
        # A method of a base class of ours runs only if something reaches it through us.
        return id(function) not in self._inherited or id(function) in self._running

    def check(self, role: Role, classes: Sequence[ClassModel], waived: set[str]) -> None:
        """Check the classes of ours that play ``role``; ``waived`` need no answer."""
        for cls in classes:
            for each in self.universe.mro(cls):
                self._inherited |= {id(member.node) for member in each.members.values()}
        if not classes:
            return
        outside = demands_of(self.universe, role, self._runs)
        self.demanded[role.name] = {d.attribute for d in outside if d.kind != "write"}
        written = {d.attribute for d in outside if d.kind == "write"}
        entries = {d.attribute for d in outside if d.kind in ("call", "read")}
        for cls in classes:
            inside, assigned, running = self_demands(self.universe, cls, role, entries)
            self._running |= running
            self.checked += len(outside) + len(inside)
            for demand in [*outside, *inside]:
                self._check(role, cls, demand, assigned | written, waived)
            self._check_implemented(role, cls)

    def _check_implemented(self, role: Role, cls: ClassModel) -> None:
        asked = self.demanded[role.name]
        bases = {each.name for each in self.universe.mro(cls)}
        for row in self.rows:
            owner, _, name = row.target.rpartition(".")
            if owner in bases and name not in asked and self.universe.resolve(row.target) is None:
                self.complain(row.target, "", "nothing in upstream asks for it any more")

    def _check(
        self, role: Role, cls: ClassModel, demand: Demand, known: set[str], waived: set[str]
    ) -> None:
        if demand.kind == "write" or demand.attribute.startswith("__"):
            return
        base = first_upstream(self.universe, cls)
        target = f"{base.name if base else role.base}.{demand.attribute}"
        symbol = self.universe.member(cls, demand.attribute)
        mine = symbol is not None and symbol.name.split(".", 1)[0] != "sglang"
        self.asked[f"{role.name}.{demand.attribute}"] = "us" if mine else "the base"
        if symbol is None or symbol.member is None:
            answered = demand.attribute in known or self.universe.is_open(cls)
            if not answered and demand.kind != "optional":
                if demand.attribute in waived:
                    self._needed_waivers.add((role.name, demand.attribute))
                    return
                how = "calls" if demand.kind == "call" else "reads"
                self.complain(
                    target,
                    demand.where,
                    f"{demand.where} {how} it on the {role.name}, and {cls.name} has no answer",
                    "unanswered",
                )
        elif mine:
            above = self.universe.member(base, demand.attribute) if base is not None else None
            self._check_answer(demand, symbol, target, inherited=above is not None)

    def _check_answer(self, demand: Demand, mine: Symbol, target: str, *, inherited: bool) -> None:
        if demand.kind == "call" and mine.kind == "property":
            self.complain(
                target, demand.where, f"{demand.where} calls it, and {mine.name} is a property"
            )
        elif demand.kind == "read" and mine.kind == "method" and not inherited:
            self.complain(
                target, demand.where, f"{demand.where} reads it, and {mine.name} is a method"
            )
        elif demand.kind == "call" and mine.kind == "method" and demand.shape is not None:
            signature = self.universe.signature(mine)
            reason = misfit(signature, demand.shape) if signature is not None else None
            if reason:
                self.complain(
                    target,
                    demand.where,
                    f"{demand.where} calls it as {demand.shape}, and "
                    f"{mine.name}{brief(signature)} does not take that: {reason}",
                )
            lengths = _tuple_lengths(mine.node)
            if demand.unpack and lengths and demand.unpack not in lengths:
                self.complain(
                    target,
                    demand.where,
                    f"{demand.where} unpacks {demand.unpack} values, and {mine.name} returns "
                    f"{' or '.join(map(str, sorted(lengths)))}",
                )


def _tuple_lengths(node: ast.AST | None) -> set[int]:
    found: set[int] = set()
    for each in ast.walk(node) if node is not None else ():
        if isinstance(each, ast.Return) and each.value is not None:
            if not isinstance(each.value, ast.Tuple):
                return set()
            if any(isinstance(e, ast.Starred) for e in each.value.elts):
                return set()
            found.add(len(each.value.elts))
    return found
