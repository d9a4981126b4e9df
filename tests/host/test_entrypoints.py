"""The two entry points: cheap, idempotent, silent where MLX is absent, never swallowed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points

import pytest

from sglang_mlx_plugin import entrypoints
from sglang_mlx_plugin.hooks import HookError
from sglang_mlx_plugin.hooks.types import DeviceChoice

INACTIVE = DeviceChoice(active=False, kind="cpu", reason="this host has an NVIDIA GPU")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(entrypoints, "_failures", [])
    monkeypatch.setattr(entrypoints, "_choice", None)
    monkeypatch.setattr(entrypoints, "_registered", False)
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    yield


class Hooks:
    """Answers the one hook that the entry points ask."""

    def __init__(self, answer: DeviceChoice | Exception) -> None:
        self.answer = answer
        self.asked = 0

    def device(self, environ: object) -> DeviceChoice:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def use(monkeypatch: pytest.MonkeyPatch, answer: DeviceChoice | Exception) -> Hooks:
    hooks = Hooks(answer)
    monkeypatch.setattr("sglang_mlx_plugin.hooks.get_hooks", lambda: hooks, raising=False)
    return hooks


def test_both_are_installed_under_sglangs_groups() -> None:
    found = {
        (point.group, point.value)
        for group in ("sglang.srt.platforms", "sglang.srt.plugins")
        for point in entry_points(group=group, name="mlx")
    }
    assert found == {
        ("sglang.srt.platforms", "sglang_mlx_plugin.entrypoints:activate"),
        ("sglang.srt.plugins", "sglang_mlx_plugin.entrypoints:register"),
    }


def test_importing_them_loads_the_standard_library_only() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import sglang_mlx_plugin.entrypoints"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    standard = set(sys.stdlib_module_names) | {"imported package"}
    # Editable installs and coverage tools put hooks of their own into site; ours may not.
    others = {
        name
        for name in names
        if name.split(".")[0] not in standard
        and not name.startswith(("__editable__", "_distutils"))
    }
    assert others - {"sitecustomize", "usercustomize"} == {
        "sglang_mlx_plugin",
        "sglang_mlx_plugin._version",
        "sglang_mlx_plugin.entrypoints",
    }


def test_activating_loads_neither_mlx_nor_torch_nor_sglang() -> None:
    code = (
        "import sys, json\n"
        "from sglang_mlx_plugin import entrypoints\n"
        "answer = entrypoints.activate()\n"
        "roots = {name.split('.')[0] for name in sys.modules}\n"
        "print(json.dumps([answer, sorted(roots & {'mlx', 'mlx_lm', 'torch', 'sglang', 'numpy',"
        " 'torchvision', 'transformers'})]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    answer, heavy = json.loads(done.stdout)
    assert answer == "sglang_mlx_plugin.host.platform.MlxPlatform"
    assert heavy == []


def test_where_mlx_is_absent_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrypoints, "find_spec", lambda name: None)
    assert entrypoints.activate() is None
    entrypoints.register()
    assert entrypoints.failures() == ()


def test_on_a_host_for_others_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = use(monkeypatch, INACTIVE)
    assert entrypoints.activate() is None
    entrypoints.register()
    assert entrypoints.failures() == ()
    assert hooks.asked == 1


def test_asked_for_and_not_possible_is_a_failure_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PLATFORM", "mlx")
    use(monkeypatch, DeviceChoice(active=False, kind="cpu", reason="MLX is not installed"))
    assert entrypoints.activate() == entrypoints.PLATFORM
    (failure,) = entrypoints.failures()
    assert "SGLANG_PLATFORM=mlx" in failure
    assert "MLX is not installed" in failure


def test_a_vendor_that_raises_is_kept_for_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, HookError("plugin 'acme' (distribution acme-mlx 1.0) raised in its hook"))
    # None would start a server without MLX, and SGLang only logs an exception.
    assert entrypoints.activate() == entrypoints.PLATFORM
    (failure,) = entrypoints.failures()
    assert "acme-mlx 1.0" in failure


def test_hooks_that_cannot_be_registered_are_kept_for_the_gate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, DeviceChoice(active=True, kind="cpu", reason="test"))
    launch = pytest.importorskip("sglang_mlx_plugin.host.launch")

    def register_hooks() -> None:
        raise KeyError("gone")

    monkeypatch.setattr(launch, "register_hooks", register_hooks)
    entrypoints.register()
    entrypoints.register()
    (failure,) = entrypoints.failures()
    assert "could not register its hooks with SGLang: KeyError" in failure
