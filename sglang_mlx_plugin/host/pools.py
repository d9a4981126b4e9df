"""SGLang's bookkeeping pools, without its KV memory.

SGLang numbers token slots and request rows; MLX holds what the numbers stand for. These
pools are the numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from sglang.srt.mem_cache.memory_pool import KVCache, ReqToTokenPool

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import RequestPoolSpec

__all__ = ["SlotNumbers", "create_request_pool"]


class SlotNumbers(KVCache):
    """SGLang's `KVCache` as its scheduler and allocator read it: a size and nothing behind.

    The keys and values are MLX's (`sglang_mlx_plugin.engine.kv_store`); whoever asks this
    class for a buffer asks the wrong device.
    """

    def __init__(
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        layer_num: int,
        device: str,
        enable_memory_saver: bool,
        start_layer: int | None = None,
        end_layer: int | None = None,
        allocation_label: str | None = None,
        *,
        bytes_per_token: int = 0,
    ) -> None:
        super().__init__(
            size, page_size, dtype, layer_num, device, enable_memory_saver, start_layer, end_layer
        )
        self.bytes_per_token = bytes_per_token
        self.mem_usage = size * bytes_per_token / (1 << 30)

    def get_kv_size_bytes(self) -> tuple[int, int]:
        """Bytes of keys and of values at full capacity (halves, for the log)."""
        half = self.size * self.bytes_per_token // 2
        return half, half

    def get_key_buffer(self, layer_id: int) -> NoReturn:
        """Refused: there is no torch buffer."""
        self._refuse()

    def get_value_buffer(self, layer_id: int) -> NoReturn:
        """Refused: there is no torch buffer."""
        self._refuse()

    def get_kv_buffer(self, layer_id: int) -> NoReturn:
        """Refused: there is no torch buffer."""
        self._refuse()

    def set_kv_buffer(self, layer: Any, loc: Any, cache_k: Any, cache_v: Any) -> NoReturn:
        """Refused: there is no torch buffer."""
        self._refuse()

    @staticmethod
    def _refuse() -> NoReturn:
        raise RuntimeError(
            "SGLang asked for a torch KV buffer, but MLX holds the keys and values: a feature "
            "that moves KV through torch is switched on and does not work on MLX."
        )


def create_request_pool(spec: RequestPoolSpec) -> ReqToTokenPool:
    """Build the pool that `spec` asks for.

    Full-attention models take SGLang's own `ReqToTokenPool`; hybrid ones take one that also
    hands out auxiliary-state slots.
    """
    if spec.is_hybrid:
        from sglang_mlx_plugin.host.auxiliary_pool import AuxiliaryRequestPool

        return AuxiliaryRequestPool.of(spec)
    return ReqToTokenPool(
        size=spec.size,
        max_context_len=spec.max_context_len,
        device=spec.device,
        enable_memory_saver=spec.enable_memory_saver,
    )
