"""What the doctor looks at: one function a line or a few, in the order of the screen.

A check reads files and metadata, or an answer of the child process (`probe`); it never imports
MLX, torch or SGLang. One that fails itself is a finding too, so the screen is always whole.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version

from . import probe
from .probe import Answer
from .report import Finding, State
from .settings import default_model, environment, second_backend

__all__ = ["Examined", "examine"]

_GROUPS = ("sglang.srt.platforms", "sglang.srt.plugins")
_HOST = "pip install 'sglang-mlx-plugin[host]'"


@dataclass(frozen=True)
class Examined:
    """What the checks look at.

    Attributes:
        environ: The environment variables.
        mlx: Answers of the child process that imported MLX.
        sglang: Answers of the child process that imported torch and SGLang.
    """

    environ: Mapping[str, str]
    mlx: Mapping[str, Answer]
    sglang: Mapping[str, Answer]


Check = Callable[[Examined], Iterator[Finding]]


def examine(environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Every finding, in the order of the screen.

    Args:
        environ: The environment variables; what the child processes see is the process's own.
    """
    # One after the other: the first one measures a speed.
    seen = Examined(environ, probe.ask("mlx"), probe.ask("sglang"))
    findings: list[Finding] = []
    for name, check in CHECKS:
        try:
            findings += check(seen)
        except Exception as error:
            findings.append(
                Finding(
                    name,
                    "failure",
                    f"could not be looked at: {type(error).__name__}: {error}",
                    "reinstall sglang-mlx-plugin; if that does not help, report this line",
                )
            )
    return findings


# -- this machine ------------------------------------------------------------------------


def _python(seen: Examined) -> Iterator[Finding]:
    good = (3, 11) <= sys.version_info[:2] <= (3, 13)
    yield Finding(
        "Python",
        "ok" if good else "failure",
        f"{platform.python_version()}, {sys.executable}",
        "" if good else "use Python 3.11, 3.12 or 3.13",
        {"version": platform.python_version(), "executable": sys.executable},
    )


def _machine(seen: Examined) -> Iterator[Finding]:
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    good = apple or sys.platform == "linux"
    yield Finding(
        "platform",
        "ok" if good else "failure",
        platform.platform(),
        "" if good else "MLX runs on Macs with Apple silicon and on Linux",
        {"system": sys.platform, "machine": platform.machine()},
    )


# -- SGLang and torch --------------------------------------------------------------------


def _sglang(seen: Examined) -> Iterator[Finding]:
    from packaging.version import Version

    from sglang_mlx_plugin._env import is_set
    from sglang_mlx_plugin.contracts.source import SourceError, installed_tree
    from sglang_mlx_plugin.host import releases

    install = f"pip install --no-deps sglang=={releases.NEWEST}, and {_HOST}"
    installed = releases.installed_version()
    try:
        place = str(installed_tree().root / "sglang")
    except SourceError:
        yield Finding("SGLang", "failure", "not installed", install)
        return
    facts = {"version": installed, "place": place, "supported": list(releases.SUPPORTED)}
    answer = seen.sglang["sglang"]
    what = f"{installed or 'of unknown release'} in {place}"
    if answer.error:
        yield Finding(
            "SGLang",
            "failure",
            f"{what} cannot be imported: {answer.error}",
            f"repair what the error names, or reinstall: {install}",
            facts,
        )
        return
    state: State = "ok"
    advice = ""
    base = Version(Version(installed).base_version) if installed else None
    if base is None or base < Version(releases.OLDEST):
        state = "warning" if is_set("SGLANG_MLX_SKIP_CONTRACTS", seen.environ) else "failure"
        what += f", supported are {releases.window()}"
        advice = install
    elif base > Version(releases.NEWEST):
        state = "warning"
        what += f", newer than what was tried ({releases.window()})"
        advice = "it serves while its contracts hold; a newer sglang-mlx-plugin may know it"
    else:
        what += f", supported ({releases.window()})"
    if answer.skipped:
        what += "; not imported, since torch cannot be"
    yield Finding("SGLang", state, what, advice, facts)


def _torch(seen: Examined) -> Iterator[Finding]:
    answer = seen.sglang["torch"]
    yield _library("torch", "torch", answer, _HOST)
    if not answer.ok:
        return
    answer = seen.sglang["torchvision"]
    if answer.ok and answer.data["cured"]:
        yield Finding(
            "torchvision",
            "ok",
            f"{answer.data['version']}; its operators do not load beside this torch, which is "
            "cured at import (serving text needs none of them)",
            facts=answer.data,
        )
        return
    yield _library("torchvision", "torchvision", answer, _HOST)


def _library(name: str, distribution: str, answer: Answer, advice: str, more: str = "") -> Finding:
    """A library that was imported, or was not."""
    if answer.ok:
        return Finding(name, "ok", f"{answer.data['version']}{more}", facts=answer.data)
    try:
        installed = version(distribution)
    except PackageNotFoundError:
        if answer.error.startswith("ModuleNotFoundError"):
            return Finding(name, "failure", "not installed", advice)
        installed = "of unknown version"
    return Finding(
        name,
        "failure",
        f"{installed} cannot be imported: {answer.error or 'not tried'}",
        f"repair what the error names, or reinstall: {advice}",
        {"version": installed},
    )


# -- MLX ---------------------------------------------------------------------------------


def _mlx(seen: Examined) -> Iterator[Finding]:
    advice = "pip install mlx"
    if sys.platform == "linux":
        advice = "pip install 'mlx[cpu]' (or 'mlx[cuda12]', 'mlx[cuda13]')"
    answer = seen.mlx["mlx"]
    yield _library("MLX", "mlx", answer, advice, f" in {answer.data.get('file')}")
    yield from _device(seen)
    if answer.ok and seen.mlx["memory"].ok:
        yield _blas(seen)
    yield _library("mlx-lm", "mlx-lm", seen.sglang["mlx_lm"], "pip install mlx-lm")


def _device(seen: Examined) -> Iterator[Finding]:
    choice, memory = seen.mlx["device"], seen.mlx["memory"]
    if not choice.ok:
        yield Finding("device", "failure", choice.error, "choose another device, or repair this")
        return
    if memory.error:
        yield Finding("device", "failure", memory.error, facts=choice.data)
        return
    if not memory.ok:
        return
    size = int(memory.data["working_set_bytes"])
    yield Finding(
        "device",
        "ok",
        f"{choice.data['kind']} ({choice.data['reason']}), working-set limit "
        f"{size / (1 << 30):.1f} GiB",
        facts={**choice.data, **memory.data},
    )


def _blas(seen: Examined) -> Finding:
    lent, speed = seen.mlx["blas"], seen.mlx["speed"]
    kind = seen.mlx["device"].data["kind"]
    facts = {**lent.data, **speed.data}
    if not speed.ok or not lent.ok:
        return Finding("BLAS", "failure", speed.error or lent.error, facts=facts)
    measured = f"{speed.data['gflops']:.0f} GFLOP/s in float32"
    if lent.data["lent"]:
        return Finding("BLAS", "ok", f"torch's is lent to MLX, {measured}", facts=facts)
    if kind == "cpu" and sys.platform == "linux":
        return Finding(
            "BLAS",
            "warning",
            f"MLX's reference BLAS, {measured}, 10 to 60 times slower than need be: "
            f"{lent.data['reason']}",
            f"install torch, whose BLAS can be lent to MLX: {_HOST}",
            facts,
        )
    return Finding("BLAS", "ok", f"MLX's own, {measured}", facts=facts)


# -- how SGLang finds us -----------------------------------------------------------------


def _entry_points(seen: Examined) -> Iterator[Finding]:
    found = {group: list(entry_points(group=group)) for group in _GROUPS}
    facts = {
        group: [
            {"name": each.name, "value": each.value, "distribution": _owner(each)}
            for each in points
        ]
        for group, points in found.items()
    }
    missing = [group for group, points in found.items() if not any(map(_is_ours, points))]
    others = [
        f"{each.name} of {_owner(each)} ({group.rpartition('.')[2]})"
        for group, points in found.items()
        for each in points
        if not _is_ours(each)
    ]
    more = f"; others: {', '.join(others)}" if others else ""
    if missing:
        yield Finding(
            "entry points",
            "failure",
            f"sglang-mlx-plugin has none in {' and '.join(missing)}{more}",
            "install the distribution (pip install sglang-mlx-plugin, or -e . in a clone); a "
            "folder on PYTHONPATH is not enough",
            facts,
        )
        return
    chosen = seen.environ.get("SGLANG_PLATFORM", "")
    allowed = [name.strip() for name in seen.environ.get("SGLANG_PLUGINS", "").split(",")]
    if chosen and chosen != "mlx":
        yield Finding(
            "entry points",
            "warning",
            f"SGLANG_PLATFORM={chosen} leaves MLX out{more}",
            "unset it, or set SGLANG_PLATFORM=mlx",
            facts,
        )
    elif any(allowed) and "mlx" not in allowed:
        only = ",".join(filter(None, allowed))
        yield Finding(
            "entry points",
            "failure",
            f"SGLANG_PLUGINS={only} leaves out the plugin mlx{more}",
            f"set SGLANG_PLUGINS={only},mlx or unset it",
            facts,
        )
    else:
        yield Finding("entry points", "ok", f"mlx in both of SGLang's groups{more}", facts=facts)


def _is_ours(point: EntryPoint) -> bool:
    return point.name == "mlx" and point.value.startswith("sglang_mlx_plugin.")


def _owner(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "unknown"


def _launch(seen: Examined) -> Iterator[Finding]:
    chosen, tried = seen.sglang["platform"], seen.sglang["launch"]
    if chosen.skipped:
        yield Finding("launch", "failure", "not tried, since SGLang cannot be imported")
        return
    if not chosen.ok:
        yield Finding("launch", "failure", f"SGLang finds no platform: {chosen.error}")
        return
    if not chosen.data["active"]:
        named = seen.environ.get("SGLANG_PLATFORM", "")
        wanted = named in ("", "mlx") and not seen.mlx["mlx"].ok
        yield Finding(
            "launch",
            "failure" if wanted else "warning",
            f"SGLang would serve without MLX, on {chosen.data['platform']}: "
            f"{chosen.data['reason']}",
            "" if wanted else "set SGLANG_PLATFORM=mlx to serve on MLX",
            chosen.data,
        )
    elif not tried.ok:
        yield Finding("launch", "failure", f"would be stopped: {tried.error}", facts=chosen.data)
    elif not chosen.data["ours"]:
        yield Finding(
            "launch",
            "warning",
            f"SGLang would serve on {chosen.data['platform']}",
            "set SGLANG_PLATFORM=mlx to serve on MLX",
            chosen.data,
        )
    else:
        yield Finding(
            "launch",
            "ok",
            f"SGLang chooses {chosen.data['platform']}, and our hooks on it are in place",
            facts=chosen.data,
        )


# -- hooks and contracts -----------------------------------------------------------------


def _hooks(seen: Examined) -> Iterator[Finding]:
    from sglang_mlx_plugin.hooks.errors import HookError
    from sglang_mlx_plugin.hooks.listing import as_data
    from sglang_mlx_plugin.hooks.manager import get_manager

    try:
        data = as_data(get_manager(), seen.environ)
    except HookError as error:
        yield Finding("hooks", "failure", str(error))
        return
    won = [
        f"{hook['name']} by {hook['winner']['distribution']} {hook['winner']['version']}"
        for hook in data["hooks"]
        if not hook["winner"]["builtin"]
    ]
    text = f"{len(data['hooks'])}, "
    text += f"of which vendors answer {', '.join(won)}" if won else "all answered by the built-ins"
    if data["disabled"]:
        text += f"; disabled: {', '.join(each['plugin'] for each in data['disabled'])}"
    yield Finding("hooks", "ok", text, facts=data)


def _contracts(seen: Examined) -> Iterator[Finding]:
    from sglang_mlx_plugin._env import is_set
    from sglang_mlx_plugin.contracts.live import check_installed
    from sglang_mlx_plugin.contracts.source import SourceError

    try:
        report = check_installed()
    except SourceError:
        yield Finding("contracts", "warning", "not checked, since SGLang is not installed")
        return
    facts = {"release": report.release, "broken": [each.sentence for each in report.problems]}
    if report.ok:
        number = sum(report.checked.values())
        yield Finding(
            "contracts", "ok", f"all hold for {report.release} ({number} checked)", facts=facts
        )
        return
    skip = is_set("SGLANG_MLX_SKIP_CONTRACTS", seen.environ)
    more = f" (and {len(report.problems) - 1} more)" if len(report.problems) > 1 else ""
    yield Finding(
        "contracts",
        "warning" if skip else "failure",
        f"{len(report.problems)} broken by {report.release}: {report.problems[0].sentence}{more}",
        "`sglang-mlx contracts` lists all; install a supported release",
        facts,
    )


# -- the user's settings -----------------------------------------------------------------


def _settings(seen: Examined) -> Iterator[Finding]:
    yield from environment(seen.environ)
    yield second_backend(seen.environ)


def _model(seen: Examined) -> Iterator[Finding]:
    yield default_model(seen.environ)


CHECKS: tuple[tuple[str, Check], ...] = (
    ("Python", _python),
    ("platform", _machine),
    ("SGLang", _sglang),
    ("torch", _torch),
    ("MLX", _mlx),
    ("entry points", _entry_points),
    ("launch", _launch),
    ("hooks", _hooks),
    ("contracts", _contracts),
    ("environment", _settings),
    ("default model", _model),
)
