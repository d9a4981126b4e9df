"""Whether a call binds, and whether one signature takes all that another does."""

from __future__ import annotations

import ast

import pytest

from sglang_mlx_plugin.contracts.model import FunctionNode, signature_of
from sglang_mlx_plugin.contracts.shapes import CallShape, call, misfit, narrower_than


def _signature(text: str):
    node = ast.parse(f"def f{text}: ...").body[0]
    assert isinstance(node, FunctionNode)
    return signature_of(node)


def _shape(text: str) -> CallShape:
    node = ast.parse(f"f{text}", mode="eval").body
    assert isinstance(node, ast.Call)
    return CallShape.of(node)


@pytest.mark.parametrize(
    ("signature", "shape", "reason"),
    [
        ("(a, b=1)", "(1)", None),
        ("(a, b=1)", "(1, b=2)", None),
        ("(a, b=1)", "()", "missing a required argument: 'a'"),
        ("(a, *, b)", "(1)", "missing a required.* argument: 'b'"),
        ("(a)", "(1, 2)", "too many positional arguments"),
        ("(a)", "(1, c=2)", "unexpected keyword argument 'c'"),
        ("(a, b)", "(*x)", None),
        ("(a, b)", "(1, **x)", None),
        ("(a)", "(*x, c=1)", "unexpected keyword argument 'c'"),
        ("(a)", "(1, 2, **x)", "too many positional"),
        ("(a, /)", "(a=1)", "."),
        ("(*args, **kwargs)", "(1, 2, c=3)", None),
    ],
)
def test_a_call_binds_or_says_why_not(signature: str, shape: str, reason: str | None) -> None:
    found = misfit(_signature(signature), _shape(shape))
    if reason is None:
        assert found is None
    else:
        assert found is not None
        import re

        assert re.search(reason, found)


@pytest.mark.parametrize(
    ("ours", "theirs", "lack"),
    [
        ("(a, b=None)", "(a, b=None)", None),
        ("(a)", "(a, b=None)", ("b", False)),
        ("(a)", "(a, b)", ("b", True)),
        ("(x)", "(a)", ("a", True)),
        ("(*args, **kwargs)", "(a, b, *, c)", None),
        ("(a, **kwargs)", "(a, *, c)", None),
        ("(a)", "(a, *, c)", ("c", True)),
        ("(a, b)", "(a)", None),
    ],
)
def test_an_override_that_takes_less_is_noticed(
    ours: str, theirs: str, lack: tuple[str, bool] | None
) -> None:
    assert narrower_than(_signature(ours), _signature(theirs)) == lack


def test_a_row_writes_its_shape_briefly() -> None:
    assert str(call(2, "stop")) == "(_, _, stop=)"
    assert str(_shape("(1, *x, k=2, **y)")) == "(_, *, k=, **)"
