"""Wrappers observe, answers and errors are attributed, the trace tells it all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest

from sglang_mlx_plugin import hookimpl
from sglang_mlx_plugin.hooks import HookError, HookManager, Hooks, Plugin
from sglang_mlx_plugin.hooks.types import ConcurrencyLimits

HOOK = "sglang_mlx_resolve_max_running_requests"
LIMITS = ConcurrencyLimits(max_total_num_tokens=1000)
REFUSED = ConcurrencyLimits(max_total_num_tokens=1000, requested=0)

Make = Callable[..., Plugin]


def answers(value: Any) -> Callable[..., Any]:
    @hookimpl
    def sglang_mlx_resolve_max_running_requests() -> Any:
        return value

    return sglang_mlx_resolve_max_running_requests


def wraps(change: Callable[[Any], Any]) -> Callable[..., Any]:
    @hookimpl(wrapper=True)
    def sglang_mlx_resolve_max_running_requests() -> Generator[None, Any, Any]:
        return change((yield))

    return sglang_mlx_resolve_max_running_requests


def raises(error: BaseException, *, early: bool = True) -> Callable[..., Any]:
    @hookimpl(wrapper=True)
    def sglang_mlx_resolve_max_running_requests() -> Generator[None, Any, Any]:
        if early:
            raise error
        yield
        raise error

    return sglang_mlx_resolve_max_running_requests


def test_wrappers_observe_without_being_rivals(vendor: Make) -> None:
    seen: list[tuple[str, int]] = []

    def note(name: str) -> Callable[[int], int]:
        def observe(answer: int) -> int:
            seen.append((name, answer))
            return answer

        return observe

    manager = HookManager(
        [
            vendor("a", wraps(note("a"))),
            vendor("b", wraps(note("b"))),
            vendor("c", answers(7)),
        ]
    )
    answer, who = manager.ask(HOOK, limits=LIMITS)
    assert (answer, who.plugin.name) == (7, "c")
    assert seen == [("b", 7), ("a", 7)]
    order = [found.plugin.name for found in manager.call_order(HOOK)]
    assert order == ["a", "b", "c", "builtin.max_running_requests"]
    assert manager.winner(HOOK).plugin.name == "c"


def test_wrapper_goes_on_where_the_user_chose_another(vendor: Make) -> None:
    seen: list[int] = []
    observer = wraps(lambda answer: seen.append(answer) or answer)
    manager = HookManager(
        [vendor("a", observer), vendor("b", answers(2)), vendor("c", answers(3))],
        choices={HOOK: "c-dist"},
    )
    assert Hooks(manager).resolve_max_running_requests(LIMITS) == 3
    assert seen == [3]


def test_wrapper_that_changes_the_answer_owns_it(vendor: Make) -> None:
    manager = HookManager([vendor("a", wraps(lambda answer: answer - 1)), vendor("b", answers(5))])
    answer, who = manager.ask(HOOK, limits=LIMITS)
    assert (answer, who.plugin.name) == (4, "a")
    broken = HookManager([vendor("a", wraps(str)), vendor("b", answers(5))])
    with pytest.raises(HookError, match=r"'a' .* answered '5' \(str\)"):
        Hooks(broken).resolve_max_running_requests(LIMITS)


def test_wrapper_that_loses_the_answer_is_named(vendor: Make) -> None:
    manager = HookManager([vendor("a", wraps(lambda answer: None))])
    with pytest.raises(HookError, match="no answer: plugin 'a'"):
        manager.ask(HOOK, limits=LIMITS)


def test_wrapper_that_yields_twice_is_named(vendor: Make) -> None:
    @hookimpl(wrapper=True)
    def sglang_mlx_resolve_max_running_requests() -> Generator[None, Any, Any]:
        yield
        yield

    manager = HookManager([vendor("a", sglang_mlx_resolve_max_running_requests)])
    with pytest.raises(HookError, match="a wrapper failed, one of plugin 'a'"):
        manager.ask(HOOK, limits=LIMITS)


@pytest.mark.parametrize("error", [OSError("no driver"), SystemExit(4)])
def test_vendor_that_raises_is_named(vendor: Make, error: BaseException) -> None:
    @hookimpl
    def sglang_mlx_resolve_max_running_requests() -> int:
        raise error

    manager = HookManager([vendor("bad", sglang_mlx_resolve_max_running_requests)])
    with pytest.raises(HookError) as caught:
        Hooks(manager).resolve_max_running_requests(LIMITS)
    text = str(caught.value)
    assert f"Hook {HOOK}: the plugin 'bad' (distribution bad-dist 3.2.1) raised" in text
    assert f"{type(error).__name__}: {error}" in text
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("early", [True, False])
def test_wrapper_that_raises_is_named(vendor: Make, early: bool) -> None:
    manager = HookManager([vendor("bad", raises(OSError("no"), early=early))])
    with pytest.raises(HookError, match=r"plugin 'bad' .* raised OSError: no"):
        manager.ask(HOOK, limits=LIMITS)


def test_built_ins_sentence_passes_unchanged_through_wrappers(vendor: Make) -> None:
    """What the user did wrong is not a vendor's fault because a vendor looked on."""
    manager = HookManager([vendor("a", wraps(lambda answer: answer))])
    with pytest.raises(RuntimeError, match=r"^--max-running-requests 0 ") as caught:
        Hooks(manager).resolve_max_running_requests(REFUSED)
    assert not isinstance(caught.value, HookError)


def test_interrupt_stays_an_interrupt(vendor: Make) -> None:
    @hookimpl
    def sglang_mlx_resolve_max_running_requests() -> int:
        raise KeyboardInterrupt

    manager = HookManager([vendor("a", sglang_mlx_resolve_max_running_requests)])
    with pytest.raises(KeyboardInterrupt):
        manager.ask(HOOK, limits=LIMITS)


def test_hook_asked_within_a_hook_keeps_its_own_record(vendor: Make) -> None:
    managers: list[HookManager] = []

    @hookimpl
    def sglang_mlx_resolve_max_running_requests(limits: ConcurrencyLimits) -> int:
        return Hooks(managers[0]).auxiliary_slots_per_request(limits)

    managers.append(HookManager([vendor("a", sglang_mlx_resolve_max_running_requests)]))
    answer, who = managers[0].ask(HOOK, limits=LIMITS)
    assert (answer, who.plugin.name) == (4, "a")


def test_threads_do_not_mix_their_calls(vendor: Make) -> None:
    """Two engines may start in two threads, each asking the same manager."""
    both = threading.Barrier(2, timeout=30)

    @hookimpl
    def sglang_mlx_resolve_max_running_requests(limits: ConcurrencyLimits) -> int | None:
        both.wait()
        answer = 1 if limits.requested == 1 else None
        both.wait()
        return answer

    manager = HookManager([vendor("a", sglang_mlx_resolve_max_running_requests)])
    got: dict[int | None, tuple[int, str]] = {}

    def ask(requested: int | None) -> None:
        given = ConcurrencyLimits(max_total_num_tokens=1000, requested=requested)
        answer, who = manager.ask(HOOK, limits=given)
        got[requested] = (answer, who.plugin.name)

    threads = [threading.Thread(target=ask, args=(each,)) for each in (1, None)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {1: (1, "a"), None: (500, "builtin.max_running_requests")}


def test_trace_says_who_answered_and_how_long_it_took(
    vendor: Make, caplog: pytest.LogCaptureFixture
) -> None:
    manager = HookManager([vendor("a", answers(None))], trace=True)
    with caplog.at_level(logging.WARNING):
        Hooks(manager).resolve_max_running_requests(LIMITS)
        with pytest.raises(RuntimeError):
            Hooks(manager).resolve_max_running_requests(REFUSED)
    first, second = [record.getMessage() for record in caplog.records]
    assert f"hook {HOOK} answered by plugin 'builtin.max_running_requests'" in first
    assert "sglang-mlx-plugin 0." in first
    assert " ms (asked: a, builtin.max_running_requests)" in first
    assert f"hook {HOOK} raised RuntimeError after" in second


@pytest.mark.parametrize(
    ("value", "traced"), [(None, False), ("", False), ("0", False), ("1", True), ("yes", True)]
)
def test_trace_is_switched_by_the_environment(
    value: str | None, traced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {} if value is None else {"SGLANG_MLX_TRACE_HOOKS": value}
    manager = HookManager.from_environ(environ)
    with caplog.at_level(logging.DEBUG):
        Hooks(manager).auxiliary_slots_per_request(LIMITS)
    assert bool(caplog.records) is traced
