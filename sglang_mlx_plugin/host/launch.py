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
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang_mlx_plugin import entrypoints
from sglang_mlx_plugin.hooks import get_hooks, get_manager

from . import arguments, control, hybrid, releases
from .errors import one_sentence, stop_launch
from .failure_note import end_child, waiting_for_children
from .hook import Hook
from .model_check import check_model_folder, find_model
from .surface import routes

__all__ = [
    "HOOKS",
    "enter_gate",
    "platform_defaults",
    "register_hooks",
    "verify_launch",
]

logger = logging.getLogger(__name__)

# -- the hooks ---------------------------------------------------------------------------


def _resolve_once(original: Callable[..., None], server_args: Any) -> None:
    """AROUND `ServerArgs.resolve_once`: refuse before anything is resolved."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    if not getattr(server_args, "_resolution_finished", False):
        enter_gate(server_args)
        register_hooks(everything=True)
        HookRegistry.apply_hooks()
    original(server_args)


def _launch_subprocesses(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """AROUND `Engine._launch_subprocesses`: verify, and translate a child's failure."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    # By now `launch_server` has loaded the HTTP server; an embedded `Engine` never does.
    register_hooks()
    HookRegistry.apply_hooks()
    verify_launch()
    with waiting_for_children():
        return original(*args, **kwargs)


def _scheduler_init(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """AROUND `Scheduler.__init__`: verify, and tell the main process why it failed."""
    try:
        verify_launch()
        # torch keeps books here, tensors of a few numbers, and a second team of OpenMP threads
        # would stand in the way of MLX's products (`torch_cpu`).
        import torch

        torch.set_num_threads(1)
        original(*args, **kwargs)
    except Exception as error:
        end_child(error)


def _get_resolved_model_impl(model_config: Any) -> Any:
    """REPLACE `get_resolved_model_impl`: whose torch code would run the model; none does.

    Upstream imports all its models to find out, and fails for one that it does not know.
    """
    from sglang.srt.configs.model_config import ModelImpl

    return ModelImpl.SGLANG


def _init_tp_model_worker(scheduler: Any) -> None:
    """REPLACE `Scheduler.init_tp_model_worker`: the worker that runs MLX."""
    from sglang_mlx_plugin.engine.device import keep_freed_memory, lend_blas

    # Before `worker` is imported, because that imports mlx.core.
    kind = entrypoints.device_choice().kind
    keep_freed_memory(kind)
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
        essential=True,
    ),
    Hook(
        "sglang.srt.arg_groups.model_hook.handle_mamba_radix_cache",
        hybrid.handle_mamba_radix_cache,
        "REPLACE",
        "hybrid models lose the overlapped scheduler, or their launch is refused",
    ),
    Hook(
        "sglang.srt.mem_cache.kv_cache_builder.uses_ssm_state",
        hybrid.uses_ssm_state,
        "AROUND",
        "hybrid models that SGLang does not know reuse prefixes without their state",
        essential=True,
    ),
    Hook(
        "sglang.srt.mem_cache.kv_cache_builder.get_resolved_model_impl",
        _get_resolved_model_impl,
        "REPLACE",
        "models that SGLang has no torch code for end in a stack trace",
        essential=True,
    ),
    Hook(
        "sglang.srt.managers.scheduler.get_resolved_model_impl",
        _get_resolved_model_impl,
        "REPLACE",
        "models that SGLang has no torch code for end in a stack trace",
        essential=True,
    ),
    Hook(
        "sglang.srt.mem_cache.registry.create_unified_radix_cache",
        hybrid.create_unified_radix_cache,
        "AROUND",
        "hybrid models reuse prefixes without their state",
        essential=True,
    ),
    Hook(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request",
        routes.generate_request,
        "AROUND",
        "fields of a request that MLX cannot honour are ignored",
    ),
    Hook(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request",
        routes.validate_one_request,
        "AROUND",
        "token ids outside the vocabulary reach the model",
    ),
    Hook(
        "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request",
        routes.handle_request,
        "AROUND",
        'text for true or false ("logprobs": "yes") is taken for true',
        only_if_loaded=True,
    ),
    Hook(
        "sglang.srt.entrypoints.openai.serving_responses.OpenAIServingResponses.create_responses",
        routes.create_responses,
        "AROUND",
        "unknown fields of /v1/responses are dropped without a word",
        only_if_loaded=True,
        loaded_with="sglang.srt.entrypoints.http_server",
    ),
    Hook(
        "sglang.srt.managers.scheduler.Scheduler.init_request_dispatcher",
        control.init_request_dispatcher,
        "AROUND",
        "a request about weights ends the server",
    ),
    Hook(
        "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin.get_weights_by_name",
        control.get_weights_by_name,
        "AROUND",
        "weights are asked for and nothing is said",
    ),
    Hook(
        "sglang.srt.managers.tokenizer_control_mixin."
        "TokenizerControlMixin.release_memory_occupation",
        control.release_memory_occupation,
        "AROUND",
        "memory is said to be released and is not",
    ),
    Hook(
        "sglang.srt.managers.tokenizer_control_mixin."
        "TokenizerControlMixin.resume_memory_occupation",
        control.resume_memory_occupation,
        "AROUND",
        "memory is said to be taken again and is not",
    ),
    *releases.hooks_of_later_releases(),
)


# Modules that every launch has loaded by the time SGLang loads plugins, or soon after. The
# scheduler's and the engine's cost seconds, which a launch that is refused need not spend.
_EARLY = ("sglang.srt.server_args", "sglang.srt.utils.common")

_registered: list[Hook] = []


def register_hooks(*, everything: bool = False) -> None:
    """Register the hooks that this process needs with SGLang's `HookRegistry`.

    Applying a hook imports its target's module. So a hook is registered when its module is
    loaded already, which in a spawned child is so for what that child will run (its target
    function was unpickled before), or when the launch has passed the gate: a refused launch
    is quick, and the detokenizer never imports the scheduler.

    Args:
        everything: Also those whose module is not loaded yet, as the main process needs when
            the gate is passed.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in HOOKS:
        wanted = hook.loaded or (not hook.only_if_loaded and (everything or hook.module in _EARLY))
        if wanted and hook not in _registered:
            _registered.append(hook)
            HookRegistry.register(hook.target, hook.function, HookType[hook.kind], source=_source())


def _source() -> Any:
    """Who registers, for SGLang's log; it knows by itself only inside `load_plugins`."""
    from sglang.srt.plugins.hook_registry import HookSource

    return HookSource(plugin_name="mlx", dist_name="sglang-mlx-plugin")


# -- the gate ----------------------------------------------------------------------------


def enter_gate(server_args: Any) -> None:
    """Let a launch go on only if MLX really serves it and can honour its arguments.

    Args:
        server_args: The arguments as the user gave them. A Hub id in ``model_path`` becomes
            the folder that it was fetched to; the name that clients use stays the id.

    Raises:
        LaunchError: with the one sentence that the user needs.
    """
    verify_launch()
    with one_sentence():
        arguments.refuse_unsupported(server_args)
        defaults = get_hooks().server_args_defaults(server_args)
        # Kept on the record, which takes names that begin with an underscore, until SGLang
        # asks the platform for its defaults: that is where they have to be set.
        server_args._sglang_mlx_defaults = arguments.left_at_default(server_args, defaults)
        _prepare_model(server_args)
        arguments.warn_irrelevant(server_args)


def platform_defaults(server_args: Any) -> dict[str, object]:
    """The defaults to set, when SGLang asks the platform for them.

    Raises:
        LaunchError: if the launch got here without passing the gate.
    """
    verify_launch()
    found: dict[str, object] | None = getattr(server_args, "_sglang_mlx_defaults", None)
    if found is None:
        only = os.environ.get("SGLANG_PLUGINS")
        stop_launch(
            f"SGLANG_PLUGINS={only} leaves out the plugin mlx, which the platform mlx needs: "
            f"set SGLANG_PLUGINS={only},mlx or unset it"
            if only
            else "SGLang resolved its arguments without the MLX plugin's check of them: run "
            "`sglang-mlx doctor`"
        )
    return found


def _prepare_model(server_args: Any) -> None:
    given = str(server_args.model_path)
    if given.lower() in ("none", "dummy") or _truthy("SGLANG_USE_MODELSCOPE"):
        return
    folder = find_model(given, revision=server_args.revision, download_dir=server_args.download_dir)
    if not Path(given).expanduser().exists():
        if server_args.served_model_name is None:
            server_args.served_model_name = given
        server_args.model_path = str(folder)
    tokenizer: Path | None = Path(server_args.tokenizer_path or folder)
    check_model_folder(
        folder,
        tokenizer=None if server_args.skip_tokenizer_init else tokenizer,
        trust_remote_code=server_args.trust_remote_code,
        builtin_loader=get_manager().winner("sglang_mlx_load_model").plugin.builtin,
    )


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
    for hook in _registered:
        problem = hook.problem()
        if problem is not None:
            releases.refuse(
                f"{problem}, so {hook.fails}; this plugin was made for SGLang "
                f"{releases.window()}, and here is {releases.installed_version()}: "
                "run `sglang-mlx doctor`",
                essential=hook.essential,
            )


def _refuse_second_backend() -> None:
    if _truthy("SGLANG_USE_MLX"):
        stop_launch(
            "SGLANG_USE_MLX asks for SGLang's in-tree MLX backend, and this plugin is another "
            "one: unset it to serve with the plugin, or uninstall sglang-mlx-plugin"
        )


def _truthy(name: str) -> bool:
    value = os.environ.get(name, "").strip().lower()
    return value not in ("", "0", "false", "no", "n", "off")


def _refuse_other_platform() -> None:
    from sglang.srt.platforms import current_platform

    from .platform import MlxPlatform

    if not isinstance(current_platform, MlxPlatform):
        stop_launch(
            f"SGLang chose the platform {current_platform!r} although the MLX plugin is active: "
            "set SGLANG_PLATFORM=mlx, or SGLANG_PLATFORM to the other one's name to leave MLX out"
        )
