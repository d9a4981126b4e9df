"""Rows of the pools: SGLang's bookkeeping of slots, without its memory."""

from ..contract import Contract, group

_MEMORY = "sglang.srt.mem_cache.memory_pool"
_KV = "sglang_mlx_plugin.host.pools.SlotNumbers"

ROWS: tuple[Contract, ...] = (
    Contract(
        target=f"{_MEMORY}.KVCache.__init__",
        use="override",
        ours=f"{_KV}.__init__",
        why="a KV pool that numbers slots and holds no memory",
        breaks="the scheduler dies while it builds the pools",
    ),
    *(
        Contract(
            target=f"{_MEMORY}.KVCache.{name}",
            use="override",
            ours=f"{_KV}.{name}",
            why="abstract in the base; refused by name, because MLX holds keys and values",
            breaks="the scheduler dies while it builds the pools",
        )
        for name in ("get_key_buffer", "get_value_buffer", "get_kv_buffer", "set_kv_buffer")
    ),
    Contract(
        target=f"{_MEMORY}.KVCache.mem_usage",
        use="write",
        why="GiB of keys and values, for /get_server_info",
        breaks="/get_server_info reports no KV memory",
    ),
    Contract(
        target=f"{_MEMORY}.KVCache.size",
        use="read",
        why="slots of the pool",
        breaks="the scheduler dies while it builds the pools",
    ),
    Contract(
        target=f"{_MEMORY}.ReqToTokenPool",
        use="construct",
        why="SGLang's own table of token slots by request row",
        breaks="the scheduler dies while it builds the pools",
    ),
    *group(
        f"{_MEMORY}.ReqToTokenPool",
        "read",
        "req_to_token",
        why="the slots of a request's tokens, read once a step",
        breaks="the first request kills the server",
    ),
    Contract(
        target=f"{_MEMORY}.ReqToTokenPool.schedulable_token_capacity",
        use="call",
        why="tokens that the scheduler may hand out of a pool of a given size",
        breaks="the scheduler dies while it sizes the pools",
        since="0.5.19",
    ),
    Contract(
        target="sglang.srt.mem_cache.allocator.TokenToKVPoolAllocator",
        use="construct",
        why="SGLang's own allocator of token slots",
        breaks="the scheduler dies while it builds the pools",
    ),
)
