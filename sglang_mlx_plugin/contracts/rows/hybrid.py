"""Rows of models with auxiliary state: their pool, and their part of the radix tree."""

from ..contract import Contract, group

_SRT = "sglang.srt"
_POOL = f"{_SRT}.mem_cache.memory_pool.HybridReqToTokenPool"
_OUR_POOL = "sglang_mlx_plugin.host.auxiliary_pool.AuxiliaryRequestPool"
_COMPONENT = f"{_SRT}.mem_cache.unified_cache.components.mamba.MambaComponent"
_OUR_COMPONENT = "sglang_mlx_plugin.host.radix.AuxiliaryComponent"
_PREFIX = f"{_SRT}.mem_cache.base_prefix_cache"
_CACHE = f"{_SRT}.mem_cache.unified_radix_cache.UnifiedRadixCache"
_DIES = "the scheduler dies while it builds the pools of a hybrid model"
_LOSES = "a hybrid model answers wrongly after a prefix hit, or reuses no prefix"

ROWS: tuple[Contract, ...] = (
    Contract(
        target=f"{_SRT}.arg_groups.model_hook.handle_mamba_radix_cache",
        use="replace",
        ours="sglang_mlx_plugin.host.hybrid.handle_mamba_radix_cache",
        why="upstream settles how its CUDA pools keep snapshots, before any model is loaded",
        breaks="hybrid models lose the overlapped scheduler, or their launch is refused",
        gone_when="SGLang asks the platform whether snapshots need buffers",
    ),
    Contract(
        target=f"{_SRT}.mem_cache.kv_cache_builder.uses_ssm_state",
        use="replace",
        ours="sglang_mlx_plugin.host.hybrid.uses_ssm_state",
        why="the loaded model's caches say whether it is hybrid, not its configuration's class",
        breaks="hybrid models that SGLang does not know reuse prefixes without their state",
        gone_when="SGLang asks the runner",
    ),
    Contract(
        target=f"{_SRT}.mem_cache.registry.create_unified_radix_cache",
        use="replace",
        ours="sglang_mlx_plugin.host.hybrid.create_unified_radix_cache",
        why="the tree's component for auxiliary state is ours",
        breaks="the launch of a hybrid model ends in a stack trace",
        gone_when="components of the tree can be registered by plugins",
    ),
    Contract(
        target=_POOL,
        use="import",
        why="upstream asks for it with isinstance before it evicts states for a batch",
        breaks="a hybrid model's requests fail when the tree holds all slots",
    ),
    *(
        Contract(
            target=f"{_POOL}.{name}",
            use="override",
            ours=f"{_OUR_POOL}.{name}",
            why=why,
            breaks=_DIES,
        )
        for name, why in (
            ("__init__", "the base's allocates state in torch"),
            ("alloc", "a row and a slot for each request"),
            ("free", "with the radix cache off the pool frees the slot with the row"),
            ("free_mamba_cache", "frees a request's slot, once"),
            ("clear", "slots are free and their states forgotten after a flush"),
            ("register_layer_transfer_counter", "the base's reads torch buffers"),
        )
    ),
    *group(
        _POOL,
        "write",
        "enable_mamba_extra_buffer",
        "enable_mamba_extra_buffer_lazy",
        "enable_memory_saver",
        "layer_transfer_counter",
        "mamba_allocator",
        "mamba_ckpt_pool",
        "mamba_ping_pong_track_buffer_size",
        "mamba_pool",
        "req_index_to_mamba_index_mapping",
        "start_layer",
        why="what the base's constructor sets, and the scheduler reads",
        breaks=_DIES,
    ),
    Contract(
        target=f"{_POOL}.mamba_initial_tracking_slots",
        use="write",
        why="slots beyond the live one that a request starts with: none",
        breaks=_DIES,
        since="0.5.22",
    ),
    Contract(
        target=f"{_POOL}.get_mamba_indices",
        use="call",
        why="the slots of a batch's rows",
        breaks="the first request to a hybrid model kills the server",
    ),
    *group(
        f"{_SRT}.mem_cache.memory_pool.ReqToTokenPool",
        "call",
        "alloc",
        "clear",
        "free",
        why="rows are handed out as upstream does it",
        breaks=_DIES,
    ),
    Contract(
        target=f"{_SRT}.managers.schedule_batch.Req.kv",
        use="read",
        why="what a request holds: its row and its auxiliary slot",
        breaks=_LOSES,
    ),
    *group(
        f"{_SRT}.managers.schedule_batch.Req",
        "read",
        "extra_key",
        "rid",
        why="which subtree a request matches in, and its name for messages",
        breaks=_LOSES,
    ),
    Contract(
        target=f"{_SRT}.managers.schedule_batch.ReqKvInfo.holds_mamba",
        use="read",
        why="whether a request holds an auxiliary slot",
        breaks=_LOSES,
    ),
    Contract(
        target=f"{_SRT}.managers.schedule_batch.ReqKvInfo.mamba_pool_idx",
        use="write",
        why="a request's auxiliary slot",
        breaks=_LOSES,
    ),
    Contract(
        target=_COMPONENT,
        use="import",
        why="the tree's rules for states are upstream's; ours moves them",
        breaks="the launch of a hybrid model ends in a stack trace",
    ),
    *(
        Contract(
            target=f"{_COMPONENT}.{name}",
            use="override",
            ours=f"{_OUR_COMPONENT}.{name}",
            why=why,
            breaks=_LOSES,
        )
        for name, why in (
            ("__init__", "checks that the pool is ours"),
            ("finalize_match_result_in_cache", "a hit hands the state over by reference"),
            ("prepare_for_caching_req", "the state is looked for at the tree's length"),
            ("cleanup_after_caching_req", "settles who owns the slot"),
            ("_free_mamba_value", "the tree frees what it owns"),
        )
    ),
    *group(
        _COMPONENT,
        "read",
        "cache",
        "component_type",
        "tree_core",
        why="the tree that the component is part of",
        breaks=_LOSES,
    ),
    Contract(
        target=f"{_SRT}.mem_cache.unified_cache.components.ComponentType",
        use="import",
        why="under which name the tree keeps auxiliary state",
        breaks="the launch of a hybrid model ends in a stack trace",
    ),
    Contract(
        target=f"{_SRT}.mem_cache.unified_cache.component_type.ComponentType.MAMBA",
        use="read",
        why="under which name the tree keeps auxiliary state",
        breaks="the launch of a hybrid model ends in a stack trace",
    ),
    Contract(
        target=f"{_SRT}.mem_cache.unified_cache.unified_tree_core"
        ".UnifiedTreeCore.get_component_device_value",
        use="call",
        why="the slot at the end of a hit",
        breaks=_LOSES,
    ),
    *group(
        _CACHE,
        "call",
        "dec_lock_ref",
        "evict_for_alloc",
        "inc_lock_ref",
        why="makes room for a state without evicting the one that was hit",
        breaks=_LOSES,
    ),
    Contract(
        target=_CACHE,
        use="import",
        why="the tree; ours takes states from inside a prompt too",
        breaks="the launch of a hybrid model ends in a stack trace",
    ),
    Contract(
        target=f"{_CACHE}.__init__",
        use="override",
        ours="sglang_mlx_plugin.host.radix.AuxiliaryRadixCache.__init__",
        why="tells the pool that the tree takes such states",
        breaks="the launch of a hybrid model ends in a stack trace",
    ),
    Contract(
        target=f"{_CACHE}.checkpoint_into_tree",
        use="override",
        ours="sglang_mlx_plugin.host.radix.AuxiliaryRadixCache.checkpoint_into_tree",
        why="inserts a prompt up to its border before the whole",
        breaks="the same prompt sent again to a hybrid model is computed again",
        since="0.5.22",
    ),
    *group(
        _CACHE,
        "read",
        "disable",
        "req_to_token_pool",
        why="whether the tree keeps anything, and where slots come from",
        breaks="the launch of a hybrid model ends in a stack trace",
    ),
    Contract(
        target=f"{_SRT}.managers.schedule_batch.Req.finished_reason",
        use="write",
        why="a border is inserted as that of a request that goes on",
        breaks="a finished request's slot is handed over with its border",
    ),
    Contract(
        target=f"{_SRT}.managers.schedule_batch.Req.mamba_branching_seqlen",
        use="read",
        why="where other prompts have branched off, beyond the deepest state",
        breaks="prompts that begin alike are computed again",
    ),
    Contract(
        target=f"{_SRT}.managers.schedule_batch.ReqKvInfo.cache_protected_len",
        use="read",
        why="what of a request the tree holds already",
        breaks="a border is inserted twice",
    ),
    Contract(
        target=f"{_SRT}.mem_cache.cache_init_params.CacheInitParams",
        use="import",
        why="annotation of the component's constructor",
        breaks="nothing at run time; the checker loses sight of a type",
    ),
    Contract(
        target=f"{_SRT}.mem_cache.cache_init_params.CacheInitParams.req_to_token_pool",
        use="read",
        why="the pool that the slots come from",
        breaks="the launch of a hybrid model ends in a stack trace",
    ),
    Contract(
        target=f"{_PREFIX}.EvictParams",
        use="construct",
        why="asks the tree for one slot",
        breaks=_LOSES,
    ),
    Contract(
        target=f"{_PREFIX}.IncLockRefResult.to_dec_params",
        use="call",
        why="undoes a lock",
        breaks=_LOSES,
    ),
    Contract(
        target=f"{_PREFIX}.zero_match_result",
        use="call",
        why="a hit whose state finds no slot is none",
        breaks=_LOSES,
    ),
    *group(
        _PREFIX,
        "import",
        "InsertParams",
        "InsertResult",
        "MatchPrefixParams",
        "MatchResult",
        why="annotations of the component's methods",
        breaks="nothing at run time; the checker loses sight of a type",
    ),
    Contract(
        target=f"{_PREFIX}.InsertParams.mamba_value",
        use="write",
        why="the slot that goes into the tree",
        breaks=_LOSES,
    ),
    *group(
        _PREFIX,
        "read",
        "InsertResult.mamba_exist",
        "MatchPrefixParams.cow_mamba",
        "MatchPrefixParams.req",
        "MatchResult.best_match_node",
        why="whether a state was wanted, found or taken",
        breaks=_LOSES,
    ),
    Contract(
        target=f"{_SRT}.runtime_context.get_schedule().mamba_full_memory_ratio",
        use="read",
        why="--mamba-full-memory-ratio",
        breaks="the scheduler dies while it sizes the pools",
    ),
)
