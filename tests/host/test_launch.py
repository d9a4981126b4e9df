"""The hooks, the gate that every launch passes, and how a launch is stopped."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sglang_mlx_plugin.host import failure_note, launch, releases
from sglang_mlx_plugin.host.errors import LaunchError, install_excepthook, sentence_of
from sglang_mlx_plugin.host.hook import Hook

pytest.importorskip("sglang")


# -- is a hook in force? -----------------------------------------------------------------


def ours(*args: Any) -> str:
    return "ours"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("upstream_stub")
    exec(
        "class C:\n    def m(self): return 'upstream'\n    @classmethod\n    def c(cls): pass",
        vars(made),
    )
    monkeypatch.setitem(sys.modules, "upstream_stub", made)
    return made


def apply(target: str, *hooks: tuple[str, Callable[..., Any]]) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry._apply_target(target, [(HookType[kind], hook, None) for kind, hook in hooks])


@pytest.mark.parametrize("kind", ["REPLACE", "AROUND", "BEFORE", "AFTER"])
@pytest.mark.parametrize("method", ["m", "c"])
def test_a_hook_in_place_is_seen(module: ModuleType, kind: Any, method: str) -> None:
    hook = Hook(f"upstream_stub.C.{method}", ours, kind, "")
    assert hook.problem() == f"the hook on upstream_stub.C.{method} is not in place"
    apply(hook.target, (kind, ours))
    assert hook.problem() is None


def test_others_may_wrap_ours(module: ModuleType) -> None:
    hook = Hook("upstream_stub.C.m", ours, "REPLACE", "")
    apply(hook.target, ("REPLACE", ours), ("AROUND", lambda original, *args: original(*args)))
    assert hook.problem() is None


def test_another_replacement_in_front_is_seen(module: ModuleType) -> None:
    def theirs(self: Any) -> None: ...

    hook = Hook("upstream_stub.C.m", ours, "REPLACE", "")
    apply(hook.target, ("REPLACE", ours), ("REPLACE", theirs))
    problem = hook.problem()
    assert problem is not None and "another plugin replaced upstream_stub.C.m" in problem
    assert "theirs" in problem


@pytest.mark.parametrize("target", ["upstream_stub.C.gone", "upstream_stub.D.m", "nowhere.C.m"])
def test_a_missing_target_is_seen(module: ModuleType, target: str) -> None:
    assert Hook(target, ours, "REPLACE", "").problem() == f"SGLang has no {target}"


def test_every_hook_names_its_module_and_what_it_is_for() -> None:
    for hook in launch.HOOKS:
        assert hook.module.startswith("sglang.srt.") and hook.module.islower()
        assert hook.fails and hook.function.__doc__
    essential = {hook.target for hook in launch.HOOKS if hook.essential}
    assert "sglang.srt.managers.scheduler.Scheduler.init_tp_model_worker" in essential


# -- one sentence ------------------------------------------------------------------------


def test_our_errors_have_a_sentence_and_bugs_have_none() -> None:
    def raised(kind: type[Exception], by_us: bool) -> Exception:
        namespace = {"__name__": "sglang_mlx_plugin.x" if by_us else "mlx_lm.x"}
        exec("def f(e): raise e", namespace)
        try:
            namespace["f"](kind("words"))  # type: ignore[operator]
        except Exception as error:
            return error
        raise AssertionError

    assert sentence_of(LaunchError("words")) == "words"
    assert sentence_of(raised(RuntimeError, True)) == "words"
    assert sentence_of(raised(ValueError, True)) == "words"
    assert sentence_of(raised(ValueError, False)) is None
    assert sentence_of(raised(KeyError, True)) is None


def test_an_uncaught_launch_error_prints_its_sentence_alone() -> None:
    code = "from sglang_mlx_plugin.host.errors import stop_launch\nstop_launch('what to do')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "sglang-mlx: what to do\n")
    debug = f"import logging\nlogging.basicConfig(level='DEBUG')\n{code}"
    done = subprocess.run([sys.executable, "-c", debug], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Traceback" in done.stderr


def test_other_uncaught_errors_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: seen.append(kind))
    install_excepthook()
    first = sys.excepthook
    install_excepthook()
    assert sys.excepthook is first
    sys.excepthook(KeyError, KeyError("x"), None)
    assert seen == [KeyError]


def test_a_childs_sentence_takes_the_place_of_the_parents_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failure_note.os, "getppid", os.getpid)
    with (
        pytest.raises(LaunchError, match=r"^no memory is left$"),
        failure_note.waiting_for_children(),
    ):
        with pytest.raises(SystemExit) as ended:
            failure_note.end_child(LaunchError("no memory is left"))
        assert ended.value.code == 1
        # A second replica's failure changes nothing.
        with pytest.raises(SystemExit):
            failure_note.end_child(LaunchError("so do I"))
        raise RuntimeError("Rank 0 scheduler died")
    assert "SGLANG_MLX_LAUNCH_NOTE" not in os.environ


def test_a_controller_in_between_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[tuple[int, int]] = []
    monkeypatch.setattr(failure_note.os, "kill", lambda pid, number: ended.append((pid, number)))
    with pytest.raises(LaunchError), failure_note.waiting_for_children():
        # Here the main process is this one, and the parent is another.
        with pytest.raises(SystemExit):
            failure_note.end_child(LaunchError("x"))
        raise RuntimeError
    assert ended == [(os.getppid(), signal.SIGTERM)]


def test_a_bug_in_a_child_stays_a_bug() -> None:
    with failure_note.waiting_for_children(), pytest.raises(KeyError):
        failure_note.end_child(KeyError("bug"))
    # Outside of a launch nobody waits for a note.
    with pytest.raises(LaunchError):
        failure_note.end_child(LaunchError("x"))


# -- releases ----------------------------------------------------------------------------


@pytest.fixture
def contracts(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[str, ...]], None]:
    def broken(sentences: tuple[str, ...]) -> None:
        monkeypatch.setattr(releases, "_broken_contracts", lambda: sentences)

    broken(())
    return broken


@pytest.mark.parametrize("release", ["0.5.21", "0.5.22", "0.5.23", "0.5.23+local", "0.5.23.post1"])
def test_releases_of_the_window_pass(
    contracts: Any, caplog: pytest.LogCaptureFixture, release: str
) -> None:
    releases.check_release(release, {})
    assert not caplog.records


@pytest.mark.parametrize("release", ["0.5.20", "0.4", "0.5.14.post1", "source"])
def test_older_releases_stop_the_launch(contracts: Any, release: str) -> None:
    with pytest.raises(LaunchError) as caught:
        releases.check_release(release, {})
    assert release in str(caught.value)
    if release != "source":
        assert "0.5.21 to 0.5.23" in str(caught.value)


def test_the_user_may_go_on(contracts: Any, caplog: pytest.LogCaptureFixture) -> None:
    releases.check_release("0.5.20", {"SGLANG_MLX_SKIP_CONTRACTS": "1"})
    assert "0.5.21 to 0.5.23" in caplog.text
    with pytest.raises(LaunchError):
        releases.refuse("no", {"SGLANG_MLX_SKIP_CONTRACTS": "1"}, essential=True)


def test_a_newer_release_starts_with_a_warning_while_its_contracts_hold(
    contracts: Any, caplog: pytest.LogCaptureFixture
) -> None:
    releases.check_release("0.6.0", {})
    assert "0.6.0 is newer" in caplog.text
    contracts(("SGLang has no Scheduler.run", "x", "y", "z"))
    with pytest.raises(
        LaunchError, match=r"has no Scheduler.run.*and 1 more.*sglang-mlx contracts"
    ):
        releases.check_release("0.6.0", {})


# -- the gate, in a process of its own ---------------------------------------------------

GATE = """
import json, os, sys
import sglang.srt.plugins as plugins
plugins.load_plugins()
from sglang.srt.plugins.hook_registry import HookRegistry
import sglang.srt.server_args as sa
import sglang.srt.platforms as platforms
from sglang_mlx_plugin import entrypoints
from sglang_mlx_plugin.host import launch, releases
from sglang_mlx_plugin.host.errors import LaunchError

folder = sys.argv[1]
answers = {}

def attempt(name, **values):
    values.setdefault("model_path", folder)
    record = sa.ServerArgs(**values)
    try:
        record.resolve_once()
    except LaunchError as error:
        answers[name] = str(error)
    except Exception as error:
        answers[name] = f"{type(error).__name__}: {error}"
    else:
        answers[name] = None
    return record

answers["heavy before the gate"] = sorted(
    {"sglang.srt.managers.scheduler", "sglang.srt.entrypoints.engine"} & set(sys.modules)
)
answers["mlx before the gate"] = "mlx.core" in sys.modules
attempt("tp", tp_size=2)
attempt("folder", model_path=folder + "/none")

os.environ["SGLANG_USE_MLX"] = "1"
attempt("second backend")
os.environ["SGLANG_USE_MLX"] = "0"

entrypoints._failures.append("the MLX plugin could not register its hooks with SGLang: KeyError: x")
attempt("plugin raised")
entrypoints._failures.clear()

from sglang.srt.platforms.interface import SRTPlatform
class Other(SRTPlatform):
    device_name = "other"
ours, platforms._current_platform = platforms._current_platform, Other()
attempt("other platform")
platforms._current_platform = ours

check = releases.check_release
releases.check_release = lambda: check("0.5.20")
attempt("old release")
releases.check_release = check

import sglang.srt.utils.common as common
patched, common.get_device = common.get_device, common.get_device.__wrapped__
attempt("lost hook")
common.get_device = patched

resolve = sa.ServerArgs.resolve_once
sa.ServerArgs.resolve_once = resolve.__wrapped__
attempt("gate not entered")
sa.ServerArgs.resolve_once = resolve

record = attempt("good", dp_size=2, max_total_tokens=1000)
from sglang.srt.arg_groups.overrides import resolution_result
answers["resolved"] = {
    name: resolution_result(record, name)
    for name in ("device", "attention_backend", "sampling_backend", "page_size",
                 "chunked_prefill_size", "mem_fraction_static", "enable_multimodal",
                 "disable_overlap_schedule", "grammar_backend", "max_total_tokens")
}
answers["heavy after the gate"] = "sglang.srt.managers.scheduler" in sys.modules
answers["http server"] = "sglang.srt.entrypoints.http_server" in sys.modules
answers["unhooked"] = [
    hook.target
    for hook in launch.HOOKS
    if not (hook.only_if_loaded and hook.module not in sys.modules) and hook.problem()
]
answers["mlx in the main process"] = "mlx.core" in sys.modules

scheduler = sys.modules["sglang.srt.managers.scheduler"].Scheduler
scheduler.init_tp_model_worker = scheduler.init_tp_model_worker.__wrapped__
os.environ["SGLANG_MLX_SKIP_CONTRACTS"] = "1"
try:
    sys.modules["sglang.srt.entrypoints.engine"].Engine._launch_subprocesses()
except LaunchError as error:
    answers["lost worker"] = str(error)
print("ANSWERS" + json.dumps(answers))
"""


@pytest.fixture(scope="module")
def gate(tiny_folder: Path) -> dict[str, Any]:
    return json.loads(script(GATE, str(tiny_folder)))


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the gate lets through and that SGLang can read a config from."""
    folder = tmp_path_factory.mktemp("tiny")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 32,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"__metadata__": {"format": "mlx"}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@functools.cache
def script(code: str, *args: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **env},
    )
    for line in done.stdout.splitlines():
        if line.startswith("ANSWERS"):
            return line.removeprefix("ANSWERS")
    raise AssertionError(f"no answers: {done.stderr[-3000:]}")


def test_the_gate_is_quick(gate: dict[str, Any]) -> None:
    # The scheduler and the engine cost seconds that a refused launch need not spend.
    assert gate["heavy before the gate"] == []
    assert gate["mlx before the gate"] is False


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("tp", "--tp-size 2"),
        ("folder", "There is no model folder"),
        ("second backend", "SGLANG_USE_MLX"),
        ("plugin raised", "could not register its hooks"),
        ("other platform", "SGLang chose the platform Other(device=other)"),
        ("old release", "SGLang 0.5.20 is older than this plugin supports (0.5.21 to 0.5.23)"),
        ("lost hook", "the hook on sglang.srt.utils.common.get_device is not in place"),
        (
            "gate not entered",
            "the hook on sglang.srt.server_args.ServerArgs.resolve_once is not in",
        ),
        ("lost worker", "Scheduler.init_tp_model_worker is not in place"),
    ],
)
def test_the_gate_stops_a_launch(gate: dict[str, Any], case: str, words: str) -> None:
    assert words in gate[case]
    assert "\n" not in gate[case]


def test_the_gate_lets_a_good_launch_pass(gate: dict[str, Any]) -> None:
    assert gate["good"] is None
    assert gate["heavy after the gate"] is True
    assert gate["unhooked"] == []
    # An embedded engine does not pay for a server that it has no use for.
    assert gate["http server"] is False
    assert gate["mlx in the main process"] is False


def test_arguments_resolve_to_what_mlx_needs(gate: dict[str, Any]) -> None:
    resolved = gate["resolved"]
    assert resolved["device"] == "cpu"
    assert resolved["attention_backend"] == "torch_native"
    assert resolved["sampling_backend"] == "pytorch"
    assert resolved["page_size"] == 1
    assert resolved["enable_multimodal"] is False
    # What SGLang's scheduler does well stays as it is.
    assert resolved["disable_overlap_schedule"] is False
    assert resolved["grammar_backend"] == "xgrammar"
    assert resolved["max_total_tokens"] == 1000
    if sys.platform == "linux":
        assert resolved["chunked_prefill_size"] == 512
        assert resolved["mem_fraction_static"] == 0.25


# -- a Mac, by logic ---------------------------------------------------------------------

MAC = """
import json, subprocess, sys
import torch
# torch sees MPS whatever platform is active, and there is no lscpu.
torch.mps.is_available = lambda: True
torch.backends.mps.is_available = lambda: True
real = subprocess.check_output

def check_output(command, *args, **options):
    if command[0] == "lscpu":
        raise FileNotFoundError("lscpu")
    return real(command, *args, **options)

subprocess.check_output = check_output
import sglang.srt.plugins as plugins
plugins.load_plugins()
import sglang.srt.server_args as sa
from sglang.srt.arg_groups.overrides import resolution_result
record = sa.ServerArgs(model_path=sys.argv[1])
record.resolve_once()
from sglang.srt.utils import common
from sglang.srt.distributed import bootstrap
bootstrap._is_cpu_arm64 = True
answers = {
    "mps": common.is_mps(),
    "device": resolution_result(record, "device"),
    "overlap off": resolution_result(record, "disable_overlap_schedule"),
    "free GiB": common.get_available_gpu_memory("cpu", 0),
    "binding": bootstrap._bind_threads_if_cpu(device="cpu"),
    "threads": bootstrap._init_cpu_threads_env(local_omp_cpuid=None, dist_init_method="tcp://h:1"),
}
print("ANSWERS" + json.dumps(answers))
"""


def test_the_branches_of_a_mac_lead_to_the_same_launch(tiny_folder: Path) -> None:
    answers = json.loads(script(MAC, str(tiny_folder)))
    assert answers["mps"] is True
    assert answers["device"] == "cpu"
    assert answers["overlap off"] is False
    assert answers["free GiB"] > 0
    assert answers["binding"] is None and answers["threads"] is None


# -- the standard launch -----------------------------------------------------------------


def run_server(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sglang.launch_server", "--model-path", str(folder), *args],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **env},
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return done.stderr.rstrip().splitlines()[-1]


def test_a_refused_launch_ends_with_its_sentence(tiny_folder: Path) -> None:
    done = run_server(tiny_folder, "--pp-size", "2")
    assert done.returncode == 1
    assert last_line(done).startswith("sglang-mlx: --pp-size 2: pipeline parallelism")


def test_a_platform_without_its_plugin_stops(tiny_folder: Path) -> None:
    done = run_server(tiny_folder, SGLANG_PLUGINS="other", SGLANG_PLATFORM="mlx")
    assert done.returncode == 1
    assert last_line(done) == (
        "sglang-mlx: SGLANG_PLUGINS=other leaves out the plugin mlx, which the platform mlx "
        "needs: set SGLANG_PLUGINS=other,mlx or unset it"
    )


@pytest.mark.server
def test_a_scheduler_that_cannot_load_is_the_last_line(tiny_folder: Path) -> None:
    # The header is sound, so only the engine, in the scheduler's process, finds nothing in it.
    done = run_server(tiny_folder, "--skip-tokenizer-init", "--port", "31917")
    assert done.returncode == 1
    assert "mlx-lm cannot load the model folder" in last_line(done)
