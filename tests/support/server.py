"""Launches a real SGLang server for a test module and talks to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

START_S = 240


class ServerError(RuntimeError):
    """The server did not come up; the message ends with its log."""


class Server:
    """A launched server.

    Attributes:
        base: ``http://127.0.0.1:PORT``.
        log: The file with its output.
        process: The launch process.
    """

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.base = f"http://127.0.0.1:{port}"
        self.log = log

    def get(self, path: str) -> Any:
        """GET a JSON answer."""
        with urllib.request.urlopen(self.base + path, timeout=60) as answer:
            return json.loads(answer.read())

    def post(self, path: str, body: dict[str, Any], timeout: float = 300) -> Any:
        """POST JSON and return the JSON answer."""
        status, answer = self.try_post(path, body, timeout)
        if status != 200:
            raise AssertionError(f"POST {path} answered {status}: {answer}")
        return answer

    def try_post(self, path: str, body: dict[str, Any], timeout: float = 300) -> tuple[int, Any]:
        """POST JSON; status and answer, whatever they are."""
        request = urllib.request.Request(
            self.base + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode(errors="replace")

    def generate(
        self, tokens: list[int] | None = None, *, text: str | None = None, **params: Any
    ) -> dict[str, Any]:
        """One request to ``/generate``; greedy unless `params` say otherwise."""
        top = {
            key: params.pop(key)
            for key in list(params)
            if key in ("return_logprob", "logprob_start_len", "top_logprobs_num", "stream")
        }
        params.setdefault("temperature", 0)
        body: dict[str, Any] = {"sampling_params": params, **top}
        if tokens is not None:
            body["input_ids"] = tokens
        else:
            body["text"] = text
        return self.post("/generate", body)

    def together(self, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Several `generate` calls at once, each a dict of its arguments."""
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(lambda call: self.generate(**call), calls))

    def flush(self) -> None:
        """Empty the radix cache."""
        request = urllib.request.Request(self.base + "/flush_cache", data=b"", method="POST")
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(request, timeout=30).read()
                return
            except urllib.error.HTTPError:
                # Refused while a request is still being released.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def state(self) -> dict[str, Any]:
        """The scheduler's own figures (``/get_server_info``'s internal state)."""
        return self.get("/get_server_info")["internal_states"][0]

    def tail(self, lines: int = 40) -> str:
        """The end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def command(model: Path | str, port: int, *args: str) -> list[str]:
    """The standard launch."""
    return [
        *(sys.executable, "-m", "sglang.launch_server"),
        *("--model-path", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *args,
    ]


@contextlib.contextmanager
def launched(
    model: Path | str, folder: Path, *args: str, env: dict[str, str] | None = None
) -> Iterator[Server]:
    """Launch a server, wait until it answers, and end it and its children afterwards.

    Args:
        model: Model folder.
        folder: Where the log goes.
        args: More arguments of the launch.
        env: Environment variables on top of this process's.

    Raises:
        ServerError: If it ends or does not answer in time.
    """
    port = free_port()
    log = folder / f"server-{port}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(model, port, *args),
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    server = Server(process, port, log)
    try:
        _wait(server)
        yield server
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a launch and everything it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(15)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(15)


def _wait(server: Server) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(server.base + "/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.3)
    raise ServerError(f"the server did not come up:\n{server.tail()}")
