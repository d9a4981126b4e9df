"""Several source trees as one world: resolve dotted names, walk base classes, find members.

Our own package and one release of SGLang are looked at together, so that a class of ours
whose base is upstream's has one method resolution order across both.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, Signature
from typing import Literal

from .model import Binding, ClassModel, FunctionNode, Member, Module, dotted_name, signature_of
from .shapes import show
from .source import SourceTree

__all__ = ["Symbol", "Universe", "describe"]

SymbolKind = Literal[
    "module", "class", "function", "method", "property", "field", "attribute", "variable"
]
_OPEN_ATTRIBUTES = frozenset({"__getattr__", "__getattribute__"})


@dataclass(frozen=True)
class Symbol:
    """What a dotted name leads to.

    Attributes:
        kind: A class method or static method counts as ``method``; an attribute set on
            ``self`` as ``attribute``; an annotated class variable as ``field``.
        name: Where it is defined, which may be another place than where it was asked for.
    """

    kind: SymbolKind
    name: str
    node: ast.AST | None
    module: Module
    owner: ClassModel | None = None
    member: Member | None = None
    typing_only: bool = False

    @property
    def where(self) -> str:
        """``managers/scheduler.py:455``."""
        return self.module.where(self.node) if self.node is not None else self.module.path


class Universe:
    """Modules of several trees, resolved against one another."""

    def __init__(self, *trees: SourceTree) -> None:
        self.trees = trees
        self._modules: dict[str, Module | None] = {}
        self._classes: dict[int, ClassModel] = {}
        self._mros: dict[ClassModel, list[ClassModel]] = {}
        self._open: dict[ClassModel, bool] = {}

    # Modules and names.

    def module(self, name: str) -> Module | None:
        """The parsed module, or None when no tree has it or it does not parse."""
        if name not in self._modules:
            self._modules[name] = self._load(name)
        return self._modules[name]

    def _load(self, name: str) -> Module | None:
        stem = name.replace(".", "/")
        for path in (f"{stem}/__init__.py", f"{stem}.py"):
            for tree in self.trees:
                text = tree.read(path)
                if text is not None:
                    return self.parse(name, path, text)
        return None

    def parse(self, name: str, path: str, text: bytes) -> Module | None:
        """Parse ``text`` as module ``name`` and remember it; None on a syntax error."""
        known = self._modules.get(name)
        if known is not None:
            return known
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return None
        module = Module(name, path, tree, path.endswith("/__init__.py"), text)
        self._modules[name] = module
        return module

    def resolve(self, dotted: str) -> Symbol | None:
        """The symbol behind a dotted name, through re-exports and base classes.

        ``module.get_schedule().max_total_tokens`` names a setting by the function whose
        answer holds it.
        """
        if "()." in dotted:
            return self._setting(*dotted.split("().", 1))
        parts = dotted.split(".")
        for count in range(len(parts), 0, -1):
            module = self.module(".".join(parts[:count]))
            if module is not None:
                return self._descend(module, parts[count:])
        return None

    def _setting(self, accessor: str, rest: str) -> Symbol | None:
        from .namespaces import Namespaces, config_path

        function = self.resolve(accessor)
        if function is None or not isinstance(function.node, FunctionNode):
            return None
        path = config_path(function.node)
        if path is None:
            return None
        inner, _, name = f"{path}.{rest}".rpartition(".")
        owner = Namespaces(self).owner(inner, name)
        return self.own_member(owner, name) if owner is not None else None

    def _descend(self, module: Module, rest: list[str]) -> Symbol | None:
        if not rest:
            return Symbol("module", module.name, None, module)
        symbol = self.lookup(module, rest[0])
        for part in rest[1:]:
            if symbol is None:
                return None
            if symbol.kind == "module":
                symbol = self.lookup(symbol.module, part)
            elif symbol.kind == "class":
                cls = self.class_of(symbol)
                symbol = self.member(cls, part) if cls is not None else None
            else:
                return None
        return symbol

    def lookup(
        self, module: Module, name: str, _seen: frozenset[str] = frozenset()
    ) -> Symbol | None:
        """A top-level name of ``module``, imports followed to the definition."""
        key = f"{module.name}.{name}"
        if key in _seen:
            return None
        seen = _seen | {key}
        binding = module.bindings.get(name)
        if binding is None:
            sub = self.module(key) if module.is_package else None
            if sub is not None:
                return Symbol("module", sub.name, None, sub)
            for star in module.star_imports:
                source = self.module(star)
                found = self.lookup(source, name, seen) if source is not None else None
                if found is not None:
                    return found
            return None
        return self._bound(module, name, binding, seen)

    def _bound(
        self, module: Module, name: str, binding: Binding, seen: frozenset[str]
    ) -> Symbol | None:
        here = f"{module.name}.{name}"
        late = binding.typing_only
        if binding.kind == "class":
            return Symbol("class", here, binding.node, module, typing_only=late)
        if binding.kind == "function":
            return Symbol("function", here, binding.node, module, typing_only=late)
        if binding.kind == "variable":
            return self._variable(module, here, binding, seen)
        found = self._imported(binding.target, seen)
        if found is not None and late:
            return Symbol(
                found.kind, found.name, found.node, found.module, found.owner, found.member, True
            )
        return found

    def _variable(
        self, module: Module, here: str, binding: Binding, seen: frozenset[str]
    ) -> Symbol | None:
        value = getattr(binding.node, "value", None)
        if isinstance(value, ast.Name) and value.id in module.bindings:
            # `GenerationBatchResult = utils.GenerationBatchResult` and the like: same object.
            alias = self.lookup(module, value.id, seen)
            if alias is not None and alias.kind in ("class", "function"):
                return alias
        return Symbol("variable", here, binding.node, module, typing_only=binding.typing_only)

    def _imported(self, target: str, seen: frozenset[str]) -> Symbol | None:
        whole = self.module(target)
        if whole is not None:
            return Symbol("module", whole.name, None, whole)
        base, _, name = target.rpartition(".")
        source = self.module(base) if base else None
        return self.lookup(source, name, seen) if source is not None else None

    # Classes.

    def class_of(self, symbol: Symbol | None) -> ClassModel | None:
        """The class model of a class symbol."""
        if symbol is None or not isinstance(symbol.node, ast.ClassDef):
            return None
        return self.class_model(symbol.module, symbol.node, symbol.name)

    def class_model(self, module: Module, node: ast.ClassDef, name: str = "") -> ClassModel:
        """The one model of a class statement."""
        if id(node) not in self._classes:
            qualname = name.removeprefix(f"{module.name}.") if name else node.name
            self._classes[id(node)] = ClassModel(module, node, qualname)
        return self._classes[id(node)]

    def classes_in(self, module: Module) -> list[ClassModel]:
        """Top-level classes of a module, those inside ``if`` and ``try`` included."""
        return [
            self.class_model(module, b.node)
            for b in module.bindings.values()
            if b.kind == "class" and isinstance(b.node, ast.ClassDef)
        ]

    def mro(self, cls: ClassModel) -> list[ClassModel]:
        """Method resolution order, as far as the bases can be found."""
        if cls not in self._mros:
            self._mros[cls] = [cls]  # Stops a cycle, which only broken sources have.
            parents = [p for p in (self._base(cls, b) for b in cls.node.bases) if p is not None]
            if cls.name == "sglang.srt.server_args.ServerArgs":
                # Its fields are collected from the namespace classes when it is imported.
                from .namespaces import Namespaces

                parents += Namespaces(self).every()
            self._mros[cls] = [cls, *_merge([*(list(self.mro(p)) for p in parents), parents])]
        return self._mros[cls]

    def _base(self, cls: ClassModel, base: ast.expr) -> ClassModel | None:
        if isinstance(base, ast.Subscript):
            base = base.value
        name = dotted_name(base)
        return self.class_named(cls.module, name) if name else None

    def class_named(self, module: Module, dotted: str) -> ClassModel | None:
        """The class that ``dotted`` means when written in ``module``."""
        head, *rest = dotted.split(".")
        symbol = self.lookup(module, head)
        for part in rest:
            if symbol is None:
                return None
            if symbol.kind == "module":
                symbol = self.lookup(symbol.module, part)
            else:
                owner = self.class_of(symbol)
                symbol = self.member(owner, part) if owner is not None else None
        return self.class_of(symbol)

    def base_names(self, cls: ClassModel) -> set[str]:
        """Last part of every base's name over the whole order, found or not."""
        found: set[str] = set()
        for each in self.mro(cls):
            for base in each.node.bases:
                target = base.value if isinstance(base, ast.Subscript) else base
                found.add((dotted_name(target) or "").rsplit(".", 1)[-1])
        return found

    def is_open(self, cls: ClassModel) -> bool:
        """Whether attributes may exist that no source shows (``__getattr__``)."""
        if cls not in self._open:
            names = {name for each in self.mro(cls) for name in each.members}
            self._open[cls] = bool(names & _OPEN_ATTRIBUTES)
        return self._open[cls]

    def member(
        self, cls: ClassModel, name: str, *, after: ClassModel | None = None
    ) -> Symbol | None:
        """A member or instance attribute of ``cls``; ``after`` starts behind that class."""
        order = self.mro(cls)
        if after is not None and after in order:
            order = order[order.index(after) + 1 :]
        for each in order:
            found = self.own_member(each, name)
            if found is not None:
                return found
        return None

    def own_member(self, cls: ClassModel, name: str) -> Symbol | None:
        """A name that ``cls`` itself defines or assigns."""
        here = f"{cls.name}.{name}"
        member = cls.members.get(name)
        if member is not None:
            kind = "method" if member.is_callable else member.kind
            return Symbol(kind, here, member.node, cls.module, cls, member)  # type: ignore[arg-type]
        assigned = cls.instance_attributes.get(name)
        if assigned:
            return Symbol("attribute", here, assigned[0].node, cls.module, cls)
        return None

    # Signatures.

    def signature(self, symbol: Symbol, *, bound: bool = True) -> Signature | None:
        """How ``symbol`` is called; None where that is not written down.

        Args:
            symbol: A function, a method (``bound`` drops ``self``) or a class.
            bound: False for ``Class.method(obj, ...)``.
        """
        if symbol.kind == "function" and isinstance(symbol.node, FunctionNode):
            return signature_of(symbol.node)
        if symbol.kind == "method" and symbol.member is not None:
            return symbol.member.signature(bound=bound)
        cls = self.class_of(symbol)
        return self.constructor(cls) if cls is not None else None

    def constructor(self, cls: ClassModel) -> Signature | None:
        """Signature of ``cls(...)``; None when it cannot be known."""
        bases = self.base_names(cls)
        for each in self.mro(cls):
            init = each.members.get("__init__")
            if init is not None and isinstance(init.node, FunctionNode):
                return signature_of(init.node, drop_first=True)
            if "dataclass" in each.decorators:
                return self._field_signature(each, keyword_only=_flag(each.decorators["dataclass"]))
        if bases & {"Struct", "NamedTuple", "BaseModel"}:
            keyword_only = "BaseModel" in bases or any(
                _true(each.keywords.get("kw_only")) for each in self.mro(cls)
            )
            return self._field_signature(cls, keyword_only=keyword_only)
        if bases & {"Enum", "IntEnum", "StrEnum", "Protocol"} or len(bases - {"object", "ABC"}) > 0:
            return None
        return Signature([])

    def _field_signature(self, cls: ClassModel, *, keyword_only: bool) -> Signature | None:
        fields: dict[str, tuple[bool, bool]] = {}
        for each in reversed(self.mro(cls)):
            for member in each.members.values():
                if member.kind == "field" and not _is_class_variable(member.annotation):
                    if not _init_flag(member.value):
                        fields.pop(member.name, None)
                        continue
                    fields[member.name] = (_has_default(member.value), keyword_only)
        parameters = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY if only else Parameter.POSITIONAL_OR_KEYWORD,
                default=None if default else Parameter.empty,
            )
            for name, (default, only) in fields.items()
        ]
        try:
            return Signature(parameters)
        except ValueError:
            # A default before a required field is legal through inheritance tricks.
            return Signature([p.replace(kind=Parameter.KEYWORD_ONLY) for p in parameters])

    @cached_property
    def version(self) -> str:
        """Release of the first tree that knows its own."""
        for tree in self.trees:
            if tree.version is not None and "sglang" in tree.label:
                return str(tree.version)
        return "unknown"


def _merge(orders: list[list[ClassModel]]) -> list[ClassModel]:
    """C3 linearisation; falls back to first come where the sources contradict it."""
    result: list[ClassModel] = []
    orders = [list(order) for order in orders if order]
    while orders:
        head = next(
            (o[0] for o in orders if not any(o[0] in other[1:] for other in orders)), orders[0][0]
        )
        result.append(head)
        orders = [rest for o in orders if (rest := [c for c in o if c != head])]
    return result


def _true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _flag(decorator: ast.expr) -> bool:
    if not isinstance(decorator, ast.Call):
        return False
    return any(k.arg == "kw_only" and _true(k.value) for k in decorator.keywords)


def _is_class_variable(annotation: ast.expr | None) -> bool:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return "ClassVar" in annotation.value
    target = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return (dotted_name(target) or "").endswith("ClassVar")


def _field_call(value: ast.expr | None) -> ast.Call | None:
    if isinstance(value, ast.Call):
        name = (dotted_name(value.func) or "").rsplit(".", 1)[-1]
        if name in ("field", "Field"):
            return value
    return None


def _has_default(value: ast.expr | None) -> bool:
    call = _field_call(value)
    if call is None:
        return value is not None
    return bool(call.args) or any(
        k.arg in ("default", "default_factory", "name") for k in call.keywords
    )


def _init_flag(value: ast.expr | None) -> bool:
    call = _field_call(value)
    if call is None:
        return True
    return not any(
        k.arg == "init" and isinstance(k.value, ast.Constant) and k.value.value is False
        for k in call.keywords
    )


def describe(universe: Universe, target: str) -> str:
    """One short text for what ``target`` is: its signature, or its kind, or ``-``."""
    symbol = universe.resolve(target)
    if symbol is None:
        return "-"
    signature = universe.signature(symbol)
    if signature is None or symbol.kind == "class":
        return symbol.kind if signature is None else f"class {show(signature)}"
    return show(signature)
