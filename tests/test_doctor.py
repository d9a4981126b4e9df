"""The doctor, on this machine as it is and on environments that lack or break something.

What is absent is really absent: an environment of its own, with links to all packages of this
one but those. What is broken comes from ``PYTHONPATH``, in front of the real one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_mlx_plugin.doctor import probe
from sglang_mlx_plugin.doctor.report import Finding, as_text, worst

ROOT = Path(__file__).resolve().parents[1]
SITE = Path(sysconfig.get_path("purelib"))

pytest.importorskip("sglang")


class Seen:
    """What one run said."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        assert "Traceback" not in done.stderr, done.stderr[-3000:]
        self.status = done.returncode
        self.data = json.loads(done.stdout)
        assert (self.data["state"] == "failure") == (self.status == 1)

    def all(self, name: str) -> list[dict[str, Any]]:
        return [found for found in self.data["findings"] if found["name"] == name]

    def __getitem__(self, name: str) -> dict[str, Any]:
        (found,) = self.all(name)
        return found


def run(python: str = sys.executable, *arguments: str, **env: str) -> Seen:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SGLANG_MLX_", "SGLANG_P", "SGLANG_USE"))
    }
    done = subprocess.run(
        [python, "-m", "sglang_mlx_plugin", "doctor", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd=ROOT,
        env={**clean, "OMP_NUM_THREADS": "1", **env},
    )
    return Seen(done)


def without(folder: Path, *hidden: str) -> str:
    """The Python of an environment like this one, but without some packages.

    Args:
        folder: Where it goes.
        hidden: Beginnings of the names of files in site-packages.
    """
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    for path in SITE.iterdir():
        if not re.match(rf"({'|'.join(hidden)})([-_.]|$)", path.name, re.IGNORECASE):
            (site / path.name).symlink_to(path)
    return str(folder / "bin" / "python")


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[str, str], str]:
    """Makes a folder for PYTHONPATH with one module that does `code` when imported."""

    def make(name: str, code: str) -> str:
        path = tmp_path / "broken" / name
        path.parent.mkdir(parents=True)
        path.write_text(code)
        return str(tmp_path / "broken")

    return make


def test_this_environment_is_well() -> None:
    seen = run()
    assert seen.status == 0
    names = [found["name"] for found in seen.data["findings"]]
    assert names == [
        *("Python", "platform", "SGLang", "torch", "torchvision", "MLX", "device", "BLAS"),
        *("mlx-lm", "entry points", "launch", "hooks", "contracts", "environment"),
        *("in-tree backend", "default model"),
    ]
    assert {found["state"] for found in seen.data["findings"]} == {"ok"}, seen.data
    assert seen["SGLang"]["facts"]["version"] in seen["SGLang"]["facts"]["supported"]
    assert seen["BLAS"]["facts"]["gflops"] > 0
    assert seen["device"]["facts"]["working_set_bytes"] > 1 << 30
    assert seen["launch"]["facts"]["ours"] is True
    winners = [hook["winner"]["distribution"] for hook in seen["hooks"]["facts"]["hooks"]]
    assert set(winners) == {"sglang-mlx-plugin"}


def test_without_sglang(tmp_path: Path) -> None:
    seen = run(without(tmp_path / "env", "sglang"))
    assert seen.status == 1
    assert (seen["SGLang"]["state"], seen["SGLang"]["text"]) == ("failure", "not installed")
    assert "pip install --no-deps sglang==0.5.23" in seen["SGLang"]["advice"]
    assert seen["MLX"]["state"] == seen["mlx-lm"]["state"] == seen["hooks"]["state"] == "ok"
    assert "not checked" in seen["contracts"]["text"]
    assert "SGLang cannot be imported" in seen["launch"]["text"]


def test_without_mlx(tmp_path: Path) -> None:
    seen = run(without(tmp_path / "env", "mlx", "mlx_cpu"))
    assert seen.status == 1
    assert (seen["MLX"]["state"], seen["MLX"]["text"]) == ("failure", "not installed")
    assert "pip install" in seen["MLX"]["advice"]
    assert seen["SGLang"]["state"] == "ok"
    assert "would serve without MLX" in seen["launch"]["text"]
    assert seen["launch"]["state"] == "failure"


def test_without_torch(tmp_path: Path) -> None:
    seen = run(without(tmp_path / "env", "torch", "torchvision", "torchgen"))
    assert seen.status == 1
    assert (seen["torch"]["state"], seen["torch"]["text"]) == ("failure", "not installed")
    assert seen["MLX"]["state"] == "ok"
    if sys.platform == "linux":
        assert seen["BLAS"]["state"] == "warning"
        assert "torch is not installed" in seen["BLAS"]["text"]


@pytest.mark.parametrize(
    ("module", "name"),
    [("mlx/core.py", "MLX"), ("torch/__init__.py", "torch"), ("sglang/__init__.py", "SGLang")],
)
def test_an_import_that_raises(broken: Callable[[str, str], str], module: str, name: str) -> None:
    seen = run(PYTHONPATH=broken(module, "raise OSError('libfoo.so: no such file')\n"))
    assert seen.status == 1
    assert seen[name]["state"] == "failure"
    assert "OSError: libfoo.so: no such file" in seen[name]["text"]
    assert seen[name]["advice"]
    assert seen["hooks"]["state"] == "ok"


def test_an_import_that_ends_the_process(broken: Callable[[str, str], str]) -> None:
    seen = run(PYTHONPATH=broken("mlx/core.py", "import os\nos.abort()\n"))
    assert seen.status == 1
    assert "ended by SIGABRT" in seen["MLX"]["text"]
    assert seen["torch"]["state"] == seen["SGLang"]["state"] == "ok"


def test_a_child_that_hangs_is_ended(
    broken: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(broken("mlx/core.py", "import time\ntime.sleep(600)\n"))
    answers = probe.ask("mlx", patience_s=8)
    assert answers["device"].ok
    assert "did not end within 8 s" in answers["mlx"].error
    assert answers["speed"].skipped


def test_settings_that_do_harm() -> None:
    seen = run(
        SGLANG_USE_MLX="1",
        SGLANG_PLUGINS="other",
        SGLANG_MLX_SKIP_CONTRACT="1",
        SGLANG_MLX_TRACE_HOOKS="0",
        SGLANG_MLX_HOOKS="sglang_mlx_device=nobody",
    )
    assert seen.status == 1
    assert seen["in-tree backend"]["state"] == "failure"
    assert "SGLANG_PLUGINS=other,mlx" in seen["entry points"]["advice"]
    assert "chooses 'nobody'" in seen["hooks"]["text"]
    set_, unknown = seen.all("environment")
    assert "SGLANG_MLX_TRACE_HOOKS=0" in set_["text"]
    assert unknown["state"] == "warning"
    assert unknown["advice"] == "did you mean SGLANG_MLX_SKIP_CONTRACTS?"


def test_another_platform_and_no_model_are_warnings_at_most(tmp_path: Path) -> None:
    seen = run(SGLANG_PLATFORM="other", SGLANG_MLX_CACHE=str(tmp_path))
    assert seen["entry points"]["state"] == "warning"
    assert "is not built" in seen["default model"]["text"]
    assert seen["default model"]["state"] == "ok"


def test_a_damaged_default_model_is_a_warning(tmp_path: Path) -> None:
    from sglang_mlx_plugin.doctor.settings import default_model

    (tmp_path / "models" / "SmolLM2-135M-Instruct").mkdir(parents=True)
    found = default_model({"SGLANG_MLX_CACHE": str(tmp_path)})
    assert (found.state, "fetch-model" in found.advice) == ("warning", True)


def test_the_screen() -> None:
    findings = [
        Finding("Python", "ok", "3.11"),
        Finding("BLAS", "warning", "slow\nindeed", "install torch"),
    ]
    assert worst(findings) == "warning"
    assert as_text(findings) == (
        "ok       Python  3.11\n"
        "warning  BLAS    slow indeed\n"
        "                 -> install torch\n"
        "\n"
        "0 failures, 1 warning: ready to serve."
    )
    failed = Finding("MLX", "failure", "not installed")
    assert worst([*findings, failed]) == "failure"
    assert "1 failure, 1 warning" in as_text([failed, *findings])
