"""A static model of Python modules: names, classes, members and signatures, from ``ast`` alone.

Everything is read lazily: a module is parsed when it is first asked for, a class is indexed
when its members are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter, Signature

__all__ = [
    "Binding",
    "ClassModel",
    "FunctionNode",
    "InstanceAttribute",
    "Member",
    "Module",
    "dotted_name",
    "signature_of",
]

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_PROPERTY_DECORATORS = frozenset({"property", "cached_property", "abstractproperty"})


def dotted_name(node: ast.AST | None) -> str | None:
    """``a.b.c`` for a chain of plain attributes, else None."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


class Source(str):
    """Source text of a default value; prints as itself."""

    def __repr__(self) -> str:
        return str(self)


def signature_of(node: FunctionNode | ast.Lambda, *, drop_first: bool = False) -> Signature:
    """The signature that ``node`` declares; ``drop_first`` takes off ``self`` or ``cls``."""
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
    parameters: list[Parameter] = []
    for index, (arg, default) in enumerate(zip(positional, defaults, strict=True)):
        kind = (
            Parameter.POSITIONAL_ONLY
            if index < len(args.posonlyargs)
            else Parameter.POSITIONAL_OR_KEYWORD
        )
        parameters.append(_parameter(arg.arg, kind, default))
    if args.vararg:
        parameters.append(Parameter(args.vararg.arg, Parameter.VAR_POSITIONAL))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        parameters.append(_parameter(arg.arg, Parameter.KEYWORD_ONLY, default))
    if args.kwarg:
        parameters.append(Parameter(args.kwarg.arg, Parameter.VAR_KEYWORD))
    first_is_plain = bool(parameters) and parameters[0].kind in (
        Parameter.POSITIONAL_ONLY,
        Parameter.POSITIONAL_OR_KEYWORD,
    )
    if drop_first and first_is_plain:
        parameters = parameters[1:]
    return Signature(parameters)


def _parameter(name: str, kind: object, default: ast.expr | None) -> Parameter:
    value = Parameter.empty if default is None else Source(ast.unparse(default))
    return Parameter(name, kind, default=value)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Binding:
    """What a name means at the top of a module.

    Attributes:
        kind: ``class``, ``function``, ``variable``, ``import`` (of a module) or ``from``.
        target: Dotted name that an import leads to.
        typing_only: Bound only under ``if TYPE_CHECKING``: no use at run time.
    """

    kind: str
    node: ast.AST
    target: str = ""
    typing_only: bool = False


@dataclass(frozen=True)
class Member:
    """One name in a class body.

    Attributes:
        kind: ``method``, ``classmethod``, ``staticmethod``, ``property``, ``field``
            (annotated) or ``attribute``.
    """

    kind: str
    name: str
    node: ast.AST
    annotation: ast.expr | None = None
    value: ast.expr | None = None

    @property
    def is_callable(self) -> bool:
        """Whether ``obj.name(...)`` calls a function written in the class."""
        return self.kind in ("method", "classmethod", "staticmethod")

    def signature(self, *, bound: bool = True) -> Signature:
        """Signature as a caller sees it; ``bound`` drops ``self``.

        Raises:
            TypeError: The member is no function.
        """
        if not isinstance(self.node, FunctionNode):
            raise TypeError(f"{self.name} is a {self.kind}, not a function")
        drop = self.kind == "classmethod" or (bound and self.kind == "method")
        return signature_of(self.node, drop_first=drop)


@dataclass(frozen=True)
class InstanceAttribute:
    """One ``self.name = value`` and the method that it stands in."""

    name: str
    method: FunctionNode
    node: ast.AST
    annotation: ast.expr | None = None
    value: ast.expr | None = None


@dataclass
class ClassModel:
    """One class statement."""

    module: Module
    node: ast.ClassDef
    qualname: str
    _mro: list[ClassModel] | None = field(default=None, repr=False)

    def __hash__(self) -> int:
        return id(self.node)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassModel) and other.node is self.node

    @property
    def name(self) -> str:
        """``module.Class``."""
        return f"{self.module.name}.{self.qualname}"

    @cached_property
    def members(self) -> dict[str, Member]:
        """Names of the class body, the last definition of each."""
        found: dict[str, Member] = {}
        for node in _statements(self.node.body):
            if isinstance(node, FunctionNode):
                self._add_function(found, node)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
                found[name] = Member("field", name, node, node.annotation, node.value)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        found[target.id] = self._assigned(found, target.id, node)
            elif isinstance(node, ast.ClassDef):
                found[node.name] = Member("class", node.name, node)
        return found

    @staticmethod
    def _add_function(found: dict[str, Member], node: FunctionNode) -> None:
        kind = "method"
        for decorator in node.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            last = (dotted_name(target) or "").rsplit(".", 1)[-1]
            if last in _PROPERTY_DECORATORS:
                kind = "property"
            elif last in ("setter", "deleter") or last == "overload":
                return
            elif last in ("classmethod", "staticmethod"):
                kind = last
        found[node.name] = Member(kind, node.name, node, annotation=node.returns)

    @staticmethod
    def _assigned(found: dict[str, Member], name: str, node: ast.Assign) -> Member:
        value = node.value
        if isinstance(value, ast.Name) and value.id in found:
            # `forward = _forward_native`: an alias keeps the signature of what it names.
            alias = found[value.id]
            return Member(alias.kind, name, alias.node, alias.annotation, alias.value)
        if isinstance(value, ast.Call) and (dotted_name(value.func) or "").endswith("property"):
            return Member("property", name, node, None, value)
        return Member("attribute", name, node, None, value)

    @cached_property
    def instance_attributes(self) -> dict[str, list[InstanceAttribute]]:
        """Everything assigned to ``self.name`` in a method of this class."""
        found: dict[str, list[InstanceAttribute]] = {}
        for node in _statements(self.node.body):
            if isinstance(node, FunctionNode):
                for attribute in assigned_on(node, _first_argument(node)):
                    found.setdefault(attribute.name, []).append(attribute)
        return found

    @cached_property
    def decorators(self) -> dict[str, ast.expr]:
        """Last part of each decorator's name, with the decorator."""
        found: dict[str, ast.expr] = {}
        for decorator in self.node.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            found[(dotted_name(target) or "").rsplit(".", 1)[-1]] = decorator
        return found

    @cached_property
    def keywords(self) -> dict[str, ast.expr]:
        """Keywords of the class statement (``frozen=True``)."""
        return {k.arg: k.value for k in self.node.keywords if k.arg}

    def where(self) -> str:
        """``managers/scheduler.py:455``."""
        return self.module.where(self.node)


def _first_argument(node: FunctionNode) -> str:
    names = [*node.args.posonlyargs, *node.args.args]
    return names[0].arg if names else ""


def assigned_on(method: FunctionNode, receiver: str) -> Iterator[InstanceAttribute]:
    """Each ``receiver.name = ...`` inside ``method``, nested functions included."""
    for node in ast.walk(method):
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        annotation: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value, annotation = [node.target], node.value, node.annotation
        elif isinstance(node, ast.For | ast.AsyncFor):
            targets = [node.target]
        elif isinstance(node, ast.With | ast.AsyncWith):
            targets = [item.optional_vars for item in node.items if item.optional_vars]
        elif isinstance(node, ast.Call) and dotted_name(node.func) == "setattr":
            if (
                len(node.args) == 3
                and dotted_name(node.args[0]) == receiver
                and isinstance(node.args[1], ast.Constant)
            ):
                yield InstanceAttribute(str(node.args[1].value), method, node, None, node.args[2])
            continue
        for target in targets:
            simple = isinstance(target, ast.Attribute)
            for leaf in _leaves(target):
                if (
                    isinstance(leaf, ast.Attribute)
                    and isinstance(leaf.value, ast.Name)
                    and leaf.value.id == receiver
                ):
                    yield InstanceAttribute(
                        leaf.attr, method, leaf, annotation, value if simple else None
                    )


def _leaves(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _leaves(element)
    elif isinstance(target, ast.Starred):
        yield from _leaves(target.value)
    else:
        yield target


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of ``body``, looking into ``if``, ``try``, ``with`` and loops."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
                yield from _statements(getattr(node, name, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _statements(handler.body)


@dataclass(eq=False)
class Module:
    """One parsed file."""

    name: str
    path: str
    tree: ast.Module
    is_package: bool
    text: bytes = b""

    @cached_property
    def _lines(self) -> list[bytes]:
        return self.text.split(b"\n")

    def mentions(self, node: ast.AST, tokens: tuple[bytes, ...]) -> bool:
        """Whether one of ``tokens`` stands in the source of ``node``: cheaper than a walk."""
        first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", None)
        text = b"\n".join(self._lines[first - 1 : last])
        return any(token in text for token in tokens)

    def where(self, node: ast.AST) -> str:
        """``managers/scheduler.py:455``, short enough for a sentence."""
        short = self.path.removeprefix("sglang/srt/")
        return f"{short}:{getattr(node, 'lineno', 0)}"

    @cached_property
    def bindings(self) -> dict[str, Binding]:
        """Top-level names."""
        found: dict[str, Binding] = {}
        self._collect(self.tree.body, found, typing_only=False)
        return found

    @cached_property
    def star_imports(self) -> list[str]:
        """Modules that ``from x import *`` draws from."""
        return [
            self.absolute(node)
            for node in _statements(self.tree.body)
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        ]

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that an import statement names, relative dots resolved."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        drop = node.level - (1 if self.is_package else 0)
        base = parts[: len(parts) - drop] if drop else parts
        return ".".join([*base, *([node.module] if node.module else [])])

    def _collect(
        self, body: list[ast.stmt], found: dict[str, Binding], *, typing_only: bool
    ) -> None:
        for node in body:
            if isinstance(node, ast.If):
                test = (dotted_name(node.test) or "").rsplit(".", 1)[-1]
                self._collect(node.body, found, typing_only=typing_only or test == "TYPE_CHECKING")
                self._collect(node.orelse, found, typing_only=typing_only)
            elif isinstance(node, ast.Try):
                for handler in node.handlers:
                    self._collect(handler.body, found, typing_only=typing_only)
                for part in (node.body, node.orelse, node.finalbody):
                    self._collect(part, found, typing_only=typing_only)
            elif isinstance(node, ast.With):
                self._collect(node.body, found, typing_only=typing_only)
            else:
                for name, binding in bindings_of(self, node, typing_only):
                    old = found.get(name)
                    if binding.typing_only and old is not None and not old.typing_only:
                        continue
                    if old is not None and binding.kind == "variable" and old.kind != "variable":
                        # `X = None` in the except branch of an import is no second meaning.
                        continue
                    found[name] = binding


def bindings_of(
    module: Module, node: ast.AST, typing_only: bool = False
) -> Iterator[tuple[str, Binding]]:
    """The names that one statement binds."""
    if isinstance(node, ast.ClassDef):
        yield node.name, Binding("class", node, typing_only=typing_only)
    elif isinstance(node, FunctionNode):
        yield node.name, Binding("function", node, typing_only=typing_only)
    elif isinstance(node, ast.Import):
        for alias in node.names:
            bound = alias.asname or alias.name.split(".", 1)[0]
            yield bound, Binding("import", node, alias.name if alias.asname else bound, typing_only)
    elif isinstance(node, ast.ImportFrom):
        base = module.absolute(node)
        for alias in node.names:
            yield (
                alias.asname or alias.name,
                Binding("from", node, f"{base}.{alias.name}", typing_only),
            )
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            for leaf in _leaves(target):
                if isinstance(leaf, ast.Name):
                    yield leaf.id, Binding("variable", node, typing_only=typing_only)
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, Binding("variable", node, typing_only=typing_only)
