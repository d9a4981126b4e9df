"""What differs between SGLang releases, and which of them are supported.

Everything in the room `host` that depends on SGLang's version is here.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from sglang_mlx_plugin._env import is_set

from .errors import stop_launch
from .hook import Hook
from .surface import routes

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler

__all__ = [
    "NEWEST",
    "OLDEST",
    "SUPPORTED",
    "argument_defaults",
    "check_release",
    "hooks_of_later_releases",
    "installed_version",
    "no_capabilities",
    "refuse",
    "window",
    "worker_kwargs",
]

logger = logging.getLogger(__name__)

# Each of them is launched by `make test-releases`.
SUPPORTED = ("0.5.21", "0.5.22", "0.5.23")
OLDEST, NEWEST = SUPPORTED[0], SUPPORTED[-1]

_SKIP = "SGLANG_MLX_SKIP_CONTRACTS"


def window() -> str:
    """The supported releases, in words."""
    return f"{OLDEST} to {NEWEST}"


def installed_version() -> str | None:
    """The installed SGLang's version, or None."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def check_release(installed: str | None = None, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse a SGLang that this plugin was not made for.

    A release newer than the window starts with a warning if the contracts hold for it;
    ``SGLANG_MLX_SKIP_CONTRACTS=1`` turns every refusal into a warning.

    Raises:
        LaunchError: outside the window, or a contract does not hold.
    """
    text = installed if installed is not None else installed_version()
    if text is None:
        refuse("SGLang is not installed as a distribution, so its release is unknown", environ)
        return
    try:
        release = Version(text)
    except InvalidVersion:
        refuse(f"SGLang's version {text!r} is not a release number", environ)
        return
    # A local or development build counts as the release that it is made from.
    base = Version(release.base_version)
    if base < Version(OLDEST):
        refuse(
            f"SGLang {text} is older than this plugin supports ({window()}): "
            f"pip install --no-deps sglang=={NEWEST}",
            environ,
        )
        return
    broken = _broken_contracts()
    if broken:
        first = "; ".join(broken[:3])
        more = f" (and {len(broken) - 3} more)" if len(broken) > 3 else ""
        refuse(
            f"SGLang {text} does not have what this plugin, made for {window()}, builds on: "
            f"{first}{more}; `sglang-mlx contracts` lists all",
            environ,
        )
        return
    if base > Version(NEWEST):
        logger.warning(
            "SGLang %s is newer than the releases that this MLX plugin was tried with (%s); "
            "its contracts hold, so the launch goes on.",
            text,
            window(),
        )


def hooks_of_later_releases() -> tuple[Hook, ...]:
    """Our hooks on functions that not every supported release has, if the installed one does."""
    if not _reaches("0.5.22"):
        # There the route itself, which FastAPI holds, streams: no hook reaches it, and a stream
        # that is refused says so in its first event.
        return ()
    return (
        Hook(
            "sglang.srt.entrypoints.http_server.serve_generate_request",
            routes.serve_generate_request,
            "AROUND",
            "a stream that is refused answers 200 first",
            only_if_loaded=True,
        ),
        Hook(
            "sglang.srt.entrypoints.http_server.generate_contract_error",
            routes.generate_contract_error,
            "AROUND",
            "a sampling parameter of the wrong type is refused without its name",
            only_if_loaded=True,
        ),
    )


def _reaches(release: str) -> bool:
    try:
        return Version(Version(installed_version() or "").base_version) >= Version(release)
    except InvalidVersion:
        return True


def no_capabilities() -> Any:
    """The value of `SRTPlatform.capabilities` that says no to everything.

    0.5.21 has no such attribute: there `SRTPlatform` has a method for each capability, and
    each says no by itself. Nothing may fail here whatever the release is, because SGLang
    hides why a platform could not be imported; an unsupported one is refused at the gate.
    """
    try:
        from sglang.srt.platforms.interface import PlatformCapabilities
    except ImportError:
        return None
    return PlatformCapabilities()


def worker_kwargs(scheduler: Scheduler) -> dict[str, Any]:
    """What upstream's `Scheduler.init_tp_model_worker` hands to a worker.

    Alike in 0.5.21 to 0.5.23: ranks come from the runtime context.
    """
    from sglang.srt.runtime_context import get_device

    return {
        "server_args": scheduler.server_args,
        "gpu_id": get_device().gpu_id,
        "nccl_port": scheduler.nccl_port,
    }


def argument_defaults(server_args: Any) -> dict[str, Any]:
    """Every field of `ServerArgs`, with SGLang's own default; None where there is none.

    `ServerArgs` is a msgspec Struct in 0.5.21 to 0.5.23, and was a dataclass before.
    """
    kind = type(server_args)
    if dataclasses.is_dataclass(kind):
        return {
            item.name: _default(item.default, item.default_factory, dataclasses.MISSING)
            for item in dataclasses.fields(kind)
        }
    import msgspec

    return {
        item.name: _default(item.default, item.default_factory, msgspec.NODEFAULT)
        for item in msgspec.structs.fields(kind)
    }


def _default(value: Any, factory: Any, missing: Any) -> Any:
    if value is not missing:
        return value
    return None if factory is missing else factory()


@functools.cache
def _broken_contracts() -> tuple[str, ...]:
    """Sentences of the contracts that the installed release breaks; asked once a process."""
    from sglang_mlx_plugin.contracts.live import check_installed
    from sglang_mlx_plugin.contracts.source import SourceError

    try:
        report = check_installed()
    except SourceError as error:
        return (str(error),)
    return () if report.ok else tuple(problem.sentence for problem in report.problems)


def refuse(
    sentence: str, environ: Mapping[str, str] = os.environ, *, essential: bool = False
) -> None:
    """Stop the launch, or warn where the user said to go on and something is left to go on.

    Raises:
        LaunchError: unless ``SGLANG_MLX_SKIP_CONTRACTS=1`` is set and it is not `essential`.
    """
    if essential:
        stop_launch(sentence)
    if is_set(_SKIP, environ):
        logger.warning("%s; going on because %s=1.", sentence, _SKIP)
        return
    stop_launch(f"{sentence}; {_SKIP}=1 turns this into a warning.")
