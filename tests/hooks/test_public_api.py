"""A break of what vendors lean on is a decision, not an accident."""

from __future__ import annotations

from tests.support import public_api
from tests.support.vendors import run_python, vendor_environ


def test_interface_is_the_recorded_one() -> None:
    recorded = public_api.RECORD.read_text(encoding="utf-8")
    assert public_api.as_text(public_api.collect()) == recorded, (
        f"The public interface changed. If it is meant so: {public_api.REMEDY}"
    )


def test_markers_are_cheap_to_import() -> None:
    """A vendor's module is imported in every process: the decorator must not cost MLX."""
    done = run_python(
        "import sys\n"
        "import sglang_mlx_plugin\n"
        "assert 'pluggy' not in sys.modules\n"
        "from sglang_mlx_plugin import hookimpl, hookspec, hookspecs\n"
        "from sglang_mlx_plugin.hooks import types, get_hooks\n"
        "get_hooks()\n"
        "heavy = {'mlx', 'mlx_lm', 'numpy', 'sglang', 'torch'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))\n",
        vendor_environ(),
    )
    assert done.stdout == "[]\n", done.stderr
