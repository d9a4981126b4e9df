"""Launches of a SGLang outside the support window, with the real wheel.

`make test-releases` runs this with a release that is older than the window, and once more with
the newest supported one under the number of the next.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

from sglang_mlx_plugin.host.releases import NEWEST, OLDEST, window
from tests.support.server import launched

pytestmark = pytest.mark.outside

SKIP = "SGLANG_MLX_SKIP_CONTRACTS"
older = pytest.mark.skipif(
    Version(metadata.version("sglang")) >= Version(OLDEST), reason="SGLang is not older"
)
newest = pytest.mark.skipif(
    metadata.version("sglang") != NEWEST, reason="SGLang is not the newest supported"
)


# 0.5.20 imports torchvision before it asks for platforms, so where torchvision's operators do
# not load (a CPU build of torch) it ends before any plugin is asked: cured here beforehand, as on
# a machine whose torchvision works.
LAUNCH = """
import runpy
from sglang_mlx_plugin.host import torchvision_cure
torchvision_cure.install()
runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
"""


def launch(model: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Launch until the server ends by itself."""
    command = [sys.executable, "-c", LAUNCH, "--model-path", str(model)]
    return subprocess.run(
        [*command, "--mem-fraction-static", "0.3", "--port", "0"],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


@older
def test_an_older_release_is_refused(default_model: Path) -> None:
    done = launch(default_model)
    assert done.returncode != 0
    sentence = f"SGLang {metadata.version('sglang')} is older than this plugin supports"
    assert f"{sentence} ({window()}): pip install --no-deps sglang=={NEWEST}" in done.stdout
    assert f"{SKIP}=1 turns this into a warning" in done.stdout
    assert "Traceback" not in done.stdout


@older
def test_the_user_goes_on_with_an_older_release(default_model: Path) -> None:
    """The refusal is a warning; what the release lacks is then its own, named failure."""
    done = launch(default_model, **{SKIP: "1"})
    assert f"going on because {SKIP}=1" in done.stdout
    assert f"{SKIP}=1 turns this into a warning" not in done.stdout


@pytest.fixture
def numbered_next(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which the installed SGLang has a number beyond the window."""
    found = metadata.distribution("sglang")
    base = Path(str(found.locate_file("")))
    (info,) = base.glob("sglang-*.dist-info")
    number = ".".join([*NEWEST.split(".")[:-1], str(int(NEWEST.split(".")[-1]) + 1)])
    copy = tmp_path / "site" / f"sglang-{number}.dist-info"
    shutil.copytree(info, copy)
    text = (copy / "METADATA").read_text()
    assert f"\nVersion: {NEWEST}\n" in text
    text = text.replace(f"\nVersion: {NEWEST}\n", f"\nVersion: {number}\n")
    (copy / "METADATA").write_text(text)
    path = os.pathsep.join(filter(None, [str(copy.parent), os.environ.get("PYTHONPATH")]))
    yield {**os.environ, "PYTHONPATH": path}


@newest
def test_a_newer_release_whose_contracts_hold_starts_with_a_warning(
    default_model: Path, numbered_next: dict[str, str], tmp_path: Path
) -> None:
    arguments = ("--mem-fraction-static", "0.3")
    with launched(default_model, tmp_path, *arguments, env=numbered_next) as server:
        question = {
            "text": "The capital of France is",
            "sampling_params": {"max_new_tokens": 4, "temperature": 0},
        }
        assert "Paris" in server.post("/generate", question)["text"]
        log = server.log.read_text()
    assert f"is newer than the releases that this MLX plugin was tried with ({window()})" in log
