"""Plugins made in memory, for tests of the manager; installed ones for the rest."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_mlx_plugin.hooks.plugins import Plugin
from tests.support.vendors import install_vendor


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Installs a vendor once for all tests of a run; gives the folder to put on the path."""
    base = tmp_path_factory.getbasetemp()
    # Under xdist each worker has its own folder below one that they share.
    shared = base.parent if base.name.startswith("popen-") else base
    return lambda path: install_vendor(path, shared / "vendors" / path.name)


@pytest.fixture
def vendor() -> Callable[..., Plugin]:
    """Makes a plugin from functions that carry the hookimpl marker."""

    def make(name: str, *functions: Callable[..., Any], distribution: str = "") -> Plugin:
        module = types.SimpleNamespace(**{each.__name__: each for each in functions})
        return Plugin(name, distribution or f"{name}-dist", "3.2.1", module)

    return make
