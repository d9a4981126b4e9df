"""Releases by name or range, downloaded once into our cache directory with pip."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from sglang_mlx_plugin._env import cache_folder

from .source import SourceError

__all__ = ["download", "known_releases", "parse_version", "wheels_in_range"]

# Only sources are read, so any platform's wheel will do: on a Mac there is none of its own.
_ANY_WHEEL = (
    *("--no-deps", "--only-binary=:all:", "--python-version", "3.11"),
    *("--implementation", "cp", "--abi", "cp311", "--abi", "none"),
    *("--platform", "manylinux_2_34_x86_64", "--platform", "manylinux_2_28_x86_64"),
    *("--platform", "manylinux2014_x86_64", "--platform", "any"),
)


def _folder() -> Path:
    return cache_folder() / "contracts" / "wheels"


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def parse_version(text: str) -> Version:
    """A release name.

    Raises:
        SourceError: ``text`` is none.
    """
    try:
        return Version(text)
    except InvalidVersion as error:
        raise SourceError(
            f"{text!r} is no release; write one like 0.5.23, or a range like 0.5.14..0.5.23"
        ) from error


def _cached() -> dict[Version, Path]:
    found: dict[Version, Path] = {}
    for path in sorted(_folder().glob("sglang-*.whl")):
        try:
            found[parse_wheel_filename(path.name)[1]] = path
        except InvalidWheelFilename:
            continue
    return found


def known_releases() -> list[Version]:
    """Every final release that the package index lists, oldest first.

    Raises:
        SourceError: The index cannot be reached.
    """
    answer = _pip("index", "versions", "sglang")
    listed = re.search(r"Available versions: (.+)", answer.stdout)
    if listed is None:
        lines = answer.stderr.strip().splitlines()
        raise SourceError(
            "The package index lists no release of sglang: "
            f"{lines[-1] if lines else 'pip gave no answer'}. Name releases on this machine with "
            "--path, or one by one with --release."
        )
    versions = (parse_version(text.strip()) for text in listed.group(1).split(","))
    return sorted(version for version in versions if not version.is_prerelease)


def download(release: Version) -> Path:
    """The wheel of ``release``, from the cache or the package index.

    Raises:
        SourceError: The index has no such wheel or cannot be reached.
    """
    cached = _cached().get(release)
    if cached is not None:
        return cached
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    answer = _pip("download", "--quiet", "--dest", str(folder), *_ANY_WHEEL, f"sglang=={release}")
    path = _cached().get(release)
    if answer.returncode or path is None:
        lines = answer.stderr.strip().splitlines()
        raise SourceError(
            f"SGLang {release} cannot be downloaded: {lines[-1] if lines else 'pip gave no reason'}"
        )
    return path


def wheels_in_range(text: str) -> list[Path]:
    """Wheels of ``A..B``, ``A..``, or a list ``A,B,C``, oldest first.

    A range without a post-release keeps the last post-release of each version only: that is
    the one that pip installs.

    Raises:
        SourceError: The range is none, is empty, or cannot be downloaded.
    """
    if ".." not in text:
        return [download(parse_version(part.strip())) for part in text.split(",")]
    first_text, last_text = text.split("..", 1)
    first = parse_version(first_text)
    last = parse_version(last_text) if last_text else None
    cached = _cached()
    if last is not None and first in cached and last in cached:
        # Only whole ranges are downloaded, so what lies between is there too.
        known: Iterable[Version] = cached
    else:
        known = known_releases()
    inside = [v for v in known if first <= v and (last is None or v <= last)]
    newest = {version.release: version for version in sorted(inside)}
    if not newest:
        raise SourceError(f"There is no release of SGLang in {text!r}.")
    return [download(version) for version in sorted(newest.values())]
