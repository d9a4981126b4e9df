"""The static model reads what Python would see: names, bases, members, signatures."""

from __future__ import annotations

import pytest

from sglang_mlx_plugin.contracts.universe import Universe, describe
from tests.support.trees import TextTree

TREE = TextTree(
    {
        "sglang/__init__.py": "",
        "sglang/srt/__init__.py": "",
        "sglang/srt/base.py": """
            import abc
            from dataclasses import dataclass, field
            from functools import cached_property
            from typing import ClassVar, NamedTuple, TYPE_CHECKING
            import msgspec

            if TYPE_CHECKING:
                from sglang.srt.other import Other

            class Base(abc.ABC):
                kind: str = "plain"
                def __init__(self, size, *, device="cpu"):
                    self.size, (self.low, self.high) = size, (0, 1)
                    with open("x") as self.handle:
                        pass
                @property
                def width(self) -> int: return 1
                @cached_property
                def depth(self): return 1
                @classmethod
                def make(cls, a, b=1): ...
                @staticmethod
                def help(a, /, b, *rest, **more): ...
                def alloc(self, need_size): ...
                allocate = alloc
                def late(self):
                    def inner():
                        self.set_inside = 1
                    setattr(self, "set_by_name", 2)

            @dataclass
            class Result:
                logits: object
                counter: ClassVar[int] = 0
                tokens: list = field(default_factory=list)
                hidden: int = field(init=False, default=0)
                def total(self): ...

            @dataclass
            class More(Result):
                extra: int = 0

            class Struct(msgspec.Struct, kw_only=True):
                a: int
                b: int = 1

            class Pair(NamedTuple):
                left: int
                right: int = 0

            def run(batch, *, stop=False): ...
            Alias = Result
        """,
        "sglang/srt/other.py": """
            from . import base
            from .base import Base as Parent, run
            class Other: ...
            class Left(Parent):
                def alloc(self, need_size, strict=False): ...
            class Right(base.Base):
                def free(self): ...
            class Both(Left, Right): ...
        """,
        "sglang/srt/pools/__init__.py": "from sglang.srt.pools.token import *\n",
        "sglang/srt/pools/token.py": "class Pool:\n    def alloc(self, n): ...\n",
    }
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("base.Base", "class (size, *, device=)"),
        ("base.Base.width", "property"),
        ("base.Base.depth", "property"),
        ("base.Base.make", "(a, b=)"),
        ("base.Base.help", "(a, b, *rest, **more)"),
        ("base.Base.allocate", "(need_size)"),
        ("base.Base.kind", "field"),
        ("base.Base.high", "attribute"),
        ("base.Base.handle", "attribute"),
        ("base.Base.set_inside", "attribute"),
        ("base.Base.set_by_name", "attribute"),
        ("base.Base.nothing", "-"),
        ("base.Result", "class (logits, tokens=)"),
        ("base.More", "class (logits, tokens=, extra=)"),
        ("base.Alias.total", "()"),
        ("base.Struct", "class (*, a, b=)"),
        ("base.Pair", "class (left, right=)"),
        ("base.run", "(batch, *, stop=)"),
        ("other.run", "(batch, *, stop=)"),
        ("other.Both.alloc", "(need_size, strict=)"),
        ("other.Both.free", "()"),
        ("other.Both.width", "property"),
        ("pools.Pool.alloc", "(n)"),
        ("nowhere.Thing", "-"),
    ],
)
def test_a_name_is_described_as_python_would_see_it(name: str, expected: str) -> None:
    assert describe(Universe(TREE), f"sglang.srt.{name}") == expected


def test_an_import_for_type_checking_only_is_told_apart() -> None:
    universe = Universe(TREE)
    late = universe.resolve("sglang.srt.base.Other")
    plain = universe.resolve("sglang.srt.other.Other")
    assert late is not None and plain is not None
    assert late.typing_only and not plain.typing_only
    assert late.name == plain.name


def test_resolution_order_is_c3() -> None:
    universe = Universe(TREE)
    both = universe.class_of(universe.resolve("sglang.srt.other.Both"))
    assert both is not None
    assert [c.qualname for c in universe.mro(both)] == ["Both", "Left", "Right", "Base"]


def test_a_file_that_does_not_parse_is_no_module() -> None:
    tree = TextTree({"sglang/__init__.py": "", "sglang/bad.py": "def broken(:\n"})
    assert Universe(tree).module("sglang.bad") is None
