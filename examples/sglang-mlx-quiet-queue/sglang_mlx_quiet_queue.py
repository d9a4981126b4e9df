"""Runs half as many requests at once as the memory would allow, and never more than a few.

Each request of a small batch gets its tokens faster; the others wait in SGLang's queue. One
hook is overridden, everything else stays built in.

``QUIET_QUEUE_MAX`` in the environment sets the most requests (8 by default).
"""

from __future__ import annotations

import os

from sglang_mlx_plugin import hookimpl
from sglang_mlx_plugin.hooks.types import ConcurrencyLimits
from sglang_mlx_plugin.host.concurrency import resolve_max_running_requests

DEFAULT_MAX = 8


@hookimpl
def sglang_mlx_resolve_max_running_requests(limits: ConcurrencyLimits) -> int:
    """Half of the built-in rule's answer, from 1 to ``QUIET_QUEUE_MAX``.

    The built-in is called, not copied: what it refuses stays refused, in its words.
    """
    most = int(os.environ.get("QUIET_QUEUE_MAX", DEFAULT_MAX))
    return max(1, min(most, resolve_max_running_requests(limits) // 2))
