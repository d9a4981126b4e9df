"""Where the text of a release comes from: a wheel, a folder, or what is installed.

Nothing here imports what it reads. A release that would crash at import, or that needs CUDA,
can still be checked.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import zipfile
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Protocol

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

__all__ = ["FolderTree", "SourceError", "SourceTree", "WheelTree", "installed_tree", "open_tree"]

_VERSION_LINE = re.compile(rb"^__version__\s*(?::\s*\w+\s*)?=\s*[\"']([^\"']+)[\"']", re.MULTILINE)


class SourceError(RuntimeError):
    """A release cannot be read; the text is a sentence for the user."""


class SourceTree(Protocol):
    """The Python files of one or more top-level packages."""

    label: str

    @property
    def version(self) -> Version | None:
        """Release that the files belong to; None when they do not say."""
        ...

    def read(self, path: str) -> bytes | None:
        """Bytes of ``package/module.py``, or None when there is no such file."""
        ...

    def paths(self, prefix: str) -> list[str]:
        """Every ``.py`` path that begins with ``prefix``, sorted."""
        ...

    def fingerprint(self) -> str:
        """A short digest that changes whenever a file of the tree may have changed."""
        ...


class WheelTree:
    """A wheel file, read in place.

    Raises:
        SourceError: The file is missing or is no wheel.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.label = path.name
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise SourceError(f"{path} cannot be read as a wheel: {error}") from error

    @cached_property
    def version(self) -> Version | None:
        try:
            return parse_wheel_filename(self.path.name)[1]
        except InvalidWheelFilename:
            return None

    @cached_property
    def _names(self) -> list[str]:
        return sorted(name for name in self._zip.namelist() if name.endswith(".py"))

    def read(self, path: str) -> bytes | None:
        try:
            return self._zip.read(path)
        except KeyError:
            return None

    def paths(self, prefix: str) -> list[str]:
        return [name for name in self._names if name.startswith(prefix)]

    def fingerprint(self) -> str:
        # The archive's own directory lists each member's CRC: no need to hash 40 MB.
        members = [(i.filename, i.CRC, i.file_size) for i in self._zip.infolist()]
        return hashlib.sha256(repr(members).encode()).hexdigest()[:24]


class FolderTree:
    """A folder that contains the top-level package as a sub-folder.

    Args:
        root: Folder in which ``package`` lies.
        package: Name of the top-level package.
        version: Release, when known from elsewhere.
    """

    def __init__(self, root: Path, package: str = "sglang", version: Version | None = None) -> None:
        self.root = root
        self.package = package
        self.label = str(root / package)
        self._given = version

    @cached_property
    def version(self) -> Version | None:
        if self._given is not None:
            return self._given
        for name in ("_version.py", "version.py"):
            found = _VERSION_LINE.search(self.read(f"{self.package}/{name}") or b"")
            if found:
                try:
                    return Version(found.group(1).decode())
                except InvalidVersion:
                    return None
        return None

    def read(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except OSError:
            return None

    @cached_property
    def _stats(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        pending = [(str(self.root / self.package), self.package)]
        while pending:
            folder, name = pending.pop()
            try:
                entries = list(os.scandir(folder))
            except OSError:
                continue
            for entry in entries:
                if entry.name.endswith(".py"):
                    stat = entry.stat()
                    found[f"{name}/{entry.name}"] = (stat.st_size, stat.st_mtime_ns)
                elif "." not in entry.name and entry.is_dir():
                    pending.append((entry.path, f"{name}/{entry.name}"))
        return found

    def paths(self, prefix: str) -> list[str]:
        return sorted(path for path in self._stats if path.startswith(prefix))

    def fingerprint(self) -> str:
        """Digest of each file's path, size and time of change; no file is opened."""
        return hashlib.sha256(repr(sorted(self._stats.items())).encode()).hexdigest()[:24]


def installed_tree(distribution: str = "sglang", package: str = "sglang") -> FolderTree:
    """The installed release, found without importing it.

    Raises:
        SourceError: The package is on no import path.
    """
    version: Version | None
    try:
        version = Version(metadata.version(distribution))
    except (metadata.PackageNotFoundError, InvalidVersion):
        version = None
    for entry in sys.path:
        root = Path(entry or ".")
        if (root / package / "srt").is_dir() or (root / package / "__init__.py").is_file():
            return FolderTree(root, package, version)
    # An editable install puts no folder on sys.path; its finder knows the place.
    from importlib.util import find_spec

    spec = find_spec(package)
    if spec is not None and spec.submodule_search_locations:
        return FolderTree(
            Path(next(iter(spec.submodule_search_locations))).parent, package, version
        )
    raise SourceError(
        "SGLang is not installed in this environment, so its contracts cannot be checked; "
        "install it, or name a release with --release or a folder with --path."
    )


def open_tree(path: Path) -> SourceTree:
    """A release from a wheel, a site-packages folder, a clone, or the package's folder itself.

    Raises:
        SourceError: ``path`` is none of these.
    """
    if path.is_file():
        return WheelTree(path)
    for root in (path, path / "python", path.parent if path.name == "sglang" else path):
        if (root / "sglang" / "srt").is_dir():
            return FolderTree(root.absolute(), "sglang", _folder_version(root))
    raise SourceError(
        f"{path} holds no SGLang sources: a wheel, a folder with sglang/srt in it, or a clone "
        "with python/sglang/srt is expected."
    )


def _folder_version(root: Path) -> Version | None:
    for info in sorted(root.glob("sglang-*.dist-info")):
        try:
            return Version(info.name.removesuffix(".dist-info").split("-", 1)[1])
        except InvalidVersion:
            continue
    return None
