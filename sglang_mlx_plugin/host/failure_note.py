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
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from .errors import LaunchError, debugging, install_excepthook, sentence_of

__all__ = ["end_child", "end_quietly_if_noted", "waiting_for_children"]

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
        os.environ[_NOTE] = str(note)
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
    note = os.environ.get(_NOTE)
    if sentence is None or note is None:
        raise error
    Path(note).write_text(sentence, encoding="utf-8")
    if debugging():
        logger.debug("The launch fails here:", exc_info=error)
    raise SystemExit(1) from None


def end_quietly_if_noted(error: Exception) -> NoReturn:
    """End a process that fails only because its child did, which has said why.

    Raises:
        SystemExit: if a note was left.
        Exception: `error` itself, otherwise.
    """
    note = os.environ.get(_NOTE)
    if note is None or not os.path.exists(note):
        raise error
    raise SystemExit(1) from None
