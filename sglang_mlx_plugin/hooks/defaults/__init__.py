"""The built-in implementations: what the package does where no vendor answers.

One short module for each hook. Each imports the room that does the work when it is called,
never before, and is ``trylast``; a vendor's plugin is a file like these.
"""

from __future__ import annotations

from types import ModuleType

from . import (
    attention,
    auxiliary_slots,
    device,
    kv_store,
    logits_processor,
    max_running_requests,
    memory_pool,
    model,
    request_pool,
    sampler,
    server_args,
    swiglu,
)

__all__ = ["MODULES"]

MODULES: tuple[ModuleType, ...] = (
    device,
    server_args,
    model,
    kv_store,
    attention,
    swiglu,
    logits_processor,
    sampler,
    auxiliary_slots,
    max_running_requests,
    request_pool,
    memory_pool,
)
