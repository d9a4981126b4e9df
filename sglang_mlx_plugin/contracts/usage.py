"""What our own source uses of upstream, found with ``ast``: imports, overrides, calls, reads.

A line may carry the comment ``# contracts: since 0.5.22`` or ``# contracts: until 0.5.21``
(or both): what it uses is then asked only of those releases. Such lines belong in the one
module that holds what differs between releases.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from packaging.version import Version

from .atoms import Atom, Bag, Callee, Instance, Klass, ModuleRef, Super
from .infer import Scope, Types
from .model import ClassModel, FunctionNode, Module, dotted_name
from .shapes import CallShape
from .source import SourceTree
from .universe import Symbol, Universe

__all__ = ["Use", "UseKind", "collect_uses", "first_upstream"]

UseKind = Literal["import", "name", "hook", "override", "call", "construct", "read", "write"]

UPSTREAM = "sglang"
_NAME = re.compile(r"sglang(\.\w+)+")
_RANGE = re.compile(r"#\s*contracts:((?:\s*(?:since|until)\s+[\w.]+,?)+)")
_BOUND = re.compile(r"(since|until)\s+([\w.]+?)(?:,|\s|$)")
_HOOK_TYPES = frozenset({"BEFORE", "AFTER", "AROUND", "REPLACE"})
_PRIVATE = frozenset(
    {"__doc__", "__module__", "__slots__", "__hash__", "__eq__", "__repr__", "__annotations__"}
)


@dataclass(frozen=True)
class Use:
    """One place in our source that leans on upstream.

    Attributes:
        kind: How it is used there.
        target: Dotted upstream name.
        where: ``host/worker.py:57``.
        ours: For an override or a hook, the dotted name of ours.
        hook: For a hook, the name of its ``HookType``.
        shape: For a call, how it passes its arguments.
        symbol: What ``target`` is in the release that was read; None when it is not there.
        bound: For a call, whether ``self`` is already given.
        optional: A read that copes with absence (``getattr`` with a default, ``hasattr``).
        typing_only: An import for annotations only.
        since: First release that the line is meant for.
        until: Last release that the line is meant for.
    """

    kind: UseKind
    target: str
    where: str
    ours: str = ""
    hook: str = ""
    shape: CallShape | None = None
    symbol: Symbol | None = None
    bound: bool = True
    optional: bool = False
    typing_only: bool = False
    since: Version | None = None
    until: Version | None = None

    def meant_for(self, release: Version | None) -> bool:
        """Whether the line runs on ``release``; an unknown release counts as the newest."""
        if release is None:
            return self.until is None
        return (self.since is None or release >= self.since) and (
            self.until is None or release <= self.until
        )


def first_upstream(universe: Universe, cls: ClassModel) -> ClassModel | None:
    """The nearest class of upstream's in the method resolution order."""
    return next((c for c in universe.mro(cls) if c.name.split(".", 1)[0] == UPSTREAM), None)


def collect_uses(universe: Universe, ours: SourceTree, package: str) -> list[Use]:
    """Every use of upstream in the modules of ``package`` found in ``ours``."""
    types = Types(universe, ours_of(universe, ours, package))
    found: list[Use] = []
    for path in ours.paths(f"{package.replace('.', '/')}/"):
        if f"/{'contracts'}/" in path:
            continue  # The table names upstream; it does not use it.
        name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        module = universe.module(name)
        text = ours.read(path)
        if module is not None and text is not None and UPSTREAM.encode() in text:
            walker = _Walker(universe, types, module, package)
            walker.walk()
            found += _with_ranges(walker.uses, text.decode())
    return found


def ours_of(universe: Universe, ours: SourceTree, package: str) -> dict[ClassModel, ClassModel]:
    """For each upstream class, the one class of ours that stands in for it, where it is one."""
    found: dict[ClassModel, set[ClassModel]] = {}
    for path in ours.paths(f"{package.replace('.', '/')}/"):
        if b"sglang" not in (ours.read(path) or b"") or "/contracts/" in path:
            continue
        name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        module = universe.module(name)
        for cls in universe.classes_in(module) if module is not None else []:
            for base in universe.mro(cls)[1:]:
                found.setdefault(base, set()).add(cls)
    return {base: next(iter(mine)) for base, mine in found.items() if len(mine) == 1}


def _with_ranges(uses: list[Use], text: str) -> Iterator[Use]:
    ranges: dict[int, tuple[Version | None, Version | None]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        comment = _RANGE.search(line)
        if comment:
            bounds = {k: Version(v) for k, v in _BOUND.findall(comment.group(1))}
            ranges[number] = (bounds.get("since"), bounds.get("until"))
    for use in uses:
        since, until = ranges.get(int(use.where.rsplit(":", 1)[1]), (None, None))
        yield replace(use, since=since, until=until) if since or until else use


class _Walker:
    def __init__(self, universe: Universe, types: Types, module: Module, package: str) -> None:
        self.universe = universe
        self.types = types
        self.module = module
        self.package = package
        self.uses: list[Use] = []
        self._called: set[int] = set()

    def walk(self) -> None:
        top = self.types.scope(self.module, None)
        self._imports(self.module.tree.body, typing_only=False)
        for node in self.module.tree.body:
            self._visit(node, top, None)

    def _where(self, node: ast.AST) -> str:
        short = self.module.path.removeprefix(f"{self.package.replace('.', '/')}/")
        return f"{short}:{getattr(node, 'lineno', 0)}"

    def _add(self, kind: UseKind, target: str, node: ast.AST, **more: object) -> None:
        self.uses.append(Use(kind, target, self._where(node), **more))  # type: ignore[arg-type]

    # Imports.

    def _imports(self, body: list[ast.stmt], *, typing_only: bool) -> None:
        for node in body:
            if isinstance(node, ast.If):
                late = (dotted_name(node.test) or "").endswith("TYPE_CHECKING")
                self._imports(node.body, typing_only=typing_only or late)
                self._imports(node.orelse, typing_only=typing_only)
            else:
                for each in ast.walk(node):
                    if isinstance(each, ast.Import | ast.ImportFrom):
                        self._import(each, typing_only)

    def _import(self, node: ast.Import | ast.ImportFrom, typing_only: bool) -> None:
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            base = self.module.absolute(node)
            targets = [f"{base}.{alias.name}" for alias in node.names]
        for target in targets:
            if target.split(".", 1)[0] == UPSTREAM:
                symbol = self.universe.resolve(target)
                self._add("import", target, node, symbol=symbol, typing_only=typing_only)

    # Everything else.

    def _visit(self, node: ast.AST, scope: Scope, cls: ClassModel | None) -> None:
        if isinstance(node, FunctionNode | ast.Lambda):
            inner = self.types.scope(self.module, node, cls, scope)
            for part in ast.iter_child_nodes(node):
                self._visit(part, scope if part is node.args else inner, None)
            return
        if isinstance(node, ast.ClassDef):
            self._class(node, scope)
            return
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if _NAME.fullmatch(node.value):
                symbol = self.universe.resolve(node.value)
                self._add("name", node.value, node, symbol=symbol)
        elif isinstance(node, ast.Call):
            self._call(node, scope)
        elif isinstance(node, ast.Attribute):
            self._attribute(node, scope)
        for child in ast.iter_child_nodes(node):
            self._visit(child, scope, None)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        model = self.universe.class_model(self.module, node)
        base = first_upstream(self.universe, model)
        if base is not None:
            for member in model.members.values():
                above = self.universe.member(base, member.name)
                if above is not None and member.name not in _PRIVATE:
                    self._add(
                        "override",
                        f"{base.name}.{member.name}",
                        member.node,
                        ours=f"{model.name}.{member.name}",
                        symbol=above,
                    )
        for part in [*node.bases, *node.decorator_list, *(k.value for k in node.keywords)]:
            self._visit(part, scope, None)
        for statement in node.body:
            inside = isinstance(statement, FunctionNode)
            self._visit(statement, scope, model if inside else None)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> None:
        kind: UseKind = "read" if isinstance(node.ctx, ast.Load) else "write"
        self._named(node, self.types.of(node.value, scope), node.attr, kind)

    def _named(
        self,
        node: ast.AST,
        owners: tuple[Atom, ...],
        name: str,
        kind: UseKind,
        *,
        optional: bool = False,
    ) -> None:
        if name.startswith("__") and name != "__init__":
            return
        missing: list[str] = []
        for atom in owners:
            if isinstance(atom, ModuleRef):
                if atom.module.name.split(".", 1)[0] != UPSTREAM:
                    continue
                target = f"{atom.module.name}.{name}"
                symbol = self.universe.resolve(target)
                if symbol is None and "__getattr__" in atom.module.bindings:
                    continue
            elif isinstance(atom, Bag):
                owner = self.types.namespaces.owner(atom.path, name)
                if owner is None and self.types.namespaces.has(f"{atom.path}.{name}"):
                    continue
                target = f"{atom.accessor}.{name}"
                symbol = self.universe.own_member(owner, name) if owner else None
            elif isinstance(atom, Instance | Klass | Super):
                after = atom.cls if isinstance(atom, Super) else None
                symbol = self.universe.member(atom.cls, name, after=after)
                base = first_upstream(self.universe, atom.cls)
                if base is None:
                    return
                if symbol is not None and symbol.name.split(".", 1)[0] != UPSTREAM:
                    # Ours; upstream's too when its base has the name: then we set its state.
                    symbol = self.universe.member(base, name) if kind == "write" else None
                    if symbol is None:
                        return
                target = f"{base.name}.{name}"
                if symbol is None and self.universe.is_open(atom.cls):
                    return
            else:
                continue
            if symbol is not None:
                # `x.f()` is one use, a call; `_call` reports it with its shape.
                if symbol.kind != "method" or id(node) not in self._called:
                    self._add(kind, target, node, symbol=symbol, optional=optional)
                return
            missing.append(target)
        if missing and kind != "write":
            self._add(kind, missing[0], node, optional=optional)

    def _call(self, node: ast.Call, scope: Scope) -> None:
        function = dotted_name(node.func)
        if function in ("getattr", "hasattr", "setattr") and len(node.args) >= 2:
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                kind: UseKind = "write" if function == "setattr" else "read"
                optional = function == "hasattr" or len(node.args) == 3
                owners = self.types.of(node.args[0], scope)
                self._named(node, owners, name.value, kind, optional=optional)
            return
        self._hook(node, scope)
        shape = CallShape.of(node)
        self._called.add(id(node.func))
        for atom in self.types.of(node.func, scope):
            if isinstance(atom, Callee):
                symbol = atom.symbol
                if symbol.name.split(".", 1)[0] == UPSTREAM:
                    target = self._call_target(node, scope, symbol)
                    self._add("call", target, node, shape=shape, symbol=symbol, bound=atom.bound)
            elif isinstance(atom, Klass):
                init = self.universe.member(atom.cls, "__init__")
                base = first_upstream(self.universe, atom.cls)
                upstream = atom.cls is base or (
                    init is not None and init.name.split(".", 1)[0] == UPSTREAM
                )
                if base is not None and upstream:
                    symbol_of = self.universe.resolve(base.name)
                    self._add("construct", base.name, node, shape=shape, symbol=symbol_of)
        if isinstance(node.func, ast.Attribute):
            self._called_property(node, node.func, scope, shape)

    def _hook(self, node: ast.Call, scope: Scope) -> None:
        """A call that names an upstream target, a function of ours and a hook type."""
        arguments = [*node.args, *(k.value for k in node.keywords)]
        texts = [a.value for a in arguments if isinstance(a, ast.Constant)]
        targets = [t for t in texts if isinstance(t, str) and _NAME.fullmatch(t)]
        kinds = {t for t in texts if isinstance(t, str)} & _HOOK_TYPES
        kinds |= {a.attr for a in arguments if isinstance(a, ast.Attribute)} & _HOOK_TYPES
        if len(targets) != 1 or len(kinds) != 1:
            return
        for argument in arguments:
            for atom in self.types.of(argument, scope):
                if isinstance(atom, Callee):
                    self._add(
                        "hook",
                        targets[0],
                        node,
                        ours=atom.symbol.name,
                        hook=kinds.copy().pop(),
                        symbol=self.universe.resolve(targets[0]),
                    )

    def _call_target(self, node: ast.Call, scope: Scope, symbol: Symbol) -> str:
        if isinstance(node.func, ast.Attribute) and symbol.owner is not None:
            for atom in self.types.of(node.func.value, scope):
                if isinstance(atom, Instance | Klass | Super):
                    base = first_upstream(self.universe, atom.cls)
                    if base is not None:
                        return f"{base.name}.{node.func.attr}"
        return symbol.name

    def _called_property(
        self, node: ast.Call, func: ast.Attribute, scope: Scope, shape: CallShape
    ) -> None:
        for atom in self.types.of(func.value, scope):
            if isinstance(atom, Instance):
                symbol = self.universe.member(atom.cls, func.attr)
                base = first_upstream(self.universe, atom.cls)
                if symbol is None or base is None or symbol.kind != "property":
                    continue
                if symbol.name.split(".", 1)[0] == UPSTREAM:
                    target = f"{base.name}.{func.attr}"
                    self._add("call", target, node, shape=shape, symbol=symbol)
