"""Implements every hook by calling the built-in, and records each call.

Records are JSON lines in the file that ``SGLANG_MLX_EVERYTHING_LOG`` names: the hook, the
process, the thread. A test reads them to see that a hook was asked where and as often as its
spec says.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable
from typing import Any

from sglang_mlx_plugin import hookimpl
from sglang_mlx_plugin.hooks import defaults

LOG = "SGLANG_MLX_EVERYTHING_LOG"


def record(hook: str) -> None:
    """Append one line; a single write, so that processes do not mix theirs."""
    path = os.environ.get(LOG)
    if path is None:
        return
    line = {"hook": hook, "process": os.getpid(), "thread": threading.current_thread().name}
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def recorded(builtin: Callable[..., Any]) -> Callable[..., Any]:
    """The built-in implementation as this vendor's own."""

    # Not all that `wraps` copies: the built-in's marker says trylast, and its module is ours.
    @functools.wraps(builtin, assigned=("__name__", "__qualname__", "__doc__"), updated=())
    def implementation(*arguments: Any) -> Any:
        record(builtin.__name__)
        return builtin(*arguments)

    return hookimpl(implementation)


sglang_mlx_device = recorded(defaults.device.sglang_mlx_device)
sglang_mlx_server_args_defaults = recorded(defaults.server_args.sglang_mlx_server_args_defaults)
sglang_mlx_load_model = recorded(defaults.model.sglang_mlx_load_model)
sglang_mlx_create_kv_store = recorded(defaults.kv_store.sglang_mlx_create_kv_store)
sglang_mlx_create_attention = recorded(defaults.attention.sglang_mlx_create_attention)
sglang_mlx_create_swiglu = recorded(defaults.swiglu.sglang_mlx_create_swiglu)
sglang_mlx_create_logits_processor = recorded(
    defaults.logits_processor.sglang_mlx_create_logits_processor
)
sglang_mlx_create_sampler = recorded(defaults.sampler.sglang_mlx_create_sampler)
sglang_mlx_create_request_pool = recorded(defaults.request_pool.sglang_mlx_create_request_pool)
sglang_mlx_auxiliary_slots_per_request = recorded(
    defaults.auxiliary_slots.sglang_mlx_auxiliary_slots_per_request
)
sglang_mlx_resolve_max_running_requests = recorded(
    defaults.max_running_requests.sglang_mlx_resolve_max_running_requests
)
sglang_mlx_alloc_memory_pool = recorded(defaults.memory_pool.sglang_mlx_alloc_memory_pool)
