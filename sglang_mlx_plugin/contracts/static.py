"""The checker: our source and the table against the source of one release.

Both directions are found in the sources, not listed: what we use of upstream (``usage``) and
what upstream asks of us (``demand``). The table adds what a source cannot say: why, and what a
user would see.
"""

from __future__ import annotations

import ast
import difflib
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from packaging.version import Version

from .answers import Answers, players
from .contract import Contract, NotReached
from .demand import ROLES, Role, calls_of
from .model import FunctionNode, signature_of
from .report import Problem, Report
from .shapes import brief, misfit, narrower_than
from .source import SourceTree
from .universe import Symbol, Universe, describe
from .usage import Use, collect_uses

__all__ = ["Checker", "check"]


def check(
    upstream: SourceTree,
    ours: SourceTree,
    rows: Sequence[Contract],
    *,
    not_reached: Sequence[NotReached] = (),
    package: str = "sglang_mlx_plugin",
    roles: Sequence[Role] = ROLES,
) -> Report:
    """Check one release.

    Args:
        upstream: Source of the release.
        ours: A tree that holds ``package``.
        rows: The table.
        not_reached: Attributes of ours that need no answer.
        package: Our top-level package.
        roles: The parts that we play for upstream.

    Returns:
        The report; ``report.ok`` when every contract holds.
    """
    with _no_collector():
        return _check(upstream, ours, rows, not_reached, package, roles)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Syntax trees are a million small objects that live on: collecting them doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _check(
    upstream: SourceTree,
    ours: SourceTree,
    rows: Sequence[Contract],
    not_reached: Sequence[NotReached],
    package: str,
    roles: Sequence[Role],
) -> Report:
    checker = Checker(Universe(ours, upstream), upstream.version, rows)
    uses = collect_uses(checker.universe, ours, package)
    checker.check_uses(uses)
    checker.check_rows(uses)
    answers = Answers(checker.universe, checker.problem, rows, upstream.version)
    for role in roles:
        waived = {name for n in not_reached if n.role == role.name for name in n.attributes}
        answers.check(role, players(checker.universe, ours, package, role), waived)
    checker.count("demands", answers.checked)
    checker.report.asked = dict(sorted(answers.asked.items()))
    checker.report.unused_waivers = answers.unused_waivers(not_reached)
    return checker.finish()


_REPEATED = ("missing", "kind", "unanswered")


class Checker:
    """Collects the problems of one release; ``check`` is the way to use it."""

    def __init__(
        self, universe: Universe, release: Version | None, rows: Sequence[Contract]
    ) -> None:
        self.universe = universe
        self.release = release
        self.rows = rows
        self.report = Report(str(release) if release else "unknown")
        self._by_target = {row.target: row for row in rows}
        self._skipped = {row.target for row in rows if not row.applies_to(release)}
        self._found: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def finish(self) -> Report:
        """The report, problems in the order of their targets."""
        for (target, key), places in self._found.items():
            # A rule of the table adds nothing where a line of source says the same.
            shown = [place for place in places if place[0]] or places
            where, text = shown[0]
            more = len(shown) - 1
            sentence = f"{target.removeprefix('sglang.srt.')}: {text}"
            if more and key in _REPEATED:
                sentence += f" (and {more} more place{'s' if more > 1 else ''})"
            row = self._by_target.get(target)
            if row is not None and row.breaks:
                sentence += f"; without it {row.breaks}"
            self.report.problems.append(Problem(target, where, sentence))
        self.report.problems.sort(key=lambda p: (p.target, p.where, p.sentence))
        return self.report

    def problem(self, target: str, where: str, text: str, key: str = "") -> None:
        """Note that `target` is broken.

        Args:
            target: Dotted upstream name.
            where: File and line that show it; empty when only the table does.
            text: A clause that says how.
            key: What kind of break it is; several of one kind make one problem.
        """
        places = self._found.setdefault((target, key or text), [])
        if (where, text) not in places:
            places.append((where, text))

    def count(self, what: str, number: int) -> None:
        """Add to the number of things looked at."""
        self.report.checked[what] = self.report.checked.get(what, 0) + number

    def _similar(self, target: str) -> str:
        owner, _, name = target.rpartition(".")
        symbol = self.universe.resolve(owner)
        cls = self.universe.class_of(symbol)
        names: set[str] = set()
        if cls is not None:
            for each in self.universe.mro(cls):
                names |= each.members.keys() | each.instance_attributes.keys()
        elif symbol is not None and symbol.kind == "module":
            names = set(symbol.module.bindings)
        near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.7)
        return f"; the nearest name there is {near[0]}" if near else ""

    # What we use.

    def check_uses(self, uses: Sequence[Use]) -> None:
        """Imports exist, reads exist, calls bind, overrides still override."""
        live = [
            use for use in uses if use.meant_for(self.release) and use.target not in self._skipped
        ]
        self.count("uses", len(live))
        for use in live:
            if use.symbol is None:
                if not use.optional:
                    self.problem(
                        use.target,
                        use.where,
                        f"{use.where} uses it, and it is not there{self._similar(use.target)}",
                        "missing",
                    )
            elif use.kind == "import":
                self._check_import(use, use.symbol)
            elif use.kind in ("call", "construct"):
                self._check_call(use, use.symbol)
            elif use.kind == "read":
                self._check_read(use, use.symbol)
            elif use.kind == "override":
                self._check_override(use, use.symbol)
            elif use.kind == "hook":
                self._check_hook(use, use.symbol)

    def _check_import(self, use: Use, symbol: Symbol) -> None:
        if symbol.typing_only and not use.typing_only:
            self.problem(
                use.target,
                use.where,
                f"{use.where} imports it, and there it is imported for type checking only",
            )

    def _check_call(self, use: Use, symbol: Symbol) -> None:
        if symbol.kind == "property":
            if "Callable" not in _annotation_text(symbol):
                self.problem(
                    use.target, use.where, f"{use.where} calls it, and it is a property now", "kind"
                )
            return
        if symbol.kind in ("attribute", "field", "variable"):
            return  # It may hold anything callable.
        signature = self.universe.signature(symbol, bound=use.bound)
        reason = misfit(signature, use.shape) if signature is not None and use.shape else None
        if reason:
            self.problem(
                use.target,
                use.where,
                f"{use.where} calls it as {use.shape}, and it is {brief(signature)}: {reason}",
            )

    def _check_read(self, use: Use, symbol: Symbol) -> None:
        row = self._by_target.get(use.target)
        passed_on = row is not None and row.kind in ("method", "function")
        called = symbol.kind in ("method", "function")
        if called and not passed_on and not use.optional:
            self.problem(
                use.target,
                use.where,
                f"{use.where} reads it as a value, and it is a method now",
                "kind",
            )

    def _check_override(self, use: Use, above: Symbol) -> None:
        mine = self.universe.resolve(use.ours)
        if mine is None:
            return
        if mine.kind == "method" and above.kind == "property":
            self.problem(
                use.target, use.where, f"{use.ours} is a method, and upstream's is a property now"
            )
        elif mine.kind == "property" and above.kind == "method":
            self.problem(
                use.target, use.where, f"{use.ours} is a property, and upstream's is a method now"
            )
        elif mine.kind == above.kind == "method":
            ours, theirs = self.universe.signature(mine), self.universe.signature(above)
            lack = narrower_than(ours, theirs) if ours and theirs else None
            # Constructors are not called through the base: upstream builds our class by ours.
            if lack and lack[1] and mine.member is not None and mine.member.name != "__init__":
                self.problem(
                    use.target,
                    use.where,
                    f"upstream's {brief(theirs)} takes {lack[0]!r}, and "
                    f"{use.ours}{brief(ours)} does not",
                )
            elif lack and not lack[1]:
                self.report.notes.append(
                    f"{use.ours} does not take {lack[0]!r}, which upstream's may be given"
                )

    def _check_hook(self, use: Use, symbol: Symbol) -> None:
        mine = self.universe.resolve(use.ours)
        if mine is None or not isinstance(mine.node, FunctionNode):
            return
        if symbol.kind == "property":
            self.problem(use.target, use.where, f"{use.where} hooks it, and it is a property now")
            return
        # AROUND is given the original first, AFTER the result.
        ours = signature_of(mine.node, drop_first=use.hook in ("AROUND", "AFTER"))
        theirs = self.universe.signature(symbol, bound=False)
        lack = narrower_than(ours, theirs, skip=symbol.kind == "method") if theirs else None
        if lack and lack[1]:
            self.problem(
                use.target, use.where, f"it is {brief(theirs)}, and {use.ours} lacks {lack[0]!r}"
            )
        elif lack:
            self.report.notes.append(
                f"{use.ours} does not take {lack[0]!r}, which {use.target} may be given"
            )
        for where, shape in calls_of(self.universe, symbol):
            full = shape.dropping(-1) if symbol.kind == "method" else shape
            reason = misfit(ours, full)
            if reason:
                self.problem(
                    use.target, where, f"{where} calls it as {shape}, and {use.ours}: {reason}"
                )

    # What the table says.

    def check_rows(self, uses: Sequence[Use]) -> None:
        """Each row's target exists and is what the row says; our side of it is there."""
        for row in self.rows:
            self.report.described[row.target] = describe(self.universe, row.target)
            if row.target in self._skipped:
                continue
            self.count("rows", 1)
            symbol = self.universe.resolve(row.target)
            if row.ours:
                self._check_ours(row)
            if row.use == "implement":
                continue  # Upstream has no definition; check_role looks for its callers.
            if symbol is None:
                text = f"it is not there{self._similar(row.target)}"
                self.problem(row.target, "", text, "missing")
                continue
            self._check_kind(row, symbol)
            for shape in row.calls:
                signature = self.universe.signature(symbol)
                reason = misfit(signature, shape) if signature is not None else None
                if reason:
                    self.problem(
                        row.target,
                        symbol.where,
                        f"we call it as {shape}, and it is {brief(signature)}: {reason}",
                    )

    def _check_kind(self, row: Contract, symbol: Symbol) -> None:
        if row.kind and symbol.kind != row.kind:
            self.problem(
                row.target,
                "",
                f"it should be a {row.kind} and is a {symbol.kind} now ({symbol.where})",
                "kind",
            )
        elif not row.kind and row.use in ("call", "replace") and symbol.kind == "property":
            self.problem(row.target, "", "it is called, and it is a property now", "kind")
        elif not row.kind and row.use == "construct" and symbol.kind not in ("class", "function"):
            self.problem(row.target, symbol.where, f"it is built, and it is a {symbol.kind} now")

    def _check_ours(self, row: Contract) -> None:
        owner, _, name = row.ours.rpartition(".")
        cls = self.universe.class_of(self.universe.resolve(owner))
        mine = (
            self.universe.own_member(cls, name)
            if cls is not None
            else self.universe.resolve(row.ours)
        )
        if mine is None:
            self.problem(row.target, "", f"our side of it, {row.ours}, is not defined")


def _annotation_text(symbol: Symbol) -> str:
    annotation = symbol.member.annotation if symbol.member is not None else None
    return ast.unparse(annotation) if annotation is not None else ""
