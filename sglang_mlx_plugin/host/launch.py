"""The hooks that make SGLang's launch an MLX launch, and the gate that every launch passes.

`HookRegistry` and `load_plugins` only log when a target is missing, a hook fails or a plugin
raises; left alone, that is a server without MLX. So nothing is taken on trust: the gate
(`enter_gate`) looks at what is really in place and stops the launch with one sentence.

The gate is entered from four sides, so that no single missing hook can hide itself:

* main process: our hook on `ServerArgs.resolve_once`, before anything is resolved;
* main process: the platform, when SGLang asks it for defaults (found through the other entry
  point, so it is there when `register` failed);
* main process: our hook on `Engine._launch_subprocesses`, before a child is spawned;
* scheduler process: our hook on `Scheduler.__init__`, before a model is loaded.

A scheduler that fails writes its sentence into a note that the main process prints last.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sglang_mlx_plugin import entrypoints

from . import releases
from .errors import LaunchError, debugging, install_excepthook, sentence_of, stop_launch

__all__ = ["HOOKS", "Hook", "enter_gate", "register_hooks", "verify_launch"]

logger = logging.getLogger(__name__)

_NOTE = "SGLANG_MLX_LAUNCH_NOTE"


@dataclass(frozen=True)
class Hook:
    """One hook of ours on SGLang.

    Attributes:
        target: Dotted name of the function or method.
        function: What is put there.
        kind: Name of the `HookType`.
        fails: What a user would meet if it were missing.
    """

    target: str
    function: Callable[..., Any]
    kind: Literal["BEFORE", "AFTER", "AROUND", "REPLACE"]
    fails: str


# -- the hooks ---------------------------------------------------------------------------


def _resolve_once(original: Callable[..., None], server_args: Any) -> None:
    """AROUND `ServerArgs.resolve_once`: refuse before anything is resolved or downloaded."""
    if not getattr(server_args, "_resolution_finished", False):
        enter_gate(server_args)
    original(server_args)


def _launch_subprocesses(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """AROUND `Engine._launch_subprocesses`: verify, then translate a child's failure."""
    verify_launch()
    before = set(multiprocessing.active_children())
    with _note() as note:
        try:
            return original(*args, **kwargs)
        except Exception as error:
            sentence = note.read_text() if note.exists() else ""
            if not sentence:
                raise
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
            install_excepthook()
            raise LaunchError(sentence) from (error if debugging() else None)


def _scheduler_init(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """AROUND `Scheduler.__init__`: verify, then tell the main process why it failed."""
    try:
        verify_launch()
        original(*args, **kwargs)
    except Exception as error:
        _end_child(error)


def _controller_init(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """AROUND `DataParallelController.__init__`: a replica's failure is not a second one."""
    try:
        original(*args, **kwargs)
    except Exception as error:
        note = os.environ.get(_NOTE)
        if note and os.path.exists(note) and not debugging():
            raise SystemExit(1) from None
        raise error


def _init_tp_model_worker(scheduler: Any) -> None:
    """REPLACE `Scheduler.init_tp_model_worker`: the worker that runs MLX."""
    from sglang_mlx_plugin.engine.device import lend_blas

    # Before `worker` is imported, because that imports mlx.core.
    kind = entrypoints.device_choice().kind
    report = lend_blas(kind)
    if report.late:
        logger.warning("MLX runs with its reference BLAS, 10 to 60 times slower: %s", report.reason)
    from .worker import MlxTpModelWorker

    scheduler.tp_worker = MlxTpModelWorker(**releases.worker_kwargs(scheduler))


def _get_device(original: Callable[..., str], device_id: int | None = None) -> str:
    """AROUND `get_device`: torch's side is the CPU, though torch may see MPS or CUDA."""
    return "cpu"


def _get_available_gpu_memory(
    device: str,
    gpu_id: int,
    distributed: bool = False,
    empty_cache: bool = True,
    cpu_group: Any = None,
) -> float:
    """REPLACE `get_available_gpu_memory`: GiB free on the MLX device.

    Upstream's answer for device "cpu" divides by what ``lscpu`` says of NUMA nodes, a command
    that a Mac does not have.
    """
    from sglang_mlx_plugin.engine.device import free_bytes

    free = free_bytes(entrypoints.device_choice().kind) / (1 << 30)
    if distributed:
        import torch

        tensor = torch.tensor(free, dtype=torch.float32)
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MIN, group=cpu_group)
        free = float(tensor.item())
    return free


def _bind_threads_if_cpu(*, device: str) -> None:
    """REPLACE `_bind_threads_if_cpu`: MLX's threads are MLX's business.

    Upstream asks ``lscpu`` and asserts that replicas do not outnumber NUMA nodes, which
    forbids ``--dp-size 2`` on a laptop.
    """


def _init_cpu_threads_env(*, local_omp_cpuid: Any, dist_init_method: str | None = None) -> None:
    """REPLACE `_init_cpu_threads_env`: upstream calls sgl_kernel, which is not there.

    It does so on every ARM64 host, so on every Mac, and on x86-64 with AMX.
    """


HOOKS: tuple[Hook, ...] = (
    Hook(
        "sglang.srt.server_args.ServerArgs.resolve_once",
        _resolve_once,
        "AROUND",
        "arguments that MLX cannot honour are ignored",
    ),
    Hook(
        "sglang.srt.utils.common.get_device",
        _get_device,
        "AROUND",
        "on a Mac torch's MPS device is chosen",
    ),
    Hook(
        "sglang.srt.utils.common.get_available_gpu_memory",
        _get_available_gpu_memory,
        "REPLACE",
        "on a Mac the scheduler dies for want of lscpu",
    ),
    Hook(
        "sglang.srt.distributed.bootstrap._bind_threads_if_cpu",
        _bind_threads_if_cpu,
        "REPLACE",
        "--dp-size 2 dies on a machine with one NUMA node",
    ),
    Hook(
        "sglang.srt.distributed.bootstrap._init_cpu_threads_env",
        _init_cpu_threads_env,
        "REPLACE",
        "on ARM64 the scheduler dies for want of sgl_kernel",
    ),
    Hook(
        "sglang.srt.entrypoints.engine.Engine._launch_subprocesses",
        _launch_subprocesses,
        "AROUND",
        "a scheduler's failure ends in a stack trace",
    ),
    Hook(
        "sglang.srt.managers.data_parallel_controller.DataParallelController.__init__",
        _controller_init,
        "AROUND",
        "a replica's failure ends in a stack trace",
    ),
    Hook(
        "sglang.srt.managers.scheduler.Scheduler.__init__",
        _scheduler_init,
        "AROUND",
        "a scheduler's failure ends in a stack trace",
    ),
    Hook(
        "sglang.srt.managers.scheduler.Scheduler.init_tp_model_worker",
        _init_tp_model_worker,
        "REPLACE",
        "the model is served by torch",
    ),
)


def register_hooks() -> None:
    """Register the hooks that this process needs with SGLang's `HookRegistry`.

    Applying a hook imports its target's module, and the scheduler's costs seconds. A spawned
    child has its own modules loaded by the time it loads plugins (its target function was
    unpickled before), so it gets the hooks of those only: the detokenizer gets none of the
    scheduler's.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in _needed_here():
        HookRegistry.register(hook.target, hook.function, HookType[hook.kind])


def _needed_here() -> Iterator[Hook]:
    child = multiprocessing.parent_process() is not None
    for hook in HOOKS:
        if not child or _module_of(hook.target) in sys.modules:
            yield hook


def _module_of(target: str) -> str:
    """The dotted name up to the first capital or private leaf: the module."""
    parts = target.split(".")[:-1]
    if parts[-1][:1].isupper():
        parts.pop()
    return ".".join(parts)


# -- the gate ----------------------------------------------------------------------------


def enter_gate(server_args: Any) -> None:
    """Let a launch go on only if MLX really serves it and can honour its arguments.

    Raises:
        LaunchError: with the one sentence that the user needs.
    """
    verify_launch()
    from . import arguments

    arguments.refuse_unsupported(server_args)


def verify_launch() -> None:
    """Check the platform, the release and the hooks of this process.

    Raises:
        LaunchError: if something is not as it must be.
    """
    _refuse_second_backend()
    problems = entrypoints.failures()
    if problems:
        stop_launch("; ".join(problems))
    _refuse_other_platform()
    releases.check_release()
    for hook in _needed_here():
        problem = hook_problem(hook)
        if problem is not None:
            stop_launch(
                f"{problem}, so {hook.fails}; this plugin was made for SGLang "
                f"{releases.window()}, and here is {releases.installed_version()}: "
                "run `sglang-mlx doctor`"
            )


def _refuse_second_backend() -> None:
    value = os.environ.get("SGLANG_USE_MLX", "").strip().lower()
    if value not in ("", "0", "false", "no", "n", "off"):
        stop_launch(
            "SGLANG_USE_MLX asks for SGLang's in-tree MLX backend, and this plugin is another "
            "one: unset it to serve with the plugin, or uninstall sglang-mlx-plugin"
        )


def _refuse_other_platform() -> None:
    from sglang.srt.platforms import current_platform

    from .platform import MlxPlatform

    if not isinstance(current_platform, MlxPlatform):
        stop_launch(
            f"SGLang chose the platform {current_platform!r} although the MLX plugin is active: "
            "set SGLANG_PLATFORM=mlx, or SGLANG_PLATFORM to the other one's name to leave MLX out"
        )


def hook_problem(hook: Hook) -> str | None:
    """Why `hook` is not in force in this process, as a clause, or None."""
    import pkgutil

    owner, _, name = hook.target.rpartition(".")
    try:
        found = getattr(pkgutil.resolve_name(owner), name)
    except (ImportError, AttributeError):
        return f"SGLang has no {hook.target}"
    layer: Any = getattr(found, "__func__", found)
    while layer is not None:
        held = [cell.cell_contents for cell in getattr(layer, "__closure__", None) or ()]
        if hook.function in held:
            return None
        if hook.kind == "REPLACE" and held and getattr(layer, "__wrapped__", None) not in held:
            # A replacement keeps nothing of what it replaces, ours included.
            other = next((item for item in held if callable(item)), layer)
            return f"another plugin replaced {hook.target} with {_name_of(other)}"
        layer = getattr(layer, "__wrapped__", None)
    return f"the hook on {hook.target} is not in place"


def _name_of(function: Any) -> str:
    module = getattr(function, "__module__", "?")
    return f"{module}.{getattr(function, '__qualname__', function)}"


# -- failing in one sentence -------------------------------------------------------------


@contextmanager
def _note() -> Iterator[Path]:
    """A file in which a child leaves its sentence; children inherit its name."""
    with tempfile.TemporaryDirectory(prefix="sglang-mlx-") as folder:
        note = Path(folder) / "sentence"
        os.environ[_NOTE] = str(note)
        try:
            yield note
        finally:
            os.environ.pop(_NOTE, None)


def _end_child(error: Exception) -> None:
    """End this process for `error`, in one sentence if it is one of ours.

    SGLang would log a stack trace and send SIGQUIT, at which the main process kills itself
    before it can say anything. Leaving by SystemExit closes the pipe that the main process
    waits on, which raises there, where our hook reads the note.

    Raises:
        SystemExit: if the error has a sentence and the main process waits for it.
        Exception: `error`, otherwise.
    """
    sentence = sentence_of(error)
    note = os.environ.get(_NOTE)
    if sentence is None or note is None:
        raise error
    Path(note).write_text(sentence)
    logger.error("%s", sentence, exc_info=error if debugging() else None)
    raise SystemExit(1) from None
