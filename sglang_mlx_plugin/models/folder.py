"""A folder that appears under its name only when it is whole.

It is built in a private folder beside its place and renamed; a manifest inside names its
source and every file. A lock, which ends with its process, keeps two builders apart, so
whatever lies half-built while the lock is held was left by a builder that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .errors import ModelFileError

__all__ = ["MANIFEST", "build_folder", "checksum", "is_whole"]

MANIFEST = ".sglang-mlx.json"
# Part of every manifest: folders of an older converter are built anew.
_FORMAT = 2
# Files up to this size are hashed at each check; larger ones only when their time differs.
_SMALL = 8 << 20


def checksum(path: Path) -> str:
    """SHA-256 of a file, lower-case hexadecimal.

    Raises:
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_whole(folder: Path, source_sha256: str) -> bool:
    """Whether ``folder`` was built from this source and each of its files is as it was built.

    Fast: a large file counts as unchanged when its size and time of change are.
    """
    manifest = _manifest(folder)
    if manifest is None or manifest["source_sha256"] != source_sha256:
        return False
    try:
        return all(_is_same(folder / name, entry) for name, entry in manifest["files"].items())
    except (OSError, KeyError, TypeError, AttributeError, ValueError):
        return False


def build_folder(
    folder: Path,
    source_sha256: str,
    about: dict[str, str],
    build: Callable[[Path, Path], None],
    note: Callable[[str], None] = lambda text: None,
) -> Path:
    """Find a folder whole, or build it.

    Safe against a kill at any moment and against other processes that build the same folder.

    Args:
        folder: Where it goes. What is there already must be empty or built here.
        source_sha256: Checksum of what it is built from.
        about: What else to keep in the manifest.
        build: Called with a private folder for whatever it needs, and the empty folder to fill.
        note: Told when another process is waited for.

    Returns:
        The folder's absolute path.

    Raises:
        ModelFileError: If the folder holds something else or cannot be written, or as ``build``.
    """
    try:
        folder = folder.expanduser().resolve()
        if is_whole(folder, source_sha256):
            return folder
        _refuse_foreign(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder, note):
            if is_whole(folder, source_sha256):
                return folder
            for stale in folder.parent.glob(f".{_escaped(folder.name)}.new-*"):
                shutil.rmtree(stale, ignore_errors=True)
            # Only the outer folder is private: the inner one keeps the user's umask.
            scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.new-"))
            try:
                new = scratch / "model"
                new.mkdir()
                build(scratch, new)
                _write_manifest(new, source_sha256, about)
                _put_in_place(new, folder, scratch)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return folder
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, ModelFileError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(
            f"The model folder {str(folder)!r} cannot be written ({reason}): free or open that "
            "place, or choose another with --dir or SGLANG_MLX_CACHE."
        ) from error


def _manifest(folder: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        return None
    sound = isinstance(manifest.get("source_sha256"), str)
    return manifest if sound and isinstance(manifest.get("files"), dict) else None


def _is_same(path: Path, entry: dict[str, Any]) -> bool:
    status = path.stat()
    if status.st_size != entry["size"]:
        return False
    if status.st_size > _SMALL and status.st_mtime_ns == entry["mtime_ns"]:
        return True
    return checksum(path) == entry["sha256"]


def _write_manifest(folder: Path, source_sha256: str, about: dict[str, str]) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        status = path.stat()
        files[path.name] = {
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "sha256": checksum(path),
        }
    manifest = {"format": _FORMAT, "source_sha256": source_sha256, **about, "files": files}
    text = json.dumps(manifest, indent=2) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder that holds what was not built here: it would be replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ModelFileError(
            f"{str(folder)!r} is a file, not a folder: choose another place with --dir."
        )
    present = {path.name for path in folder.iterdir()}
    if MANIFEST in present:
        # Also one of an older format, or damaged, tells which files are ours.
        try:
            ours = set(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            ours = set()
        present -= ours | {MANIFEST}
    if present:
        raise ModelFileError(
            f"The folder {str(folder)!r} holds {min(present)!r}, which was not put there by this "
            "command: empty it or choose another with --dir."
        )


def _put_in_place(new: Path, folder: Path, scratch: Path) -> None:
    if folder.exists():
        # A folder cannot be renamed onto one with files in it. The old one goes with scratch.
        _refuse_foreign(folder)
        os.rename(folder, scratch / "old")
    try:
        os.rename(new, folder)
    except OSError:
        if (scratch / "old").exists():
            os.rename(scratch / "old", folder)
        raise


@contextlib.contextmanager
def _lock(folder: Path, note: Callable[[str], None]) -> Iterator[None]:
    path = folder.with_name(f".{folder.name}.lock")
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                note(f"Waiting for another process that builds {folder}")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _is_file_at(descriptor, path):
                continue  # Its last owner removed it while this process waited.
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    path.unlink()
            return
        finally:
            os.close(descriptor)


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
