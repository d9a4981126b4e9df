"""How a launch is stopped: one sentence, no stack trace, exit status not 0."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NoReturn

__all__ = [
    "LaunchError",
    "debugging",
    "install_excepthook",
    "one_sentence",
    "sentence_of",
    "stop_launch",
]

_PACKAGE = "sglang_mlx_plugin"


class LaunchError(RuntimeError):
    """The launch cannot go on; the message is the whole of what the user should read."""


def stop_launch(sentence: str) -> NoReturn:
    """Raise `LaunchError`, and see to it that an uncaught one prints as one sentence.

    Raises:
        LaunchError: always.
    """
    install_excepthook()
    raise LaunchError(sentence)


def install_excepthook() -> None:
    """Print an uncaught `LaunchError` as its sentence; idempotent.

    A process that catches the error (``sglang.Engine`` in a notebook) is not affected, and
    at log level debug the stack trace is printed as usual.
    """
    previous = sys.excepthook
    if getattr(previous, "_sglang_mlx", False):
        return

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if isinstance(error, LaunchError) and not debugging():
            print(f"sglang-mlx: {error}", file=sys.stderr, flush=True)
            return
        previous(kind, error, trace)

    excepthook._sglang_mlx = True  # type: ignore[attr-defined]
    sys.excepthook = excepthook


def debugging() -> bool:
    """Whether the log level is debug, which is when stack traces are wanted."""
    return logging.getLogger().isEnabledFor(logging.DEBUG)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn a start-up error of ours, whatever its class, into a `LaunchError`.

    Raises:
        LaunchError: in its place.
    """
    try:
        yield
    except LaunchError:
        raise
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        install_excepthook()
        raise LaunchError(sentence) from error


def sentence_of(error: BaseException) -> str | None:
    """The one sentence that explains a start-up error of ours, or None for a bug.

    Ours are the error classes of this package, and a ValueError or RuntimeError that this
    package raised by a statement of its own. Anything else is unexpected, and its stack
    trace is worth more than its message.
    """
    if type(error).__module__.split(".", 1)[0] == _PACKAGE:
        return str(error)
    if type(error) not in (ValueError, RuntimeError):
        return None
    trace = error.__traceback__
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "")
    return str(error) if module.split(".", 1)[0] == _PACKAGE else None
