"""Who takes part, how each is started, and why one cannot."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import intree
from .types import BenchError

__all__ = [
    "CONTESTANTS",
    "DEFAULT_CONTESTANTS",
    "OURS",
    "Contestant",
    "Launch",
    "Setting",
    "as_data",
    "choose",
    "environment",
]

OURS = "ours"
_LENT = Path(__file__).with_name("standalone") / "lent.py"
_EVERYTHING = frozenset({"lanes", "chat", "sampling", "grammar"})


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all contestants of a run share.

    Attributes:
        folder: The model.
        work: A temporary folder of the harness.
        kind: MLX's device here.
        library: The BLAS that is lent to everyone, or None (a Mac, CUDA, no torch).
        vllm_mlx_python: The interpreter of an environment with vllm-mlx, or None.
        ours_args: More arguments of our launch.
    """

    folder: Path
    work: Path
    kind: str
    library: Path | None
    vllm_mlx_python: Path | None = None
    ours_args: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a contestant is started.

    Attributes:
        argv: The command; ``{port}`` stands for the port.
        env: Variables on top of the harness's environment.
        body: Fields of every request's body.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A system under test.

    Attributes:
        name: On the command line and in the record.
        what: One clause for the table.
        launch: How it is started.
        why_not: Why it cannot run here, one clause, or None.
        features: What it can do; a workload that needs more passes it over.
        pipe: It is driven through stdin and stdout (`bare`), not HTTP.
    """

    name: str
    what: str
    launch: Callable[[Setting], Launch]
    why_not: Callable[[Setting], str | None]
    features: frozenset[str] = frozenset()
    pipe: bool = False


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """A contestant's whole environment: the harness's, without what would favour anyone."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("SGLANG_USE_MLX", "SGLANG_PLUGINS", "LD_PRELOAD")
    }
    # Nothing is fetched while a round runs.
    return {**env, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", **extra}


def _missing(*modules: str) -> Callable[[Setting], str | None]:
    def why_not(setting: Setting) -> str | None:
        for module in modules:
            if find_spec(module) is None:
                return f"{module} is not installed here"
        return None

    return why_not


def _lent(setting: Setting, *argv: str, library: bool = True, python: str = "") -> tuple[str, ...]:
    lent = str(setting.library) if library and setting.library else "-"
    return (python or sys.executable, str(_LENT), lent, *argv)


def _sglang(setting: Setting, *args: str) -> tuple[str, ...]:
    return (
        *(sys.executable, "-m", "sglang.launch_server", "--model-path", str(setting.folder)),
        *("--host", "127.0.0.1", "--port", "{port}"),
        *args,
    )


def _ours(*args: str) -> Callable[[Setting], Launch]:
    def launch(setting: Setting) -> Launch:
        # We lend ourselves the BLAS; nothing is set that a user would not set.
        return Launch(
            argv=_sglang(setting, *args, *setting.ours_args),
            body={"model": "default", "ignore_eos": True},
        )

    return launch


def _ours_with_empty_plugin(setting: Setting) -> Launch:
    site = setting.work / "empty-plugin"
    info = site / "sglang_mlx_empty-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (site / "sglang_mlx_empty.py").write_text('"""A vendor of nothing."""\n')
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-mlx-empty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sglang_mlx_plugin]\nempty = sglang_mlx_empty\n")
    plain = _ours()(setting)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    return Launch(argv=plain.argv, env={"PYTHONPATH": path}, body=plain.body)


def _mlx_lm(*, library: bool) -> Callable[[Setting], Launch]:
    def launch(setting: Setting) -> Launch:
        argv = _lent(
            setting,
            *("mlx_lm", "server", "--model", str(setting.folder)),
            *("--host", "127.0.0.1", "--port", "{port}"),
            library=library,
        )
        return Launch(argv=argv, body={"model": "default_model"})

    return launch


def _mlx_lm_as_installed_why_not(setting: Setting) -> str | None:
    if setting.library is None:
        return "no BLAS is lent here, so mlx_lm.server is as pip installs it"
    return _missing("mlx_lm")(setting)


def _intree(setting: Setting) -> Launch:
    site = intree.write_site(setting.work / "intree-site", setting.library)
    args: tuple[str, ...] = ()
    if setting.kind != "metal":
        # Its own measure of memory is Metal's; elsewhere it finds room for very few tokens.
        args = ("--device", "cpu", "--max-total-tokens", "65536")
    return Launch(
        argv=_sglang(setting, *args),
        env=intree.environment(site),
        body={"model": "default", "ignore_eos": True},
    )


def _intree_why_not(setting: Setting) -> str | None:
    spec = find_spec("sglang")
    if spec is None:
        return "sglang is not installed here"
    # By its files: to look for it as a module would import half of SGLang.
    for root in spec.submodule_search_locations or ():
        if Path(root, "srt", "hardware_backend", "mlx").is_dir():
            return None
    return "this SGLang has no in-tree MLX backend"


def _bare(*args: str) -> Callable[[Setting], Launch]:
    def launch(setting: Setting) -> Launch:
        argv = _lent(setting, "sglang_mlx_plugin.bench.bare", str(setting.folder), *args)
        return Launch(argv=argv)

    return launch


def _layout_why_not(setting: Setting) -> str | None:
    if setting.kind != "cpu":
        return f"the weights' layout is a matter of the CPU's BLAS; this is {setting.kind}"
    return _missing("mlx_lm")(setting)


def _vllm_mlx(setting: Setting) -> Launch:
    argv = _lent(
        setting,
        *("vllm_mlx.cli", "serve", str(setting.folder), "--continuous-batching"),
        *("--host", "127.0.0.1", "--port", "{port}"),
        python=str(setting.vllm_mlx_python or sys.executable),
    )
    return Launch(argv=argv, body={"model": str(setting.folder)})


def _vllm_mlx_why_not(setting: Setting) -> str | None:
    if setting.vllm_mlx_python is not None or find_spec("vllm_mlx") is not None:
        return None
    return (
        "it is not installed, and vllm-mlx 0.6.0 does not fit beside mlx-lm 0.32 or later; "
        "--vllm-mlx-python names the interpreter of an environment that has it"
    )


CONTESTANTS = (
    Contestant(
        name=OURS,
        what="python -m sglang.launch_server with this package",
        launch=_ours(),
        why_not=_missing("sglang"),
        features=_EVERYTHING,
    ),
    Contestant(
        name="mlx_lm.server",
        what="mlx_lm server, the same BLAS lent",
        launch=_mlx_lm(library=True),
        why_not=_missing("mlx_lm"),
        features=frozenset({"lanes", "chat", "sampling"}),
    ),
    Contestant(
        name="mlx_lm.server-as-installed",
        what="mlx_lm server with the BLAS that pip installs",
        launch=_mlx_lm(library=False),
        why_not=_mlx_lm_as_installed_why_not,
        features=frozenset({"lanes", "chat", "sampling"}),
    ),
    Contestant(
        name="in-tree",
        what="SGLang's own MLX backend, its gate lifted, the same BLAS lent",
        launch=_intree,
        why_not=_intree_why_not,
        # It samples greedily unless told otherwise, and has no grammars.
        features=frozenset({"lanes", "chat"}),
    ),
    Contestant(
        name="vllm-mlx",
        what="vllm-mlx, continuous batching, the same BLAS lent",
        launch=_vllm_mlx,
        why_not=_vllm_mlx_why_not,
        features=frozenset({"lanes", "chat", "sampling"}),
    ),
    Contestant(
        name="bare",
        what="mlx-lm's model and batch generator, no server",
        launch=_bare(),
        why_not=_missing("mlx_lm"),
        pipe=True,
    ),
    Contestant(
        name="bare-layout",
        what="the bare loop with weights laid out for BLAS",
        launch=_bare("--layout"),
        why_not=_layout_why_not,
        pipe=True,
    ),
    Contestant(
        name="ours-empty-plugin",
        what="ours with a vendor's distribution that overrides nothing",
        launch=_ours_with_empty_plugin,
        why_not=_missing("sglang"),
        features=_EVERYTHING,
    ),
    Contestant(
        name="ours-no-reuse",
        what="ours with --disable-radix-cache",
        launch=_ours("--disable-radix-cache"),
        why_not=_missing("sglang"),
        features=_EVERYTHING,
    ),
)

DEFAULT_CONTESTANTS = (OURS, "mlx_lm.server")


def choose(names: str) -> tuple[Contestant, ...]:
    """Contestants by a comma-separated list of names, or ``all``.

    Raises:
        BenchError: If a name is unknown.
    """
    if names == "all":
        return CONTESTANTS
    known = {each.name: each for each in CONTESTANTS}
    wanted = list(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in wanted:
        if name not in known:
            raise BenchError(f"There is no contestant {name!r}; there are: {', '.join(known)}.")
    return tuple(known[name] for name in wanted)


def as_data(contestant: Contestant, setting: Setting) -> dict[str, Any]:
    """A contestant in the record, with the command that started it."""
    launch = contestant.launch(setting)
    return {
        "name": contestant.name,
        "what": contestant.what,
        "command": list(launch.argv),
        "env": dict(launch.env),
        "body": json.loads(json.dumps(launch.body)),
    }
