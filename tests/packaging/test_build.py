"""The distributions build, hold what they must, and install into an empty environment."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.install

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and, built from it, the wheel."""
    out = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source") / "tree"
    # A copy of what git tracks: a build in the checkout would leave its folders there.
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    return out


def test_the_wheel_holds_the_licence_the_types_and_no_tests(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("LICENSE") for name in names)
    assert "sglang_mlx_plugin/py.typed" in names
    tracked = subprocess.run(
        ["git", "ls-files", "sglang_mlx_plugin"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()
    # Whatever lies in the package is needed there: the recorded matrix, for `--write-docs`.
    assert {name for name in tracked if (ROOT / name).is_file()} <= set(names)
    assert not [name for name in names if name.startswith(("tests", "examples", "benchmarks"))]
    packages = {
        str(file.parent.relative_to(ROOT))
        for file in (ROOT / "sglang_mlx_plugin").rglob("__init__.py")
    }
    assert packages <= {str(Path(name).parent) for name in names}
    metadata = next(name for name in names if name.endswith("entry_points.txt"))
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    for group in ("[sglang.srt.platforms]", "[sglang.srt.plugins]", "[console_scripts]"):
        assert group in text


def test_the_sdist_holds_the_licence_and_no_tests(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [name.split("/", 1)[-1] for name in archive.getnames()]
    assert "LICENSE" in names
    assert not [name for name in names if name.startswith("tests/")]


def test_it_installs_into_an_empty_environment(built: Path, tmp_path: Path) -> None:
    """Without SGLang, MLX or torch: the command runs and says what it is."""
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    target = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", str(wheel)], check=True, capture_output=True)
    assert (target / "sglang_mlx_plugin").is_dir()

    code = "import sglang_mlx_plugin, sglang_mlx_plugin.entrypoints as e; print(e.activate())"
    run = subprocess.run(
        [str(python), "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    # MLX is not importable there: silent, and SGLang would run as before.
    assert run.stdout.strip() == "None"
