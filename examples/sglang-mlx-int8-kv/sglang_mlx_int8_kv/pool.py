"""The auxiliary-state pool of hybrid models, with an account of the slots in use."""

from __future__ import annotations

import logging

import torch

from sglang_mlx_plugin.hooks.types import RequestPoolSpec
from sglang_mlx_plugin.host.auxiliary_pool import AuxiliaryAllocator, AuxiliaryRequestPool

logger = logging.getLogger(__name__)


class Ledger(AuxiliaryAllocator):
    """Says in the log whenever more slots are in use than ever before."""

    most = 0

    def alloc(self, need_size: int) -> torch.Tensor | None:
        taken = super().alloc(need_size)
        used = self.size - self.available_size()
        if used > self.most:
            self.most = used
            size = used * self._slots.slot_bytes
            logger.info("int8-kv: %d of %d auxiliary slots, %d bytes", used, self.size, size)
        return taken


def create(spec: RequestPoolSpec) -> AuxiliaryRequestPool:
    pool = AuxiliaryRequestPool.of(spec)
    pool.mamba_allocator = Ledger(pool.mamba_pool, spec.device)
    return pool
