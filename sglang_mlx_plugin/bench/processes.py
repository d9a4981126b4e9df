"""Processes of contestants: started in a group of their own, paused while others are measured."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

__all__ = ["Child", "MemoryWatch", "free_port"]


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Child:
    """A process and everything that it starts.

    Args:
        argv: The command.
        env: Its whole environment.
        log: Where its stderr (and stdout, without `pipe`) goes.
        pipe: Keep its stdin and stdout as binary pipes.
    """

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path, *, pipe: bool = False
    ) -> None:
        self.log = log
        self._paused = False
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE if pipe else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe else out,
                stderr=out if pipe else subprocess.STDOUT,
                env=dict(env),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Also the number of its process group."""
        return self.process.pid

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Its stdin and stdout."""
        assert self.process.stdin is not None and self.process.stdout is not None
        return self.process.stdin, self.process.stdout

    def ended(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self.process.poll()

    def pause(self) -> None:
        """Stop its processes where they stand: a server that idles by polling takes nothing."""
        if not self._paused:
            self._signal(signal.SIGSTOP)
            self._paused = True

    def resume(self) -> None:
        """Let them go on."""
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    def end(self) -> None:
        """End them, by force after 15 seconds."""
        self.resume()
        family = _family(self.pid)
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(15)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for member in family:
            with contextlib.suppress(Exception):  # psutil's; most are gone by now
                member.kill()
        self.process.wait(15)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def tail(self, lines: int = 12) -> str:
        """The end of its log."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def cpu_seconds(self) -> float | None:
        """Processor seconds of its processes so far; None without psutil."""
        return _sum_of(self.pid, lambda member: sum(member.cpu_times()[:2]))

    def resident_bytes(self) -> int | None:
        """Resident memory of its processes, shared pages counted once each; None without psutil."""
        total = _sum_of(self.pid, lambda member: member.memory_info().rss)
        return None if total is None else int(total)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        # Children that left the group.
        for member in _family(self.pid)[1:]:
            with contextlib.suppress(Exception):
                if os.getpgid(member.pid) != self.pid:
                    member.send_signal(number)


class MemoryWatch:
    """Samples a child's resident memory while a round runs."""

    def __init__(self, child: Child, every_s: float = 0.5) -> None:
        self._child = child
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_bytes: int | None = None

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            now = self._child.resident_bytes()
            if now is None:
                return
            self.peak_bytes = max(self.peak_bytes or 0, now)
            if self._over.wait(self._every_s):
                return


def _family(pid: int) -> list[Any]:
    """The process and its descendants as psutil sees them; empty without psutil."""
    try:
        import psutil
    except ImportError:
        return []
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []


def _sum_of(pid: int, figure: Any) -> float | None:
    family = _family(pid)
    if not family:
        return None
    total = 0.0
    for member in family:
        with contextlib.suppress(Exception):  # it ended meanwhile
            total += figure(member)
    return total
