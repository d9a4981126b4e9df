"""The radix tree's component for auxiliary state.

SGLang's tree keeps, beside the KV slots of a prefix, one state for the prefix's end. This
component takes those states from running requests: at the ends of prompt chunks and of
prompts a snapshot in a slot of its own, at the end of an answer the request's own slot. A hit
gives the request the deepest state on its path, by reference, and what follows is computed.

SGLang's overlapped scheduler asks for the state of a step when the next step has been
launched already, so the state is looked for at exactly the length that the tree names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, zero_match_result
from sglang.srt.mem_cache.unified_cache.components.mamba import MambaComponent
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sglang_mlx_plugin.host.auxiliary_pool import AuxiliaryRequestPool

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.base_prefix_cache import (
        InsertParams,
        InsertResult,
        MatchPrefixParams,
        MatchResult,
    )
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams

__all__ = ["AuxiliaryComponent", "AuxiliaryRadixCache"]


class AuxiliaryComponent(MambaComponent):
    """Moves states between requests and the tree; the tree's own rules are upstream's."""

    def __init__(self, cache: UnifiedRadixCache, params: CacheInitParams) -> None:
        if not isinstance(params.req_to_token_pool, AuxiliaryRequestPool):
            raise TypeError(
                f"auxiliary state needs {AuxiliaryRequestPool.__name__}, not "
                f"{type(params.req_to_token_pool).__name__}"
            )
        super().__init__(cache, params)
        self._pool = params.req_to_token_pool

    def finalize_match_result_in_cache(
        self, params: MatchPrefixParams, result: MatchResult
    ) -> MatchResult:
        """Give the request the state at the end of its hit.

        The state goes over at once, by reference, so that nothing happens to it when the
        tree evicts the node before the request runs.
        """
        if not params.cow_mamba:
            return result
        source = self.tree_core.get_component_device_value(
            result.best_match_node, self.component_type
        )
        if source is None:
            return result
        req = params.req
        if not req.kv.holds_mamba:
            lock = self.cache.inc_lock_ref(result.best_match_node)
            slot = self._take_slot()
            self.cache.dec_lock_ref(result.best_match_node, lock.to_dec_params())
            if slot is None:
                return zero_match_result(self.cache, result, extra_key=req.extra_key)
            req.kv.mamba_pool_idx = slot[0]
        self._pool.mamba_pool.copy_from(source, req.kv.mamba_pool_idx.reshape(1))
        return result

    def prepare_for_caching_req(
        self, req: Req, insert_params: InsertParams, token_ids_len: int, is_finished: bool
    ) -> int | None:
        """Put the state that goes into the tree into a slot.

        Returns:
            Tokens that it stands for; 0 if there is none, so that nothing is inserted.
        """
        store = self._pool.mamba_pool.store
        if store is None or not req.kv.holds_mamba:
            return 0
        live = int(req.kv.mamba_pool_idx)
        if is_finished:
            length = store.settle(live, token_ids_len)
            if length:
                insert_params.mamba_value = req.kv.mamba_pool_idx.reshape(1).clone()
            return length
        slot = self._take_slot()
        if slot is None:
            return 0
        if not store.snapshot(live, int(slot), token_ids_len):
            self._pool.mamba_allocator.free(slot)
            return 0
        insert_params.mamba_value = slot
        return token_ids_len

    def cleanup_after_caching_req(
        self,
        req: Req,
        is_finished: bool,
        insert_result: InsertResult | None = None,
        insert_params: InsertParams | None = None,
    ) -> None:
        """Settle who owns the slot: the tree if it took the state, else the request."""
        allocator = self._pool.mamba_allocator
        value = insert_params.mamba_value if insert_params is not None else None
        if value is not None and insert_result is not None and not insert_result.mamba_exist:
            allocator.hand_to_tree(value)
            if is_finished:
                req.kv.mamba_pool_idx = None
        elif value is not None and not is_finished:
            allocator.free(value)
        if is_finished and req.kv.holds_mamba and not self._pool.owns_auxiliary_state_release:
            self._pool.free_mamba_cache(req)

    def _take_slot(self) -> torch.Tensor | None:
        """A free slot: int64 (1,), if need be one of the tree's; None if all are in use."""
        slot = self._pool.mamba_allocator.alloc(1)
        if slot is None:
            self.cache.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
            slot = self._pool.mamba_allocator.alloc(1)
        return slot

    def _free_mamba_value(self, mamba_value: torch.Tensor) -> None:
        self._pool.mamba_allocator.free_from_tree(mamba_value)


class AuxiliaryRadixCache(UnifiedRadixCache):
    """The tree, taking states from inside a prompt too where the engine kept one."""

    def __init__(self, params: CacheInitParams) -> None:
        super().__init__(params)
        pool = params.req_to_token_pool
        # Before 0.5.22 the tree's own method has another name, and does without.
        pool.keeps_borders = not self.disable and hasattr(UnifiedRadixCache, "checkpoint_into_tree")

    def checkpoint_into_tree(self, req: Req, *, up_to: int, **kwargs: Any) -> None:
        """Insert what the request has computed, first up to the border that it kept.

        The border's part is inserted as that of a request that goes on, finished or not: the
        request's own slot goes with the whole.
        """
        store = self.req_to_token_pool.mamba_pool.store
        if store is not None and req.kv.holds_mamba and not self.disable:
            border = store.border(int(req.kv.mamba_pool_idx))
            if req.kv.cache_protected_len < border < up_to:
                reason, req.finished_reason = req.finished_reason, None
                try:
                    super().checkpoint_into_tree(req, up_to=border)
                finally:
                    req.finished_reason = reason
        super().checkpoint_into_tree(req, up_to=up_to, **kwargs)
