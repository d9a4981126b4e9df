"""Who is asked, in which order, and when nobody decided that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_mlx_plugin import hookimpl
from sglang_mlx_plugin.hooks import HookError, HookManager, Hooks, Plugin
from sglang_mlx_plugin.hooks.manager import parse_choices
from sglang_mlx_plugin.hooks.types import ConcurrencyLimits

HOOK = "sglang_mlx_resolve_max_running_requests"
LIMITS = ConcurrencyLimits(max_total_num_tokens=1000)

Make = Callable[..., Plugin]


def answers(value: Any, **options: Any) -> Callable[..., Any]:
    def sglang_mlx_resolve_max_running_requests(limits: ConcurrencyLimits) -> Any:
        return value

    return hookimpl(**options)(sglang_mlx_resolve_max_running_requests)


def cap(*vendors: Plugin, **choices: str) -> int:
    return Hooks(HookManager(list(vendors), choices=choices)).resolve_max_running_requests(LIMITS)


def distributions(manager: HookManager) -> list[str]:
    return [found.plugin.distribution for found in manager.call_order(HOOK)]


def test_built_in_answers_where_nobody_else_does() -> None:
    manager = HookManager([])
    assert Hooks(manager).resolve_max_running_requests(LIMITS) == 500
    for hook in manager.hook_names:
        assert [found.plugin.builtin for found in manager.call_order(hook)] == [True]


def test_vendor_wins_over_built_in(vendor: Make) -> None:
    assert cap(vendor("a", answers(7))) == 7


def test_none_leaves_the_built_in_in_place(vendor: Make) -> None:
    assert cap(vendor("a", answers(None))) == 500


def test_vendor_names_only_the_arguments_it_wants(vendor: Make) -> None:
    @hookimpl
    def sglang_mlx_resolve_max_running_requests() -> int:
        return 3

    assert cap(vendor("a", sglang_mlx_resolve_max_running_requests)) == 3


def test_vendors_object_with_methods_is_a_plugin() -> None:
    class Vendor:
        def __init__(self, most: int) -> None:
            self.most = most

        @hookimpl
        def sglang_mlx_resolve_max_running_requests(self, limits: ConcurrencyLimits) -> int:
            return min(self.most, limits.max_total_num_tokens)

    assert cap(Plugin("object", "object-dist", "1", Vendor(9))) == 9


def test_specname_lets_a_function_bear_another_name(vendor: Make) -> None:
    @hookimpl(specname=HOOK)
    def fewer(limits: ConcurrencyLimits) -> int:
        return 6

    assert cap(vendor("a", fewer)) == 6


def test_two_vendors_are_an_error_that_names_both_and_the_way_out(vendor: Make) -> None:
    with pytest.raises(HookError) as caught:
        HookManager([vendor("one", answers(1)), vendor("two", answers(2))])
    text = str(caught.value)
    for part in (HOOK, "'one'", "one-dist 3.2.1", "'two'", "two-dist 3.2.1"):
        assert part in text
    assert f"SGLANG_MLX_HOOKS={HOOK}=one-dist" in text
    assert "SGLANG_MLX_DISABLE_PLUGINS=two" in text


def test_two_plugins_of_one_distribution_are_rivals_too(vendor: Make) -> None:
    with pytest.raises(HookError, match="none says tryfirst"):
        HookManager(
            [
                vendor("one", answers(1), distribution="acme"),
                vendor("two", answers(2), distribution="acme"),
            ]
        )


@pytest.mark.parametrize("position", [0, 1])
def test_one_tryfirst_decides(vendor: Make, position: int) -> None:
    vendors = [vendor("a", answers(1)), vendor("c", answers(3))]
    vendors.insert(position, vendor("b", answers(2, tryfirst=True)))
    manager = HookManager(vendors)
    assert distributions(manager) == ["b-dist", "a-dist", "c-dist", "sglang-mlx-plugin"]
    assert manager.winner(HOOK).plugin.name == "b"
    assert Hooks(manager).resolve_max_running_requests(LIMITS) == 2


def test_two_tryfirst_are_an_error(vendor: Make) -> None:
    with pytest.raises(HookError, match="more than one says tryfirst"):
        HookManager(
            [vendor("a", answers(1, tryfirst=True)), vendor("b", answers(2, tryfirst=True))]
        )


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("a-dist", 1),
        ("B_Dist", 2),
        ("b", 2),
        ("sglang-mlx-plugin", 500),
    ],
)
def test_the_user_chooses(vendor: Make, chosen: str, expected: int) -> None:
    vendors = [vendor("a", answers(1)), vendor("b", answers(2))]
    assert cap(*vendors, **{HOOK: chosen}) == expected


def test_choice_of_one_hook_leaves_the_vendors_others_alone(vendor: Make) -> None:
    @hookimpl
    def sglang_mlx_auxiliary_slots_per_request() -> int:
        return 11

    manager = HookManager(
        [vendor("a", answers(1), sglang_mlx_auxiliary_slots_per_request), vendor("b", answers(2))],
        choices={HOOK: "b-dist"},
    )
    hooks = Hooks(manager)
    assert hooks.resolve_max_running_requests(LIMITS) == 2
    assert hooks.auxiliary_slots_per_request(LIMITS) == 11
    (idle,) = [found for found in manager.implementations if found.state == "not chosen"]
    assert (idle.plugin.name, idle.hook) == ("a", HOOK)


def test_chosen_one_that_answers_none_falls_to_the_built_in(vendor: Make) -> None:
    vendors = [vendor("a", answers(1)), vendor("b", answers(None))]
    assert cap(*vendors, **{HOOK: "b-dist"}) == 500


def test_choice_of_one_that_is_not_there_is_an_error(vendor: Make) -> None:
    with pytest.raises(HookError, match=r"'c' for .* those of a-dist, sglang-mlx-plugin"):
        cap(vendor("a", answers(1)), **{HOOK: "c"})


def test_choice_for_an_unknown_hook_is_an_error() -> None:
    with pytest.raises(HookError, match="'sglang_mlx_nothing', which is not a hook"):
        cap(sglang_mlx_nothing="a")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (" , ", {}),
        ("one=a", {"one": "a"}),
        (" one = a , two=b,", {"one": "a", "two": "b"}),
    ],
)
def test_choices_are_read(text: str, expected: dict[str, str]) -> None:
    assert parse_choices(text) == expected


@pytest.mark.parametrize("text", ["one", "one=", "=a", "one=a,one=b"])
def test_choices_that_say_nothing_are_an_error(text: str) -> None:
    with pytest.raises(HookError, match="SGLANG_MLX_HOOKS"):
        parse_choices(text)
