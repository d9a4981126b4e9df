"""Asks MLX, torch and SGLang in a child process, stage by stage.

An import of theirs may raise, hang, or end the process (a library built for another processor
is killed by a signal). Each stage's answer is printed as soon as it is there, so what was
learned before a crash is kept, and the stage that crashed is known.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

__all__ = ["Answer", "ask", "main"]

PATIENCE_S = 180

_MARK = "@sglang-mlx-doctor "


@dataclass(frozen=True)
class Answer:
    """What a stage came to.

    Attributes:
        data: What it found; empty when it failed.
        error: Why it failed, or empty.
        skipped: It was not tried, because a stage that it needs had failed.
    """

    data: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    skipped: bool = False

    @property
    def ok(self) -> bool:
        """Whether the stage was tried and did not fail."""
        return not self.error and not self.skipped


def ask(name: str, patience_s: float = PATIENCE_S) -> dict[str, Answer]:
    """Run the stages called `name` in a child process; an answer for each of them.

    Args:
        name: ``mlx`` or ``sglang``.
        patience_s: Seconds before the child is ended.
    """
    # The very path of this process: neither more (the folder that it was started in) nor less.
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from sglang_mlx_plugin.doctor import probe; probe.main({name!r})"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=patience_s,
            check=False,
        )
        output, ending = done.stdout, _ending(done.returncode)
    except subprocess.TimeoutExpired as expired:
        output, ending = expired.stdout or b"", f"it did not end within {patience_s:.0f} s"
    except OSError as error:
        output, ending = b"", f"a child process cannot be started: {error}"
    answers: dict[str, Answer] = {}
    for line in output.decode(errors="replace").splitlines():
        if line.startswith(_MARK):
            found = json.loads(line.removeprefix(_MARK))
            stage = found.pop("stage")
            answers[stage] = Answer(**found)
    for stage in _STAGES[name]:
        if stage not in answers:
            # The first without an answer is the one that the child ended in.
            answers[stage] = Answer(error=ending) if ending else Answer(skipped=True)
            ending = ""
    return answers


def main(name: str) -> None:
    """Run the stages called `name` and print each one's answer; in the child process."""
    failed: set[str] = set()
    for stage, (work, needs) in _STAGES[name].items():
        if failed & set(needs):
            failed.add(stage)
            _say(stage, skipped=True)
            continue
        try:
            _say(stage, data=work())
        except BaseException as error:
            failed.add(stage)
            _say(stage, error=_words(error))


def _say(stage: str, **answer: Any) -> None:
    # On a line of its own, whatever a library has left unended.
    print(f"\n{_MARK}{json.dumps({'stage': stage, **answer})}", flush=True)


def _words(error: BaseException) -> str:
    # Ours are sentences already.
    own = type(error).__module__.startswith("sglang_mlx_plugin") or type(error) is ValueError
    return str(error) if own else f"{type(error).__name__}: {error}"


def _ending(status: int) -> str:
    if status < 0:
        import signal

        try:
            return f"the process was ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"the process was ended by signal {-status}"
    return f"the process ended with status {status}" if status else "the process ended early"


# -- MLX ---------------------------------------------------------------------------------


def _device() -> dict[str, Any]:
    from sglang_mlx_plugin import entrypoints

    choice = entrypoints.device_choice()
    return {"active": choice.active, "kind": choice.kind, "reason": choice.reason}


def _blas() -> dict[str, Any]:
    from sglang_mlx_plugin import entrypoints
    from sglang_mlx_plugin.engine.device import lend_blas

    # Before mlx.core is imported, as in the server.
    report = lend_blas(entrypoints.device_choice().kind)
    return {
        "lent": report.lent,
        "reason": report.reason,
        "library": str(report.library) if report.library else None,
    }


def _mlx() -> dict[str, Any]:
    import mlx.core as mx

    # Its stubs do not know of the version.
    return {"version": vars(mx)["__version__"], "file": mx.__file__}


def _memory() -> dict[str, Any]:
    from sglang_mlx_plugin import entrypoints
    from sglang_mlx_plugin.engine.device import memory_bytes, use_device

    kind = entrypoints.device_choice().kind
    use_device(kind)
    return {"working_set_bytes": memory_bytes(kind)}


def _speed() -> dict[str, Any]:
    from sglang_mlx_plugin.engine.device import measured_gflops

    return {"gflops": round(measured_gflops(), 1)}


# -- SGLang ------------------------------------------------------------------------------


def _torch() -> dict[str, Any]:
    import torch

    return {"version": str(torch.__version__), "cuda": torch.version.cuda}


def _torchvision() -> dict[str, Any]:
    from sglang_mlx_plugin.host import torchvision_cure

    torchvision_cure.install()
    import torchvision

    return {"version": str(torchvision.__version__), "cured": torchvision_cure.took_effect()}


def _sglang() -> dict[str, Any]:
    module = import_module("sglang")
    return {"file": module.__file__}


def _platform() -> dict[str, Any]:
    from sglang_mlx_plugin.host import trial

    return {**trial.chosen_platform(), **_device()}


def _launch() -> dict[str, Any]:
    from sglang_mlx_plugin import entrypoints
    from sglang_mlx_plugin.host import trial

    if entrypoints.device_choice().active:
        trial.verify()
    return {}


def _mlx_lm() -> dict[str, Any]:
    import mlx_lm

    return {"version": mlx_lm.__version__}


_Stages = Mapping[str, tuple[Callable[[], dict[str, Any]], tuple[str, ...]]]

_STAGES: Mapping[str, _Stages] = {
    "mlx": {
        "device": (_device, ()),
        "blas": (_blas, ("device",)),
        "mlx": (_mlx, ()),
        "memory": (_memory, ("device", "mlx")),
        "speed": (_speed, ("memory",)),
    },
    "sglang": {
        "torch": (_torch, ()),
        "torchvision": (_torchvision, ("torch",)),
        "sglang": (_sglang, ("torch",)),
        "platform": (_platform, ("sglang",)),
        "launch": (_launch, ("platform",)),
        # Last, and here: transformers, which it imports, is loaded by now.
        "mlx_lm": (_mlx_lm, ()),
    },
}
