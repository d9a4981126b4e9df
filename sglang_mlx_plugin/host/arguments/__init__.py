"""SGLang's server arguments on MLX: the register, the defaults, and the refusals.

`ARGUMENTS` is the register: every field of every supported release's `ServerArgs` stands in
it once: *honoured* (and by whom), *irrelevant* (and why it cannot matter) or *refused* (why,
and what to do instead). A test compares it with the installed release, so a field that a new
release adds turns the suite red until someone has decided.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from .. import releases
from ..errors import stop_launch
from ..rules import Honoured, Irrelevant, Refused, Rule
from .honoured import HONOURED
from .irrelevant import IRRELEVANT
from .refused import REFUSED

__all__ = [
    "ARGUMENTS",
    "Honoured",
    "Irrelevant",
    "Refused",
    "Rule",
    "flag_of",
    "left_at_default",
    "refuse_unsupported",
    "server_args_defaults",
    "warn_irrelevant",
]

logger = logging.getLogger(__name__)

ARGUMENTS: dict[str, Rule] = {**HONOURED, **IRRELEVANT, **REFUSED}

# Prompt tokens that one prefill step computes. On the CPU a step of 512 takes a good part of
# a second, during which running requests wait; a GPU wants longer ones.
_CHUNK = {"cpu": 512, "metal": 2048, "cuda": 4096}
# The share of the device for weights and KV. A Mac's working-set limit already leaves room
# for the system; the CPU's limit is all of the machine's memory.
_STATIC = {"cpu": 0.5, "metal": 0.85, "cuda": 0.85}


def server_args_defaults(server_args: Any) -> dict[str, object]:
    """The built-in answer of the hook ``sglang_mlx_server_args_defaults``.

    Args:
        server_args: SGLang's arguments as the user gave them.

    Returns:
        Field name to value, for fields that the user left alone.
    """
    from sglang_mlx_plugin import entrypoints

    kind = entrypoints.device_choice().kind
    replicas = max(1, server_args.dp_size)
    return {
        # torch's side is never run; these are the choices that need no kernel package.
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "disable_custom_all_reduce": True,
        # The language model of a multimodal model is served as text.
        "enable_multimodal": False,
        # The scheduler polls without pause otherwise: a core, or a laptop's battery, for nothing.
        "sleep_on_idle": True,
        # A long prompt is computed beside the running requests, a chunk a step; SGLang's own
        # default computes all of its chunks first, and every stream stands still meanwhile.
        "enable_mixed_chunk": True,
        "chunked_prefill_size": _CHUNK[kind],
        # Replicas share the one device.
        "mem_fraction_static": round(_STATIC[kind] / replicas, 3),
    }


def refuse_unsupported(server_args: Any) -> None:
    """Stop the launch at the first argument that MLX cannot honour.

    Args:
        server_args: SGLang's arguments as the user gave them.

    Raises:
        LaunchError: what was asked, why it cannot be, and what to do instead.
    """
    for name, value in _set_by_user(server_args):
        rule = ARGUMENTS.get(name)
        if isinstance(rule, Refused) and not rule.accepts(value):
            asked = flag_of(name) if value is True else f"{flag_of(name)} {_show(value)}"
            stop_launch(f"{asked}: {rule.why}; {rule.instead}.")
    running = server_args.max_running_requests
    if running is not None and running < 1:
        # The resolver says the same, but only when the model is loaded.
        stop_launch(
            f"--max-running-requests {running} lets no request run; give 1 or more, or leave it "
            "out to size it from memory."
        )


def warn_irrelevant(server_args: Any) -> None:
    """Say of each argument that the user set and that cannot matter here, why it cannot."""
    for name, value in _set_by_user(server_args):
        rule = ARGUMENTS.get(name)
        if isinstance(rule, Irrelevant) and not rule.silent:
            logger.warning(
                "%s %s has no effect on MLX, because %s.", flag_of(name), _show(value), rule.why
            )
        elif rule is None:
            logger.warning(
                "%s is new to this plugin, which does not know whether MLX honours it.",
                flag_of(name),
            )


def left_at_default(server_args: Any, values: Mapping[str, object]) -> dict[str, object]:
    """Those of `values` whose field the user left at SGLang's own default."""
    defaults = releases.argument_defaults(server_args)
    return {
        name: value
        for name, value in values.items()
        if not _differs(getattr(server_args, name), defaults.get(name))
    }


def flag_of(name: str) -> str:
    """The command line's spelling of a field."""
    return "--" + name.lstrip("_").replace("_", "-")


def _set_by_user(server_args: Any) -> Iterator[tuple[str, Any]]:
    for name, default in releases.argument_defaults(server_args).items():
        value = getattr(server_args, name)
        if not name.startswith("_") and _differs(value, default):
            yield name, value


def _differs(value: Any, default: Any) -> bool:
    """Whether the user asked for something; an empty value asks for nothing."""
    return value != default and bool(value or default)


def _show(value: Any) -> str:
    text = str(value) if isinstance(value, str | int | float) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
