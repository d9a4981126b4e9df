"""Which class an expression has, as far as annotations and constructors tell.

Enough to know that ``batch`` is a ``ScheduleBatch`` and ``batch.reqs[0]`` a ``Req``; no more.
A type is a tuple of alternatives, and an empty tuple means "not known": nothing is claimed
about an unknown type.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from .atoms import (
    Atom,
    Bag,
    Callee,
    Instance,
    Items,
    Klass,
    ModuleRef,
    Row,
    Super,
    Type,
    item_of,
    place_of,
)
from .model import ClassModel, FunctionNode, Module, bindings_of, dotted_name
from .namespaces import Namespaces, config_path
from .universe import Symbol, Universe

__all__ = ["Scope", "Types"]


_SEQUENCES = frozenset(
    {"List", "list", "Sequence", "Iterable", "Iterator", "Deque", "deque", "Set", "set"}
    | {"FrozenSet", "frozenset", "Collection", "MutableSequence", "Generator"}
)
_MAPPINGS = frozenset(["Dict", "dict", "Mapping", "MutableMapping", "DefaultDict", "OrderedDict"])
_TRANSPARENT = frozenset(
    ["Optional", "Annotated", "ClassVar", "Final", "Required", "NotRequired", "Union"]
)
_KEEP_ITEMS = frozenset(["list", "tuple", "set", "sorted", "reversed", "iter", "deque"])
_DEPTH = 12


class Scope:
    """Names of one function (or of a module's top level), each with its type."""

    def __init__(self, module: Module, cls: ClassModel | None, parent: Scope | None) -> None:
        self.module = module
        self.cls = cls
        self.parent = parent
        self.names: dict[str, Type] = {}
        self.imports: dict[str, Symbol] = {}

    def add(self, name: str, found: Type) -> None:
        """Another meaning of ``name``; alternatives accumulate."""
        old = self.names.get(name, ())
        self.names[name] = old + tuple(a for a in found if a not in old)


class Types:
    """The evaluator over one universe.

    Args:
        universe: The sources.
        stand_ins: For an upstream class, our subclass that is really there at run time.
    """

    def __init__(
        self, universe: Universe, stand_ins: Mapping[ClassModel, ClassModel] | None = None
    ) -> None:
        self.universe = universe
        self.namespaces = Namespaces(universe)
        self._stand_ins = stand_ins or {}
        self._members: dict[tuple[ClassModel, str], Type] = {}
        self._scopes: dict[tuple[int, int], Scope] = {}
        self._depth = 0

    # Scopes.

    def scope(
        self,
        module: Module,
        function: FunctionNode | ast.Lambda | None,
        cls: ClassModel | None = None,
        parent: Scope | None = None,
    ) -> Scope:
        """The scope of ``function``, parameters and local names read once."""
        key = (id(function) if function is not None else id(module), id(parent))
        known = self._scopes.get(key)
        if known is not None:
            return known
        scope = Scope(module, cls or (parent.cls if parent else None), parent)
        self._scopes[key] = scope
        if function is not None:
            self._bind_arguments(scope, function, method_of=cls)
            body = function.body if isinstance(function.body, list) else []
            self._bind_body(scope, body)
        return scope

    def _bind_arguments(
        self, scope: Scope, function: FunctionNode | ast.Lambda, method_of: ClassModel | None
    ) -> None:
        args = function.args
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        for index, arg in enumerate(every):
            if index == 0 and method_of is not None and arg.annotation is None:
                decorators = {dotted_name(d) for d in getattr(function, "decorator_list", [])}
                if "classmethod" in decorators:
                    scope.add(arg.arg, (Klass(method_of),))
                elif "staticmethod" not in decorators:
                    scope.add(arg.arg, (Instance(method_of),))
                continue
            scope.add(arg.arg, self.annotation(scope.module, arg.annotation, scope))
        if args.vararg:
            scope.add(args.vararg.arg, ())
        if args.kwarg:
            scope.add(args.kwarg.arg, ())

    def _bind_body(self, scope: Scope, body: list[ast.stmt]) -> None:
        for node in _walk_in_order(body):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name, binding in bindings_of(scope.module, node):
                    symbol = self.universe.resolve(binding.target)
                    if symbol is not None:
                        scope.imports[name] = symbol
                        scope.names.pop(name, None)
            elif isinstance(node, ast.Assign):
                value = self.of(node.value, scope)
                for target in node.targets:
                    self._bind_target(scope, target, value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                scope.add(node.target.id, self.annotation(scope.module, node.annotation, scope))
            elif isinstance(node, ast.NamedExpr):
                scope.add(node.target.id, self.of(node.value, scope))
            elif isinstance(node, ast.For | ast.comprehension):
                self._bind_target(scope, node.target, item_of(self.of(node.iter, scope)))
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                self._bind_target(scope, node.optional_vars, ())
            elif isinstance(node, ast.ExceptHandler) and node.name:
                scope.add(node.name, ())
            elif isinstance(node, ast.Call) and dotted_name(node.func) == "isinstance":
                self._narrow(scope, node)
            elif isinstance(node, FunctionNode | ast.ClassDef):
                scope.add(node.name, ())

    def _narrow(self, scope: Scope, node: ast.Call) -> None:
        if len(node.args) == 2 and isinstance(node.args[0], ast.Name):
            for atom in self.of(node.args[1], scope):
                if isinstance(atom, Klass):
                    scope.add(node.args[0].id, (Instance(atom.cls),))

    def _bind_target(self, scope: Scope, target: ast.expr, value: Type) -> None:
        if isinstance(target, ast.Name):
            scope.add(target.id, value)
        elif isinstance(target, ast.Tuple | ast.List):
            for index, element in enumerate(target.elts):
                self._bind_target(scope, element, place_of(value, index))

    # Annotations.

    def annotation(self, module: Module, node: ast.expr | None, scope: Scope | None = None) -> Type:
        """The type that an annotation written in ``module`` names."""
        if node is None:
            return ()
        if isinstance(node, ast.Constant):
            if not isinstance(node.value, str):
                return ()
            try:
                node = ast.parse(node.value, mode="eval").body
            except SyntaxError:
                return ()
            return self.annotation(module, node, scope)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self.annotation(module, node.left, scope) + self.annotation(
                module, node.right, scope
            )
        if isinstance(node, ast.Subscript):
            return self._subscripted(module, node, scope)
        name = dotted_name(node)
        if name is None:
            return ()
        head = name.split(".", 1)[0]
        local = self._local_import(scope, head)
        if local is not None and head == name:
            cls = self.universe.class_of(local)
        else:
            cls = self.universe.class_named(module, name)
        if cls is None:
            return ()
        mine = self._stand_ins.get(cls)
        return (Instance(cls), Instance(mine)) if mine is not None else (Instance(cls),)

    @staticmethod
    def _local_import(scope: Scope | None, name: str) -> Symbol | None:
        while scope is not None:
            if name in scope.imports:
                return scope.imports[name]
            scope = scope.parent
        return None

    def _subscripted(self, module: Module, node: ast.Subscript, scope: Scope | None) -> Type:
        outer = (dotted_name(node.value) or "").rsplit(".", 1)[-1]
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        types = [self.annotation(module, each, scope) for each in inside]
        if outer in ("Optional", "Union"):
            return tuple(a for t in types for a in t)
        if outer in _TRANSPARENT:
            return types[0]
        if outer in _SEQUENCES:
            return (Items(types[0]),)
        if outer in _MAPPINGS and len(types) == 2:
            return (Items(types[1]),)
        if outer in ("tuple", "Tuple"):
            if len(inside) == 2 and isinstance(inside[1], ast.Constant):
                return (Items(types[0]),)
            return (Row(tuple(types)),)
        if outer in ("type", "Type"):
            return tuple(Klass(a.cls) for a in types[0] if isinstance(a, Instance))
        return self.annotation(module, node.value, scope)

    # Expressions.

    def of(self, node: ast.expr | None, scope: Scope) -> Type:
        """The type of an expression in ``scope``."""
        if node is None or self._depth > _DEPTH:
            return ()
        self._depth += 1
        try:
            return self._of(node, scope)
        finally:
            self._depth -= 1

    def _of(self, node: ast.expr, scope: Scope) -> Type:
        if isinstance(node, ast.Name):
            return self.name(node.id, scope)
        if isinstance(node, ast.Attribute):
            return tuple(
                a for atom in self.of(node.value, scope) for a in self.attribute(atom, node.attr)
            )
        if isinstance(node, ast.Call):
            return self._call(node, scope)
        if isinstance(node, ast.Subscript):
            value = self.of(node.value, scope)
            if isinstance(node.slice, ast.Slice):
                return value
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
                return place_of(value, node.slice.value)
            return item_of(value)
        if isinstance(node, ast.IfExp):
            return self.of(node.body, scope) + self.of(node.orelse, scope)
        if isinstance(node, ast.BoolOp):
            return tuple(a for v in node.values for a in self.of(v, scope))
        if isinstance(node, ast.NamedExpr):
            return self.of(node.value, scope)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return (Items(self.of(node.elt, scope)),)
        if isinstance(node, ast.List):
            return (Items(tuple(a for e in node.elts for a in self.of(e, scope))),)
        if isinstance(node, ast.Tuple):
            return (Row(tuple(self.of(e, scope) for e in node.elts)),)
        return ()

    def name(self, name: str, scope: Scope) -> Type:
        """The type of a plain name, from the innermost scope that binds it."""
        each: Scope | None = scope
        while each is not None:
            if name in each.names:
                return each.names[name]
            if name in each.imports:
                return self.symbol(each.imports[name])
            each = each.parent
        symbol = self.universe.lookup(scope.module, name)
        return self.symbol(symbol) if symbol is not None else ()

    def symbol(self, symbol: Symbol) -> Type:
        """The type of what a top-level name means."""
        if symbol.kind == "module":
            return (ModuleRef(symbol.module),)
        if symbol.kind == "class":
            cls = self.universe.class_of(symbol)
            return (Klass(cls),) if cls is not None else ()
        if symbol.kind == "function":
            return (Callee(symbol),)
        if symbol.kind == "variable":
            annotation = getattr(symbol.node, "annotation", None)
            if annotation is not None:
                return self.annotation(symbol.module, annotation)
            top = self.scope(symbol.module, None)
            return self.of(getattr(symbol.node, "value", None), top)
        return ()

    def attribute(self, atom: Atom, name: str) -> Type:
        """The type of ``atom.name``."""
        if isinstance(atom, ModuleRef):
            symbol = self.universe.lookup(atom.module, name)
            return self.symbol(symbol) if symbol is not None else ()
        if isinstance(atom, Bag):
            return self._setting(atom, name)
        if isinstance(atom, Instance | Klass | Super):
            after = atom.cls if isinstance(atom, Super) else None
            symbol = self.universe.member(atom.cls, name, after=after)
            if symbol is None:
                return ()
            if symbol.kind == "method":
                static = symbol.member is not None and symbol.member.kind != "method"
                return (Callee(symbol, bound=static or not isinstance(atom, Klass)),)
            return self._value_of(atom.cls, symbol, name)
        return ()

    def _setting(self, bag: Bag, name: str) -> Type:
        owner = self.namespaces.owner(bag.path, name)
        if owner is not None:
            return self.annotation(owner.module, owner.members[name].annotation)
        inner = f"{bag.path}.{name}"
        return (Bag(inner, f"{bag.accessor}.{name}"),) if self.namespaces.has(inner) else ()

    def _value_of(self, cls: ClassModel, symbol: Symbol, name: str) -> Type:
        key = (cls, name)
        if key in self._members:
            return self._members[key]
        self._members[key] = ()  # Stops a definition in terms of itself.
        found: Type = ()
        if symbol.member is not None:
            found = self.annotation(symbol.module, symbol.member.annotation)
            if not found and symbol.member.value is not None:
                if "Enum" in " ".join(self.universe.base_names(cls)):
                    found = (Instance(cls),)
                else:
                    found = self.of(symbol.member.value, self.scope(symbol.module, None))
        if not found:
            found = self._from_assignments(cls, name)
        self._members[key] = found
        return found

    def _from_assignments(self, cls: ClassModel, name: str) -> Type:
        for each in self.universe.mro(cls):
            found: Type = ()
            for assigned in each.instance_attributes.get(name, []):
                found += self.annotation(each.module, assigned.annotation)
                if not found and assigned.value is not None:
                    found += self.of(assigned.value, self.scope(each.module, assigned.method, each))
            if found:
                return found
        return ()

    def _call(self, node: ast.Call, scope: Scope) -> Type:
        function = dotted_name(node.func) or ""
        last = function.rsplit(".", 1)[-1]
        if function == "super" and scope.cls is not None:
            # ``super(Base, self)`` starts after Base.
            named = self.of(node.args[0], scope) if node.args else ()
            return (Super(next((a.cls for a in named if isinstance(a, Klass)), scope.cls)),)
        if function == "getattr" and len(node.args) >= 2:
            constant = node.args[1]
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                return tuple(
                    a
                    for atom in self.of(node.args[0], scope)
                    for a in self.attribute(atom, constant.value)
                )
            return ()
        if last == "cast" and len(node.args) == 2:
            return self.annotation(scope.module, node.args[0], scope)
        if last in ("copy", "deepcopy") and node.args:
            return self.of(node.args[0], scope)
        if function in _KEEP_ITEMS and node.args:
            return (Items(item_of(self.of(node.args[0], scope))),)
        if function == "enumerate" and node.args:
            return (Items((Row(((), item_of(self.of(node.args[0], scope)))),)),)
        if function == "zip":
            return (Items((Row(tuple(item_of(self.of(a, scope)) for a in node.args)),)),)
        if last in ("values", "get", "pop") and isinstance(node.func, ast.Attribute):
            owner = self.of(node.func.value, scope)
            if any(isinstance(a, Items) for a in owner):
                return owner if last == "values" else item_of(owner)
        return tuple(a for callee in self.of(node.func, scope) for a in self._answer(callee))

    def _answer(self, callee: Atom) -> Type:
        if isinstance(callee, Klass):
            return (Instance(callee.cls),)
        if isinstance(callee, Callee) and isinstance(callee.symbol.node, FunctionNode):
            node, owner = callee.symbol.node, callee.symbol.owner
            path = config_path(node)
            if path is not None and self.namespaces.has(path):
                return (Bag(path, f"{callee.symbol.name}()"),)
            if isinstance(node.returns, ast.Name) and node.returns.id == "Self" and owner:
                return (Instance(owner),)
            return self.annotation(callee.symbol.module, node.returns)
        return ()


def _walk_in_order(body: list[ast.stmt]) -> list[ast.AST]:
    """All nodes in source order; nested functions and classes are named, not entered."""
    found: list[ast.AST] = []
    pending: list[ast.AST] = list(reversed(body))
    while pending:
        node = pending.pop()
        found.append(node)
        if isinstance(node, FunctionNode | ast.ClassDef | ast.Lambda):
            continue
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            # The loop binds the names that the element uses.
            children = [*node.generators, *[c for c in children if c not in node.generators]]
        pending.extend(reversed(children))
    return found
