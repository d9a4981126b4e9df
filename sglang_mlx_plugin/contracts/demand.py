"""What upstream asks of the objects that we put in its hands.

The scheduler calls and reads its worker, the worker's runner, the pools and the platform by
conventional names. Those reads are found here in upstream's own source, so that the list
grows and shrinks with it; only the names of the receivers are written down, once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from .model import ClassModel, FunctionNode, Module, dotted_name
from .shapes import CallShape
from .source import SourceTree
from .universe import Symbol, Universe

__all__ = ["ROLES", "Demand", "Role", "calls_of", "demands_of", "functions_of", "self_demands"]


@dataclass(frozen=True)
class Role:
    """A part that we play for upstream.

    Attributes:
        name: For sentences.
        base: Upstream class that the part derives from.
        receivers: Last names of the expressions that hold it (``self.tp_worker``).
        scope: Upstream modules and packages whose reads count.
        skip: Of those, the ones that never run with us, each with the reason.
    """

    name: str
    base: str
    receivers: tuple[str, ...]
    scope: tuple[str, ...]
    skip: tuple[tuple[str, str], ...] = ()


_SRT = "sglang.srt."
_SCHEDULER_SIDE = (
    f"{_SRT}managers",
    f"{_SRT}mem_cache.kv_cache_builder",
    f"{_SRT}mem_cache.registry",
)
_NOT_OURS = (
    (f"{_SRT}managers.scheduler_pp_mixin", "--pp-size above 1 is refused at start-up"),
    (f"{_SRT}managers.data_parallel_controller", "runs in a process without a worker"),
    (f"{_SRT}managers.tokenizer_manager", "runs in a process without a worker"),
)

ROLES: tuple[Role, ...] = (
    Role(
        "worker",
        f"{_SRT}managers.tp_worker.BaseTpWorker",
        ("tp_worker", "model_worker", "target_worker"),
        _SCHEDULER_SIDE,
        _NOT_OURS,
    ),
    Role(
        "runner",
        f"{_SRT}model_executor.model_runner.ModelRunner",
        ("model_runner", "_model_runner", "target_model_runner"),
        _SCHEDULER_SIDE,
        _NOT_OURS,
    ),
    Role(
        "platform",
        f"{_SRT}platforms.interface.SRTPlatform",
        ("current_platform",),
        (_SRT.rstrip("."),),
        (
            (f"{_SRT}hardware_backend", "in-tree back ends of other devices"),
            (f"{_SRT}models", "torch models are never built"),
            (f"{_SRT}layers", "torch layers are never run"),
            (f"{_SRT}multimodal", "text only"),
            (f"{_SRT}speculative", "speculative decoding is refused at start-up"),
            (f"{_SRT}disaggregation", "disaggregated serving is refused at start-up"),
        ),
    ),
    Role(
        "request pool",
        f"{_SRT}mem_cache.memory_pool.ReqToTokenPool",
        ("req_to_token_pool",),
        (
            f"{_SRT}managers",
            f"{_SRT}mem_cache.common",
            f"{_SRT}mem_cache.kv_cache_builder",
            f"{_SRT}mem_cache.registry",
            f"{_SRT}mem_cache.allocation",
            f"{_SRT}mem_cache.unified_radix_cache",
            f"{_SRT}mem_cache.unified_cache_components",
        ),
        _NOT_OURS,
    ),
    Role(
        "KV pool",
        f"{_SRT}mem_cache.memory_pool.KVCache",
        ("token_to_kv_pool", "_kvcache"),
        (
            *_SCHEDULER_SIDE,
            f"{_SRT}mem_cache.allocator.base",
            f"{_SRT}mem_cache.allocator.token",
            f"{_SRT}mem_cache.unified_radix_cache",
        ),
        _NOT_OURS,
    ),
)


@dataclass(frozen=True)
class Demand:
    """One thing that upstream does with a part of ours.

    Attributes:
        role: Name of the role.
        attribute: What is asked for.
        kind: ``call``, ``read``, ``write``, or ``optional`` (``getattr`` with a default).
        where: ``managers/scheduler.py:1089``.
        shape: For a call.
        unpack: The number of values that a call's answer is unpacked into, 0 when it is not.
    """

    role: str
    attribute: str
    kind: Literal["call", "read", "write", "optional"]
    where: str
    shape: CallShape | None = None
    unpack: int = 0


def demands_of(
    universe: Universe, role: Role, runs: Callable[[ast.AST], bool] = lambda function: True
) -> list[Demand]:
    """Everything that the modules in the role's scope ask of its receivers.

    Args:
        universe: Our source and a release.
        role: The part.
        runs: Whether a function of upstream's ever runs with us.
    """
    skipped = tuple(name for name, _ in role.skip)
    tokens = tuple(name.encode() for name in role.receivers)
    found: list[Demand] = []
    for name, path, tree in _modules(universe, role.scope):
        if _within(name, skipped):
            continue
        text = tree.read(path)
        if text is None or not any(token in text for token in tokens):
            continue
        module = universe.module(name)
        if module is not None:
            for function in filter(runs, functions_of(module.tree)):
                if module.mentions(function, tokens):
                    found += _Finder(module, role, frozenset(role.receivers)).find(function)
    return list(dict.fromkeys(found))


def _modules(universe: Universe, scope: tuple[str, ...]) -> Iterator[tuple[str, str, SourceTree]]:
    for tree in universe.trees:
        for package in scope:
            stem = package.replace(".", "/")
            for path in tree.paths(stem):
                if path in (f"{stem}.py", f"{stem}/__init__.py") or path.startswith(f"{stem}/"):
                    name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
                    yield name, path, tree


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == p or name.startswith(f"{p}.") for p in packages)


def functions_of(tree: ast.AST) -> Iterator[ast.AST]:
    """The module itself (without its functions) and each outermost function or method."""
    rest: list[ast.stmt] = []
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FunctionNode):
                yield child
            elif isinstance(child, ast.ClassDef) or (
                isinstance(child, ast.If | ast.Try) and isinstance(node, ast.Module | ast.ClassDef)
            ):
                pending.append(child)
            elif isinstance(child, ast.stmt):
                rest.append(child)
    if rest:
        yield ast.Module(body=rest, type_ignores=[])


class _Finder:
    """Finds what one function does with the receivers of one role."""

    def __init__(self, module: Module, role: Role, names: frozenset[str]) -> None:
        self.module = module
        self.role = role
        self.names = names
        self.aliases: set[str] = set()

    def find(self, function: ast.AST) -> list[Demand]:
        nodes = list(ast.walk(function))
        self._alias(nodes)
        found: list[Demand] = []
        called: set[int] = set()
        unpacked: dict[int, int] = {}
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
                starred = any(isinstance(e, ast.Starred) for e in node.targets[0].elts)
                if not starred:
                    unpacked[id(node.value)] = len(node.targets[0].elts)
            if isinstance(node, ast.Call):
                found += self._called(node, called, unpacked.get(id(node), 0))
        for node in nodes:
            if (
                isinstance(node, ast.Attribute)
                and id(node) not in called
                and self._is_receiver(node.value)
            ):
                kind: Literal["read", "write"] = (
                    "read" if isinstance(node.ctx, ast.Load) else "write"
                )
                found.append(Demand(self.role.name, node.attr, kind, self.module.where(node)))
        return found

    def _alias(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = node.targets[0], node.value
            elif isinstance(node, ast.NamedExpr):
                target, value = node.target, node.value
            else:
                continue
            if isinstance(target, ast.Name) and self._is_receiver(value):
                self.aliases.add(target.id)

    def _is_receiver(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr in self.names
        return isinstance(node, ast.Name) and (node.id in self.names or node.id in self.aliases)

    def _called(self, node: ast.Call, called: set[int], unpack: int) -> Iterator[Demand]:
        where = self.module.where(node)
        if dotted_name(node.func) in ("getattr", "hasattr") and len(node.args) >= 2:
            name = node.args[1]
            if (
                isinstance(name, ast.Constant)
                and isinstance(name.value, str)
                and self._is_receiver(node.args[0])
            ):
                plain = len(node.args) == 2 and dotted_name(node.func) == "getattr"
                kind: Literal["read", "optional"] = "read" if plain else "optional"
                yield Demand(self.role.name, name.value, kind, where)
        elif isinstance(node.func, ast.Attribute) and self._is_receiver(node.func.value):
            called.add(id(node.func))
            shape = CallShape.of(node)
            yield Demand(self.role.name, node.func.attr, "call", where, shape, unpack)


def self_demands(
    universe: Universe, cls: ClassModel, role: Role, entries: set[str]
) -> tuple[list[Demand], set[str], set[int]]:
    """What the methods that run for us ask of ``self``, and the attributes that they set.

    Args:
        universe: Our source and a release.
        cls: Our class that plays ``role``.
        role: The part.
        entries: Names that upstream calls or reads from outside.

    Returns:
        Demands that upstream's inherited methods make on ``self``; every attribute that a
        method that runs (ours or upstream's) assigns; and the ``id`` of each such method.
    """
    order = universe.mro(cls)
    pending: list[tuple[str, ClassModel | None]] = [(name, None) for name in entries]
    pending += [("__init__", None), ("__post_init__", None)]
    pending += [
        (m.name, None)
        for c in order
        if c.name.split(".", 1)[0] != "sglang"
        for m in c.members.values()
    ]
    seen: set[int] = set()
    found: list[Demand] = []
    assigned: set[str] = set()
    while pending:
        name, after = pending.pop()
        symbol = universe.member(cls, name, after=after)
        if symbol is None or symbol.owner is None or not isinstance(symbol.node, FunctionNode):
            continue
        if id(symbol.node) in seen:
            continue
        seen.add(id(symbol.node))
        owner, node = symbol.owner, symbol.node
        me = node.args.args[0].arg if node.args.args else ""
        assigned |= {
            attribute
            for attribute, places in owner.instance_attributes.items()
            if any(place.method is node for place in places)
        }
        uses = _Finder(owner.module, role, frozenset({me})).find(node)
        if owner.name.split(".", 1)[0] == "sglang":
            found += [use for use in uses if use.kind != "write"]
        pending += [(use.attribute, None) for use in uses if use.kind != "write"]
        pending += [(name, owner) for name in _super_calls(node)]
    return list(dict.fromkeys(found)), assigned, seen


_CALLER_SCOPE = tuple(
    f"{_SRT}{name}"
    for name in ("managers", "model_executor", "distributed", "entrypoints", "utils")
)


def calls_of(universe: Universe, symbol: Symbol) -> list[tuple[str, CallShape]]:
    """Calls of one function or method in its own module and, for a function, where imported."""
    name = symbol.name.rpartition(".")[2]
    token = f"{name}(".encode()
    modules = {symbol.module.name: symbol.module}
    if symbol.kind == "function":
        plain_call = re.compile(rb"(?<![.\w])" + re.escape(token))
        for other, path, tree in _modules(universe, _CALLER_SCOPE):
            text = tree.read(path)
            if text is not None and plain_call.search(text):
                module = universe.module(other)
                if module is not None and universe.lookup(module, name) == symbol:
                    modules[other] = module
    found: list[tuple[str, CallShape]] = []
    for module in modules.values():
        for node in _calls_in(module, token):
            method = isinstance(node.func, ast.Attribute) and node.func.attr == name
            plain = isinstance(node.func, ast.Name) and node.func.id == name
            if method if symbol.kind == "method" else plain:
                found.append((module.where(node), CallShape.of(node)))
    return found


def _calls_in(module: Module, token: bytes) -> Iterator[ast.Call]:
    for function in functions_of(module.tree):
        if module.mentions(function, (token,)):
            yield from (node for node in ast.walk(function) if isinstance(node, ast.Call))


def _super_calls(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if (
            isinstance(each, ast.Attribute)
            and isinstance(each.value, ast.Call)
            and dotted_name(each.value.func) == "super"
        ):
            yield each.attr
