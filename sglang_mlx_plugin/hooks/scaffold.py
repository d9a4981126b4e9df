"""Writes the skeleton of a vendor's distribution: it installs, and its test passes."""

from __future__ import annotations

import keyword
import re
from importlib.util import find_spec
from pathlib import Path
from string import Template

from sglang_mlx_plugin._version import __version__

from .plugins import GROUP, normalize

__all__ = ["write_vendor"]

SETUP_CFG = """\
[metadata]
name = $distribution
version = 0.1.0
description = A plugin of sglang-mlx-plugin

[options]
py_modules = $module
python_requires = >=3.11
install_requires =
    sglang-mlx-plugin>=$version

[options.entry_points]
$group =
    $distribution = $module
"""

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
"""

MODULE = '''\
"""What $distribution does otherwise than sglang-mlx-plugin's built-in parts.

`sglang-mlx hooks` lists every hook that could stand here; docs/hooks.md of sglang-mlx-plugin
describes them. This module is imported in every process of a server: import MLX inside the
functions.
"""

from __future__ import annotations

from sglang_mlx_plugin import hookimpl
from sglang_mlx_plugin.hooks.types import ConcurrencyLimits
from sglang_mlx_plugin.host.concurrency import resolve_max_running_requests

MOST = 16


@hookimpl
def sglang_mlx_resolve_max_running_requests(limits: ConcurrencyLimits) -> int:
    """The built-in rule, and never more than MOST."""
    return min(MOST, resolve_max_running_requests(limits))
'''

TEST = '''\
"""The plugin is found, is asked first, and answers; run `pytest` after installing it."""

from __future__ import annotations

from sglang_mlx_plugin.hooks import get_hooks
from sglang_mlx_plugin.hooks.types import ConcurrencyLimits

HOOK = "sglang_mlx_resolve_max_running_requests"


def test_plugin_is_asked_first() -> None:
    assert get_hooks().manager.winner(HOOK).plugin.distribution == "$distribution"


def test_cap_is_obeyed() -> None:
    hooks = get_hooks()
    many = ConcurrencyLimits(max_total_num_tokens=100_000)
    few = ConcurrencyLimits(max_total_num_tokens=100_000, requested=3)
    assert hooks.resolve_max_running_requests(many) == 16
    assert hooks.resolve_max_running_requests(few) == 3
'''


def write_vendor(name: str, folder: Path | None = None) -> Path:
    """Write the distribution.

    Args:
        name: Its name, such as ``acme-mlx``.
        folder: Where to; a new folder named after it by default.

    Returns:
        The folder.

    Raises:
        ValueError: If the name cannot be used, or the folder holds something.
    """
    if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise ValueError(
            f"{name!r} cannot name a distribution: begin with a letter, go on with letters, "
            "digits, dashes, such as acme-mlx."
        )
    distribution = normalize(name)
    module = distribution.replace("-", "_")
    if keyword.iskeyword(module) or find_spec(module) is not None:
        raise ValueError(f"A module named {module} exists already; choose another name.")
    folder = Path(distribution) if folder is None else folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not an empty folder.")
    values = {
        "distribution": distribution,
        "module": module,
        "version": __version__,
        "group": GROUP,
    }
    files = {
        "setup.cfg": SETUP_CFG,
        "pyproject.toml": PYPROJECT,
        f"{module}.py": MODULE,
        f"tests/test_{module}.py": TEST,
    }
    (folder / "tests").mkdir(parents=True)
    for path, text in files.items():
        (folder / path).write_text(Template(text).substitute(values), encoding="utf-8")
    return folder
