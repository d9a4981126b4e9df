"""How a scheduler's failure becomes the last line that the user reads.

SGLang's scheduler process would log a stack trace and send SIGQUIT, at which the main process
kills itself before it can say anything. Ours leaves its sentence in a note instead, and ends;
that closes the pipe which the main process waits on, which raises there, where our hook on
`Engine._launch_subprocesses` reads the note.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from .errors import LaunchError, debugging, install_excepthook, sentence_of

__all__ = ["end_child", "waiting_for_children"]

logger = logging.getLogger(__name__)

_NOTE = "SGLANG_MLX_LAUNCH_NOTE"


@contextmanager
def waiting_for_children() -> Iterator[None]:
    """Around the start of child processes, in the main process.

    Raises:
        LaunchError: in the place of whatever was raised, if a child left its sentence. The
            children that were started are ended first.
    """
    before = set(multiprocessing.active_children())
    with tempfile.TemporaryDirectory(prefix="sglang-mlx-") as folder:
        note = Path(folder) / "sentence"
        os.environ[_NOTE] = f"{os.getpid()}:{note}"
        try:
            yield
        except Exception as error:
            if not note.exists():
                raise
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
            install_excepthook()
            raise LaunchError(note.read_text(encoding="utf-8")) from error
        finally:
            os.environ.pop(_NOTE, None)


def end_child(error: Exception) -> NoReturn:
    """End this child process for `error`: in one sentence if it is one of ours.

    Raises:
        SystemExit: if the error has a sentence and the main process waits for it.
        Exception: `error` itself, otherwise.
    """
    sentence = sentence_of(error)
    waiting, _, note = os.environ.get(_NOTE, "").partition(":")
    if sentence is None or not note:
        raise error
    # The first of several replicas to fail speaks, and a launch that is over hears none.
    with suppress(OSError), open(note, "x", encoding="utf-8") as file:
        file.write(sentence)
    if debugging():
        logger.debug("The launch fails here:", exc_info=error)
    if os.getppid() != int(waiting):
        # A data-parallel controller reads from a pipe whose other end it holds too, so it
        # would never see this process end.
        os.kill(os.getppid(), signal.SIGTERM)
    raise SystemExit(1) from None
