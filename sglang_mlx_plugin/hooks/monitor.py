"""Watches hook calls: who answered, who raised, how long it took.

pluggy tells the answer of a ``firstresult`` hook, not whose it is. So each implementation is
registered inside a thin function that notes it, in a record that pluggy's own call
monitoring opens and closes. Records lie on a stack for each thread: an implementation may
ask another hook, and two engines may start in two threads.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from .errors import HookError
from .plugins import Implementation

__all__ = ["Call", "Monitor"]

logger = logging.getLogger(__name__)


@dataclass
class Call:
    """One call of one hook.

    Attributes:
        hook: Name of the hook.
        started: `time.perf_counter` at its start.
        answered_by: Whose answer was taken; None if there is none yet.
        answer: That answer.
        raised: The exception under way, once attributed.
        asked: Who was asked, in order.
    """

    hook: str
    started: float
    answered_by: Implementation | None = None
    answer: Any = None
    raised: BaseException | None = None
    asked: list[Implementation] = field(default_factory=list)


class Monitor:
    """Records of the calls under way, and the log of them.

    Args:
        trace: Whether every call is logged, with who answered and how long it took.
    """

    def __init__(self, trace: bool) -> None:
        self._trace = trace
        self._local = threading.local()

    @property
    def last(self) -> Call:
        """The call that this thread finished last."""
        call: Call = self._local.last
        return call

    def before(self, hook_name: str, hook_impls: Any, kwargs: Any) -> None:
        """Called by pluggy ahead of a hook call."""
        self._stack.append(Call(hook_name, time.perf_counter()))

    def after(self, outcome: Any, hook_name: str, hook_impls: Any, kwargs: Any) -> None:
        """Called by pluggy when a hook call has ended."""
        call = self._stack.pop()
        self._local.last = call
        if not self._trace:
            return
        # Warnings, because some hooks are asked before SGLang has configured logging, when
        # anything lower is dropped.
        milliseconds = 1000 * (time.perf_counter() - call.started)
        asked = ", ".join(found.plugin.name for found in call.asked)
        if call.raised is not None:
            logger.warning(
                "hook %s raised %s after %.3f ms (asked: %s)",
                hook_name,
                type(call.raised).__name__,
                milliseconds,
                asked,
            )
        else:
            logger.warning(
                "hook %s answered by %s in %.3f ms (asked: %s)",
                hook_name,
                call.answered_by.plugin if call.answered_by else "nobody",
                milliseconds,
                asked,
            )

    def track(self, function: Callable[..., Any], found: Implementation) -> Callable[..., Any]:
        """`function`, noting in the record what it does."""
        return (
            self._track_wrapper(function, found)
            if found.wrapper
            else self._track_answer(function, found)
        )

    @property
    def _stack(self) -> list[Call]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[Call] = self._local.stack
        return stack

    def _track_answer(
        self, function: Callable[..., Any], found: Implementation
    ) -> Callable[..., Any]:
        @functools.wraps(function)
        def tracked(*arguments: Any) -> Any:
            call = self._stack[-1]
            call.asked.append(found)
            try:
                answer = function(*arguments)
            except BaseException as error:
                _raise(call, error, found)
            if answer is not None:
                call.answer, call.answered_by = answer, found
            return answer

        return tracked

    def _track_wrapper(
        self, function: Callable[..., Any], found: Implementation
    ) -> Callable[..., Any]:
        @functools.wraps(function)
        def tracked(*arguments: Any) -> Generator[None, Any, Any]:
            call = self._stack[-1]
            call.asked.append(found)
            try:
                answer = yield from function(*arguments)
            except BaseException as error:
                if error is call.raised:
                    raise
                _raise(call, error, found)
            if answer is not call.answer:
                # The wrapper changed the answer, so the answer is its own now.
                call.answer, call.answered_by = answer, found
            return answer

        return tracked


def _raise(call: Call, error: BaseException, found: Implementation) -> NoReturn:
    """Raise `error`: a vendor's as a `HookError` that names it, ours as it is."""
    if found.plugin.builtin or not isinstance(error, (Exception, SystemExit)):
        call.raised = error
        raise error
    named = HookError(
        f"Hook {found.hook}: the {found.plugin} raised {type(error).__name__}: {error}"
    )
    call.raised = named
    raise named from error
