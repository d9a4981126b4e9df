"""Plugins that cannot be used are named, never passed over."""

from __future__ import annotations

import logging
import types
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from sglang_mlx_plugin import hookimpl
from sglang_mlx_plugin.hooks import HookError, HookManager, Plugin, plugins

Make = Callable[..., Plugin]
HOOK = "sglang_mlx_resolve_max_running_requests"


def named(text: str) -> None:
    assert "plugin 'bad' (distribution bad-dist 3.2.1)" in text


def test_unknown_hook(vendor: Make) -> None:
    @hookimpl
    def sglang_mlx_resolve_max_running_request(limits: Any) -> int:
        return 1

    with pytest.raises(HookError) as caught:
        HookManager([vendor("bad", sglang_mlx_resolve_max_running_request)])
    named(str(caught.value))
    assert "sglang_mlx_resolve_max_running_request, which is not a hook" in str(caught.value)
    assert f"{HOOK}," in str(caught.value)


def test_unknown_hook_may_be_optional(vendor: Make) -> None:
    """A vendor may implement a hook that only another version of ours has."""

    @hookimpl(optionalhook=True)
    def sglang_mlx_of_tomorrow(limits: Any) -> int:
        return 1

    manager = HookManager([vendor("good", sglang_mlx_of_tomorrow)])
    assert [found.state for found in manager.implementations if not found.plugin.builtin] == [
        "unknown hook"
    ]


def test_unknown_argument(vendor: Make) -> None:
    @hookimpl
    def sglang_mlx_resolve_max_running_requests(limit: Any) -> int:
        return 1

    with pytest.raises(HookError, match="limit") as caught:
        HookManager([vendor("bad", sglang_mlx_resolve_max_running_requests)])
    named(str(caught.value))


def test_forgotten_decorator(vendor: Make) -> None:
    def sglang_mlx_resolve_max_running_requests(limits: Any) -> int:
        return 1

    with pytest.raises(HookError, match="without the decorator") as caught:
        HookManager([vendor("bad", sglang_mlx_resolve_max_running_requests)])
    named(str(caught.value))


@pytest.mark.parametrize("option", ["trylast", "hookwrapper"])
def test_options_that_would_do_nothing_good(vendor: Make, option: str) -> None:
    @hookimpl(**{option: True})
    def sglang_mlx_resolve_max_running_requests(limits: Any) -> Any:
        yield

    with pytest.raises(HookError, match=option) as caught:
        HookManager([vendor("bad", sglang_mlx_resolve_max_running_requests)])
    named(str(caught.value))


def test_wrapper_that_does_not_yield(vendor: Make) -> None:
    @hookimpl(wrapper=True)
    def sglang_mlx_resolve_max_running_requests(limits: Any) -> int:
        return 1

    with pytest.raises(HookError) as caught:
        HookManager([vendor("bad", sglang_mlx_resolve_max_running_requests)])
    named(str(caught.value))


class FakeDistribution:
    """As much of a distribution as an entry point tells of."""

    def __init__(self, name: str) -> None:
        self.name, self.version = name, "3.2.1"


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Offers modules as entry points: (plugin, distribution, source) each."""

    def offer(*found: tuple[str, str, str]) -> None:
        monkeypatch.syspath_prepend(str(tmp_path))
        entries = []
        for number, (name, distribution, source) in enumerate(found):
            module = f"offered_{tmp_path.name.replace('-', '_')}_{number}"
            (tmp_path / f"{module}.py").write_text(source)
            entry = EntryPoint(name, module, plugins.GROUP)
            vars(entry)["dist"] = FakeDistribution(distribution)
            entries.append(entry)
        monkeypatch.setattr(plugins, "entry_points", lambda group: EntryPoints(entries))

    return offer


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such"),
        ("raise OSError('the driver is missing')", "OSError: the driver is missing"),
        ("def broken(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_import_that_raises(enter: Callable[..., None], source: str, reason: str) -> None:
    enter(("bad", "bad-dist", source))
    with pytest.raises(HookError) as caught:
        HookManager.from_environ({})
    named(str(caught.value))
    assert reason in str(caught.value)
    assert "SGLANG_MLX_DISABLE_PLUGINS=bad" in str(caught.value)


@pytest.mark.parametrize("name", ["bad", "bad-dist", "Bad_Dist", "other, bad ,"])
def test_disabled_plugin_is_not_imported(enter: Callable[..., None], name: str) -> None:
    enter(("bad", "bad-dist", "raise OSError"))
    manager = HookManager.from_environ({"SGLANG_MLX_DISABLE_PLUGINS": name})
    assert [plugin.name for plugin in manager.disabled] == ["bad"]
    assert all(plugin.builtin for plugin in manager.plugins)


def test_disabling_what_is_not_there_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        HookManager.from_environ({"SGLANG_MLX_DISABLE_PLUGINS": "nobody"})
    assert "'nobody', which is not installed" in caplog.text


def test_two_plugins_of_one_name(enter: Callable[..., None]) -> None:
    enter(("same", "one-dist", ""), ("same", "two-dist", ""))
    with pytest.raises(HookError) as caught:
        HookManager.from_environ({})
    for part in ("'same'", "one-dist 3.2.1", "two-dist 3.2.1", "SGLANG_MLX_DISABLE_PLUGINS="):
        assert part in str(caught.value)
    assert HookManager.from_environ({"SGLANG_MLX_DISABLE_PLUGINS": "two-dist"}).plugins


def test_entry_points_order_does_not_depend_on_the_path(enter: Callable[..., None]) -> None:
    source = (
        "from sglang_mlx_plugin import hookimpl\n"
        "@hookimpl(tryfirst={})\n"
        "def sglang_mlx_resolve_max_running_requests(): return None\n"
    )
    found = [
        ("z", "a-dist", source.format(False)),
        ("y", "b-dist", source.format(True)),
        ("x", "c-dist", source.format(False)),
    ]
    orders = []
    for each in (found, found[::-1]):
        enter(*each)
        order = HookManager.from_environ({}).call_order(HOOK)
        orders.append([found.plugin.name for found in order])
    assert orders[0] == orders[1] == ["y", "z", "x", "builtin.max_running_requests"]


def test_module_that_is_no_module_at_all() -> None:
    """An entry point may name any object; one without hooks registers and does nothing."""
    manager = HookManager([Plugin("empty", "empty-dist", "1", types.SimpleNamespace())])
    assert [found.plugin.builtin for found in manager.call_order(HOOK)] == [True]
