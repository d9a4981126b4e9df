"""What an expression can be: the alternatives that ``infer`` works with."""

from __future__ import annotations

from dataclasses import dataclass

from .model import ClassModel, Module
from .universe import Symbol

__all__ = [
    "Atom",
    "Bag",
    "Callee",
    "Instance",
    "Items",
    "Klass",
    "ModuleRef",
    "Row",
    "Super",
    "Type",
    "item_of",
    "place_of",
]


@dataclass(frozen=True)
class Instance:
    """An object of a class."""

    cls: ClassModel


@dataclass(frozen=True)
class Klass:
    """A class itself."""

    cls: ClassModel


@dataclass(frozen=True)
class Callee:
    """A function or a method; ``bound`` when ``self`` is already given."""

    symbol: Symbol
    bound: bool = False


@dataclass(frozen=True)
class Items:
    """A container; iterating or indexing it gives ``item``."""

    item: tuple[Atom, ...]


@dataclass(frozen=True)
class Row:
    """A tuple with a known type in each place."""

    places: tuple[tuple[Atom, ...], ...]


@dataclass(frozen=True)
class ModuleRef:
    """An imported module."""

    module: Module


@dataclass(frozen=True)
class Super:
    """``super()`` inside a class."""

    cls: ClassModel


@dataclass(frozen=True)
class Bag:
    """One of SGLang's configuration namespaces, as ``get_schedule()`` returns it.

    Attributes:
        path: Dotted path of the namespace.
        accessor: How our source got there, for the name of a contract.
    """

    path: str
    accessor: str


Atom = Bag | Instance | Klass | Callee | Items | Row | ModuleRef | Super
Type = tuple[Atom, ...]


def item_of(container: Type) -> Type:
    """What iterating ``container`` gives."""
    found: Type = ()
    for atom in container:
        if isinstance(atom, Items):
            found += atom.item
        elif isinstance(atom, Row):
            found += tuple(a for place in atom.places for a in place)
    return found


def place_of(container: Type, index: int) -> Type:
    """What ``container[index]`` is."""
    found: Type = ()
    for atom in container:
        if isinstance(atom, Row):
            if -len(atom.places) <= index < len(atom.places):
                found += atom.places[index]
        elif isinstance(atom, Items):
            found += atom.item
    return found
