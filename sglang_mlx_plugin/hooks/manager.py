"""The plugin manager: built-ins and vendors, registered alike, each answer attributed.

Order. pluggy calls what was registered last first. Built-ins are registered first and are
``trylast``, so every vendor comes before them. Vendors are registered so that they are
called in the order of their distributions' names; a vendor with ``tryfirst`` comes before
one without. Two vendors for one hook are refused unless exactly one says ``tryfirst`` or
the user has chosen with ``SGLANG_MLX_HOOKS``, because an order that nobody decided would
decide which code serves.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import pluggy

from sglang_mlx_plugin._env import is_set

from . import specs
from .defaults import MODULES
from .errors import HookError
from .markers import PROJECT, hookimpl
from .monitor import Monitor
from .plugins import Implementation, Plugin, load_vendors, normalize

__all__ = ["HookManager", "get_manager"]

logger = logging.getLogger(__name__)

ENV_DISABLE = "SGLANG_MLX_DISABLE_PLUGINS"
ENV_CHOOSE = "SGLANG_MLX_HOOKS"
ENV_TRACE = "SGLANG_MLX_TRACE_HOOKS"


@functools.lru_cache(maxsize=1)
def get_manager() -> HookManager:
    """The process's manager, built from the environment and the installed vendors.

    Raises:
        HookError: If a vendor cannot be used; the launch should stop with its text.
    """
    return HookManager.from_environ(os.environ)


class _Proxy:
    """What pluggy registers for a plugin: its active implementations, tracked."""


class HookManager:
    """Built-in and vendors' plugins of one process.

    Args:
        vendors: Plugins beside the built-in ones.
        choices: Hook name to the one distribution (or plugin) whose implementation is used.
        trace: Whether to log every call.

    Attributes:
        plugins: Every plugin, built-ins first.
        disabled: Plugins that the user disabled; they were not imported.
        implementations: Every implementation that was found, those never called included.
    """

    def __init__(
        self,
        vendors: list[Plugin],
        *,
        choices: Mapping[str, str] | None = None,
        trace: bool = False,
        disabled: list[Plugin] | None = None,
    ) -> None:
        self._choices = dict(choices or {})
        self._monitor = Monitor(trace)
        self.plugins = [Plugin.ours(module) for module in MODULES]
        self.disabled = list(disabled or [])
        self.implementations: list[Implementation] = []
        self._active: dict[Callable[..., Any], Implementation] = {}
        self.pluggy = pluggy.PluginManager(PROJECT)
        self.pluggy.add_hookspecs(specs)
        for plugin in self.plugins:
            self._register(plugin)
        # In reverse, since pluggy calls the last one first.
        for plugin in reversed(vendors):
            self._register(plugin)
        self.plugins += vendors
        self._check_choices()
        self._check_order()
        self.pluggy.add_hookcall_monitoring(self._monitor.before, self._monitor.after)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> HookManager:
        """Load the installed vendors as the environment says."""
        names = [name for name in environ.get(ENV_DISABLE, "").split(",") if name.strip()]
        vendors, disabled = load_vendors(names)
        for name in names:
            if not any(plugin.goes_by(name) for plugin in disabled):
                logger.warning("%s names %r, which is not installed.", ENV_DISABLE, name.strip())
        choices = parse_choices(environ.get(ENV_CHOOSE, ""))
        return cls(vendors, choices=choices, trace=is_set(ENV_TRACE, environ), disabled=disabled)

    @property
    def hook_names(self) -> tuple[str, ...]:
        """Every specified hook."""
        return tuple(specs.__all__)

    def call_order(self, hook: str) -> list[Implementation]:
        """Implementations of `hook` in the order of calls: wrappers, vendors, built-in."""
        caller = getattr(self.pluggy.hook, hook)
        ordered = [self._active[impl.function] for impl in reversed(caller.get_hookimpls())]
        return sorted(ordered, key=lambda implementation: not implementation.wrapper)

    def winner(self, hook: str) -> Implementation:
        """Who is asked first; its answer is taken unless it is None."""
        return next(found for found in self.call_order(hook) if not found.wrapper)

    def ask(self, hook: str, **arguments: Any) -> tuple[Any, Implementation]:
        """Call a hook.

        Returns:
            The answer, not None, and whose it is.

        Raises:
            HookError: If a vendor raised, or nobody answered.
        """
        try:
            answer = getattr(self.pluggy.hook, hook)(**arguments)
        except Exception as error:
            if error is self._monitor.last.raised:
                raise
            # pluggy itself refused what a wrapper did, such as a second yield.
            wrappers = [str(each.plugin) for each in self.call_order(hook) if each.wrapper]
            raise HookError(
                f"Hook {hook}: a wrapper failed, one of {', '.join(wrappers)}: {error}"
            ) from error
        answered_by = self._monitor.last.answered_by
        if answer is None or answered_by is None:
            raise HookError(
                f"Hook {hook} got no answer: {self.call_order(hook)[0]} or another wrapper "
                "turned it into None."
            )
        return answer, answered_by

    def _register(self, plugin: Plugin) -> None:
        proxy = _Proxy()
        for attribute in dir(plugin.module):
            options = self.pluggy.parse_hookimpl_opts(plugin.module, attribute)
            if options is None:
                _refuse_unmarked(plugin, attribute)
                continue
            function = getattr(plugin.module, attribute)
            hook = options.get("specname") or attribute
            found = Implementation(
                hook=hook,
                plugin=plugin,
                source=f"{function.__module__}:{function.__qualname__}",
                wrapper=bool(options.get("wrapper")),
                tryfirst=bool(options.get("tryfirst")),
                state=self._state(hook, plugin, bool(options.get("wrapper"))),
            )
            self._refuse_options(found, function, options)
            self.implementations.append(found)
            if found.state != "active":
                continue
            tracked = self._monitor.track(function, found)
            self._active[tracked] = found
            setattr(proxy, attribute, hookimpl(**options)(tracked))
        try:
            self.pluggy.register(proxy, name=plugin.name)
        except pluggy.PluginValidationError as error:
            raise HookError(f"The {plugin} does not fit its hook: {error}") from error

    def _state(self, hook: str, plugin: Plugin, wrapper: bool) -> str:
        if hook not in specs.__all__:
            return "unknown hook"
        chosen = self._choices.get(hook)
        if chosen is None or plugin.builtin or wrapper or plugin.goes_by(chosen):
            return "active"
        return "not chosen"

    def _refuse_options(
        self, found: Implementation, function: Callable[..., Any], options: Mapping[str, Any]
    ) -> None:
        if found.state == "unknown hook" and not options.get("optionalhook"):
            raise HookError(
                f"The {found.plugin} implements {found.hook}, which is not a hook; hooks are "
                f"{', '.join(specs.__all__)}. Mark it hookimpl(optionalhook=True) if it is for "
                "another version of sglang-mlx-plugin."
            )
        if found.plugin.builtin:
            return
        if options.get("trylast"):
            raise HookError(
                f"The {found.plugin} marks {found.hook} as trylast, which puts it after the "
                "built-in, where it would never be asked. Remove trylast."
            )
        if options.get("hookwrapper"):
            raise HookError(
                f"The {found.plugin} marks {found.hook} as hookwrapper, pluggy's old style. Use "
                "hookimpl(wrapper=True)."
            )
        if found.wrapper and not inspect.isgeneratorfunction(function):
            raise HookError(
                f"The {found.plugin} marks {found.hook} as wrapper, which must be a generator: "
                "answer = yield, then return answer."
            )

    def _check_choices(self) -> None:
        for hook, chosen in self._choices.items():
            if hook not in specs.__all__:
                raise HookError(
                    f"{ENV_CHOOSE} chooses for {hook!r}, which is not a hook; hooks are "
                    f"{', '.join(specs.__all__)}."
                )
            own = [found for found in self.implementations if found.hook == hook]
            own = [found for found in own if not found.wrapper]
            if not any(found.plugin.goes_by(chosen) for found in own):
                names = ", ".join(sorted({found.plugin.distribution for found in own}))
                raise HookError(
                    f"{ENV_CHOOSE} chooses {chosen!r} for {hook}, which does not implement it; "
                    f"installed implementations are those of {names}."
                )

    def _check_order(self) -> None:
        for hook in specs.__all__:
            rivals = [
                found
                for found in self.call_order(hook)
                if not found.wrapper and not found.plugin.builtin
            ]
            if len(rivals) < 2 or sum(found.tryfirst for found in rivals) == 1:
                continue
            firsts = sum(found.tryfirst for found in rivals)
            names = " and ".join(str(found.plugin) for found in rivals)
            raise HookError(
                f"Hook {hook} is implemented by {names}, and "
                f"{'more than one says' if firsts else 'none says'} tryfirst, so nothing decides "
                f"which answers. Choose: {ENV_CHOOSE}={hook}="
                f"{normalize(rivals[0].plugin.distribution)}, or leave one out: "
                f"{ENV_DISABLE}={rivals[-1].plugin.name}."
            )


def parse_choices(text: str) -> dict[str, str]:
    """Read ``hook=distribution,…``.

    Raises:
        HookError: If a part is not of that form, or a hook is named twice.
    """
    choices: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        hook, equals, name = (piece.strip() for piece in part.partition("="))
        if not (hook and equals and name):
            raise HookError(f"{ENV_CHOOSE} has {part!r}, where hook=distribution was expected.")
        if hook in choices:
            raise HookError(f"{ENV_CHOOSE} chooses twice for {hook}.")
        choices[hook] = name
    return choices


def _refuse_unmarked(plugin: Plugin, attribute: str) -> None:
    """Refuse a hook's function without its decorator: pluggy would ignore it in silence."""
    if attribute not in specs.__all__:
        return
    function = inspect.getattr_static(plugin.module, attribute)
    if inspect.isfunction(function):
        raise HookError(
            f"The {plugin} defines {attribute} without the decorator that makes it a hook "
            "implementation: from sglang_mlx_plugin import hookimpl, and @hookimpl above it."
        )
