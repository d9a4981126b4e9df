"""Source trees for the contract tests: written in the test, or a real one with a few edits."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from packaging.version import Version

from sglang_mlx_plugin.contracts.source import SourceTree

__all__ = ["EditedTree", "TextTree"]


class TextTree:
    """Files given as text.

    Args:
        files: Path to source; indentation is taken off.
        version: The release that it stands for.
    """

    def __init__(self, files: Mapping[str, str], version: str | None = None) -> None:
        self.label = "sglang in a test"
        self.version = Version(version) if version else None
        self._files = {path: textwrap.dedent(text).encode() for path, text in files.items()}

    def read(self, path: str) -> bytes | None:
        return self._files.get(path)

    def paths(self, prefix: str) -> list[str]:
        return sorted(path for path in self._files if path.startswith(prefix))

    def fingerprint(self) -> str:
        return "text"


class EditedTree:
    """Another tree with replacements in some files; each must be found exactly once.

    Args:
        tree: The tree.
        edits: For a path, pairs of old and new text.
    """

    def __init__(self, tree: SourceTree, edits: Mapping[str, list[tuple[str, str]]]) -> None:
        self.label = f"edited {tree.label}"
        self.version = tree.version
        self._tree = tree
        self._edited: dict[str, bytes] = {}
        for path, pairs in edits.items():
            text = (tree.read(path) or b"").decode()
            for old, new in pairs:
                assert text.count(old) == 1, f"{path}: {text.count(old)} times {old!r}"
                text = text.replace(old, new)
            self._edited[path] = text.encode()

    def read(self, path: str) -> bytes | None:
        return self._edited.get(path) or self._tree.read(path)

    def paths(self, prefix: str) -> list[str]:
        return self._tree.paths(prefix)

    def fingerprint(self) -> str:
        return "edited"
