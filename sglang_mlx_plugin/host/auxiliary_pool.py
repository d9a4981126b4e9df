"""The request-to-token pool of models with auxiliary state.

It hands out, beside SGLang's rows, slots of the engine's auxiliary store: one live slot for
each request, and the slots in which the radix tree keeps snapshots. The numbers are here; the
states behind them are MLX's (`sglang_mlx_plugin.engine.aux_store`).

A slot has one owner at any time, and only its owner may free it:

* a request, from `AuxiliaryRequestPool.alloc` or a prefix hit on;
* the radix tree, once a request has handed its slot over.

With the radix cache on, the tree's component frees a finished request's slot or takes it
over; with it off, the pool frees it in ``free(req)``. Never both.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool, ReqToTokenPool

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

    from sglang_mlx_plugin.engine.aux_store import AuxStore
    from sglang_mlx_plugin.hooks.types import RequestPoolSpec

__all__ = ["AuxiliaryAllocator", "AuxiliaryRequestPool", "AuxiliarySlots"]


class Owner(Enum):
    """Who may free a slot."""

    NOBODY = "free"
    REQUEST = "a running request's"
    TREE = "the radix tree's"


class AuxiliarySlots:
    """What stands behind the slot numbers: upstream's ``mamba_pool``.

    Attributes:
        size: Slots, numbered 1..size.
        slot_bytes: Bytes of one slot.
        store: The engine's store, once there is an engine.
    """

    # A CUDA ring buffer that upstream's tree component asks for; there is none.
    replayssm_write_pos = None
    replayssm_spec_write_pos = None

    def __init__(self, size: int, slot_bytes: int = 0) -> None:
        self.size = size
        self.slot_bytes = slot_bytes
        self.store: AuxStore | None = None

    @property
    def mem_usage(self) -> float:
        """GiB of all slots in use at once."""
        return self.size * self.slot_bytes / (1 << 30)

    def clear_slots(self, indices: torch.Tensor) -> None:
        """Forget the states of some slots."""
        if self.store is not None:
            self.store.clear(indices.tolist())

    def clear(self) -> None:
        """Forget all states."""
        if self.store is not None:
            self.store.clear_all()

    def copy_from(self, src_indices: torch.Tensor, dst_indices: torch.Tensor) -> None:
        """Let each target slot go on from its source slot's state; only references move."""
        if self.store is not None:
            for source, target in zip(src_indices.tolist(), dst_indices.tolist(), strict=True):
                self.store.fork(source, target)

    fork_from = copy_from

    def get_cpu_copy(self, indices: torch.Tensor) -> NoReturn:
        """Refused: states are MLX's, and disaggregation is refused at start-up."""
        raise RuntimeError("SGLang asked for a torch copy of auxiliary state, but MLX holds it")


class AuxiliaryAllocator:
    """Hands out slots 1..size and knows who owns each: upstream's ``mamba_allocator``.

    Args:
        slots: What the numbers stand for; a freed slot is cleared there.
        device: torch device of the indices.
    """

    def __init__(self, slots: AuxiliarySlots, device: str) -> None:
        self.size = slots.size
        self.device = device
        self._slots = slots
        self._free: deque[int] = deque()
        self._owners: list[Owner] = []
        self.clear()

    @property
    def free_slots(self) -> torch.Tensor:
        """int64 indices of the free slots."""
        return torch.tensor(list(self._free), dtype=torch.int64, device=self.device)

    def available_size(self) -> int:
        """Free slots."""
        return len(self._free)

    def schedulable_available_size(self) -> int:
        """Free slots; all of them can be given."""
        return len(self._free)

    def owner(self, slot: int) -> Owner:
        """Who owns a slot."""
        return self._owners[slot]

    def alloc_group_begin(self, num_reqs: int) -> None:
        """Nothing to do: taking slots one at a time is as cheap."""

    def alloc_group_end(self) -> None:
        """Nothing to do, see `alloc_group_begin`."""

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Slots for a request: int64 (need_size,), or None if there are not enough."""
        if need_size > len(self._free):
            return None
        taken = [self._free.popleft() for _ in range(need_size)]
        for slot in taken:
            self._owners[slot] = Owner.REQUEST
        return torch.tensor(taken, dtype=torch.int64, device=self.device)

    def free(self, free_index: torch.Tensor) -> None:
        """Give back slots that requests own.

        Raises:
            RuntimeError: If a slot is free already, or the radix tree's.
        """
        self._release(free_index, Owner.REQUEST)

    def free_from_tree(self, free_index: torch.Tensor) -> None:
        """Give back slots that the radix tree owns.

        Raises:
            RuntimeError: If a slot is free already, or a request's.
        """
        self._release(free_index, Owner.TREE)

    def hand_to_tree(self, index: torch.Tensor) -> None:
        """The radix tree takes slots over from a request.

        Raises:
            RuntimeError: If a slot is not a request's.
        """
        for slot in self._checked(index, Owner.REQUEST, "handed to the radix tree"):
            self._owners[slot] = Owner.TREE

    def clear(self) -> None:
        """Everything is free, whoever owned it."""
        self._free = deque(range(1, self.size + 1))
        self._owners = [Owner.NOBODY] * (self.size + 1)
        self._slots.clear()

    def _release(self, index: torch.Tensor, owner: Owner) -> None:
        slots = self._checked(index, owner, "freed")
        for slot in slots:
            self._owners[slot] = Owner.NOBODY
        self._free.extend(slots)
        self._slots.clear_slots(index.reshape(-1))

    def _checked(self, index: torch.Tensor, owner: Owner, verb: str) -> list[int]:
        slots: list[int] = index.reshape(-1).tolist()
        for at, slot in enumerate(slots):
            if not 1 <= slot <= self.size:
                raise RuntimeError(f"auxiliary slot {slot} is not one of 1..{self.size}")
            if self._owners[slot] is not owner or slot in slots[:at]:
                raise RuntimeError(
                    f"auxiliary slot {slot} is {verb} as {owner.value}, but it is "
                    f"{self._owners[slot].value}"
                )
        return slots


class AuxiliaryRequestPool(HybridReqToTokenPool):
    """SGLang's rows, with an auxiliary slot for each request.

    It is upstream's `HybridReqToTokenPool` to whoever asks with ``isinstance``, and shares
    nothing of its torch buffers.

    Args:
        size: Requests that can run at once.
        max_context_len: Tokens a row can name.
        device: torch device of the table.
        enable_memory_saver: SGLang's flag.
        auxiliary_size: Slots, for live states and snapshots.
        owns_auxiliary_state_release: Whether ``free(req)`` frees the request's slot; so
            with the radix cache off.
        auxiliary_slot_bytes: Bytes of one slot.

    Raises:
        ValueError: If there are fewer slots than requests.
    """

    def __init__(
        self,
        *,
        size: int,
        max_context_len: int,
        device: str,
        enable_memory_saver: bool,
        auxiliary_size: int,
        owns_auxiliary_state_release: bool,
        auxiliary_slot_bytes: int = 0,
    ) -> None:
        if auxiliary_size < size:
            raise ValueError(
                f"{auxiliary_size} auxiliary slots are fewer than the {size} requests that may "
                "run at once"
            )
        # Not the parent's: that one allocates state in torch.
        super(HybridReqToTokenPool, self).__init__(
            size, max_context_len, device, enable_memory_saver
        )
        self.owns_auxiliary_state_release = owns_auxiliary_state_release
        # Whether the tree takes states from inside a prompt too.
        self.keeps_borders = False
        self.enable_memory_saver = enable_memory_saver
        self.start_layer = 0
        self.layer_transfer_counter = None
        self.mamba_pool = AuxiliarySlots(auxiliary_size, auxiliary_slot_bytes)
        self.mamba_allocator = AuxiliaryAllocator(self.mamba_pool, device)
        self.req_index_to_mamba_index_mapping = torch.zeros(
            size + 1, dtype=torch.int32, device=device
        )
        # Upstream's other ways of keeping snapshots; none is in use here.
        self.enable_mamba_extra_buffer = False
        self.enable_mamba_extra_buffer_lazy = False
        self.mamba_initial_tracking_slots = 0
        self.mamba_ping_pong_track_buffer_size = 1
        self.mamba_ckpt_pool = None

    @classmethod
    def of(cls, spec: RequestPoolSpec) -> AuxiliaryRequestPool:
        """The pool that `spec` asks for."""
        return cls(
            size=spec.size,
            max_context_len=spec.max_context_len,
            device=spec.device,
            enable_memory_saver=spec.enable_memory_saver,
            auxiliary_size=spec.auxiliary_size,
            owns_auxiliary_state_release=spec.disable_radix_cache,
            auxiliary_slot_bytes=spec.auxiliary_slot_bytes,
        )

    def bind(self, store: AuxStore | None) -> None:
        """Name the engine's store, in which freed slots are cleared and forks are made."""
        self.mamba_pool.store = store

    def alloc(self, reqs: list[Req]) -> list[int] | None:
        """Rows and slots for `reqs`; those that have theirs keep them.

        Returns:
            The rows, or None, with nothing taken, if rows or slots do not suffice.
        """
        lacking = [req for req in reqs if not req.kv.holds_mamba]
        if len(lacking) > self.mamba_allocator.available_size():
            return None
        rows = ReqToTokenPool.alloc(self, reqs)
        if rows is None:
            return None
        for req in lacking:
            slot = self.mamba_allocator.alloc(1)
            assert slot is not None
            req.kv.mamba_pool_idx = slot[0]
        slots = [int(req.kv.mamba_pool_idx) for req in reqs]
        self.req_index_to_mamba_index_mapping[rows] = torch.tensor(slots, dtype=torch.int32)
        return rows

    def free(self, req: Req) -> None:
        """Give the request's row back, and its slot where the pool owns the release."""
        if self.owns_auxiliary_state_release and req.kv.holds_mamba:
            self.free_mamba_cache(req)
        ReqToTokenPool.free(self, req)

    def free_mamba_cache(
        self, req: Req, mamba_ping_pong_track_buffer_to_keep: int | None = None
    ) -> None:
        """Free a request's slot.

        Raises:
            RuntimeError: If it holds none, or its slot is not its own.
        """
        if not req.kv.holds_mamba:
            raise RuntimeError(f"request {req.rid} holds no auxiliary slot: freed twice?")
        self.mamba_allocator.free(req.kv.mamba_pool_idx)
        req.kv.mamba_pool_idx = None

    def clear(self) -> None:
        """Everything is free: rows, slots and the states in them."""
        ReqToTokenPool.clear(self)
        self.mamba_allocator.clear()
        self.req_index_to_mamba_index_mapping.zero_()

    def register_layer_transfer_counter(self, layer_transfer_counter: Any) -> None:
        """Kept as upstream does; hierarchical caches are refused at start-up."""
        self.layer_transfer_counter = layer_transfer_counter
