"""Folders appear whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_mlx_plugin.models.errors import ModelFileError
from sglang_mlx_plugin.models.folder import MANIFEST, build_folder, is_whole

SOURCE = "a" * 64


class Builder:
    """Writes two files, and counts how often."""

    def __init__(self, fail: Exception | None = None) -> None:
        self.count = 0
        self.fail = fail

    def __call__(self, scratch: Path, new: Path) -> None:
        self.count += 1
        (scratch / "download").write_bytes(b"x")
        (new / "config.json").write_text("{}")
        (new / "model.safetensors").write_bytes(bytes(9 << 20))
        if self.fail is not None:
            raise self.fail


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_built_once_and_found_again(tmp_path: Path) -> None:
    builder = Builder()
    folder = build_folder(tmp_path / "deep" / "m", SOURCE, {"model": "m"}, builder)
    assert folder == build_folder(tmp_path / "deep" / "m", SOURCE, {}, builder)
    assert builder.count == 1
    assert left_in(folder) == {"config.json", "model.safetensors", MANIFEST}
    assert left_in(folder.parent) == {"m"}
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["model"] == "m"
    assert set(manifest["files"]) == {"config.json", "model.safetensors"}


def test_the_folder_obeys_the_umask_and_the_scratch_is_private(tmp_path: Path) -> None:
    modes = []

    def build(scratch: Path, new: Path) -> None:
        modes.append(scratch.stat().st_mode & 0o777)

    before = os.umask(0o027)
    try:
        folder = build_folder(tmp_path / "m", SOURCE, {}, build)
    finally:
        os.umask(before)
    assert modes == [0o700]
    assert folder.stat().st_mode & 0o777 == 0o750


def damage_text(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def damage_length(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 5)


def damage_bytes(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.write(b"!")


def remove(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def damage_manifest(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"]["config.json"]["size"] = None
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "damage", [damage_text, damage_length, damage_bytes, remove, damage_manifest]
)
def test_a_damaged_folder_is_built_anew(damage: Callable[[Path], None], tmp_path: Path) -> None:
    builder = Builder()
    folder = build_folder(tmp_path / "m", SOURCE, {}, builder)
    damage(folder)
    assert not is_whole(folder, SOURCE)
    build_folder(folder, SOURCE, {}, builder)
    assert builder.count == 2
    assert is_whole(folder, SOURCE)
    assert left_in(tmp_path) == {"m"}


def test_a_copied_folder_is_whole(tmp_path: Path) -> None:
    folder = build_folder(tmp_path / "m", SOURCE, {}, Builder())
    os.utime(folder / "model.safetensors")
    assert is_whole(folder, SOURCE)


def test_another_source_replaces_it(tmp_path: Path) -> None:
    folder = build_folder(tmp_path / "m", SOURCE, {}, Builder())
    build_folder(folder, "b" * 64, {}, Builder())
    assert is_whole(folder, "b" * 64)
    assert left_in(tmp_path) == {"m"}


def test_a_failure_leaves_the_old_folder_and_nothing_else(tmp_path: Path) -> None:
    folder = build_folder(tmp_path / "m", SOURCE, {}, Builder())
    with pytest.raises(ModelFileError, match="no good"):
        build_folder(folder, "b" * 64, {}, Builder(ModelFileError("no good")))
    assert is_whole(folder, SOURCE)
    assert left_in(tmp_path) == {"m"}


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    full = OSError(28, "No space left on device")
    with pytest.raises(ModelFileError, match=r"No space left on device.*--dir"):
        build_folder(tmp_path / "m", SOURCE, {}, Builder(full))
    assert left_in(tmp_path) == set()


def test_what_others_put_there_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("...")
    with pytest.raises(ModelFileError, match=r"holds 'chapter.tex'"):
        build_folder(tmp_path / "thesis", SOURCE, {}, Builder())
    folder = build_folder(tmp_path / "m", SOURCE, {}, Builder())
    (folder / "notes.txt").write_text("mine")
    damage_text(folder)
    with pytest.raises(ModelFileError, match=r"holds 'notes.txt'"):
        build_folder(folder, SOURCE, {}, Builder())
    assert (folder / "notes.txt").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFileError, match="is a file"):
        build_folder(tmp_path / "file", SOURCE, {}, Builder())


def test_an_empty_folder_is_welcome(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    assert is_whole(build_folder(tmp_path / "m", SOURCE, {}, Builder()), SOURCE)


@pytest.mark.parametrize("place", ["/dev/null/m", "/proc/m", "bad\0name"])
def test_places_that_cannot_be_written(place: str) -> None:
    with pytest.raises(ModelFileError, match="cannot be written"):
        build_folder(Path(place), SOURCE, {}, Builder())


SLOW_BUILD = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from sglang_mlx_plugin.models.folder import build_folder

    place, log, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])

    def build(scratch, new):
        (new / "config.json").write_text("{}")
        with log.open("a") as file:
            file.write("built\\n")
        time.sleep(seconds)

    build_folder(place, "a" * 64, {}, build)
    """
)


def start(place: Path, log: Path, seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SLOW_BUILD, place, log, str(seconds)])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_kill_half_way_leaves_nothing_broken(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start(tmp_path / "place" / "m", log, 600)
    wait_for(log.exists)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "place" / "m").exists()
    assert any(name.startswith(".m.new-") for name in left_in(tmp_path / "place"))
    folder = build_folder(tmp_path / "place" / "m", SOURCE, {}, Builder())
    assert is_whole(folder, SOURCE)
    assert left_in(tmp_path / "place") == {"m"}


def test_builders_at_once_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    processes = [start(tmp_path / "place" / "m", log, 0.5) for _ in range(4)]
    assert [process.wait(120) for process in processes] == [0] * 4
    assert log.read_text() == "built\n"
    assert is_whole(tmp_path / "place" / "m", SOURCE)
    assert left_in(tmp_path / "place") == {"m"}
