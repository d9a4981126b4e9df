"""Rows of the launch: hooks on SGLang's functions, its plugin registry, its platforms."""

from ..contract import Contract, group

_SRT = "sglang.srt"
_OURS = "sglang_mlx_plugin.host.launch"
_ROUTES = "sglang_mlx_plugin.host.surface.routes"

ROWS: tuple[Contract, ...] = (
    Contract(
        target=f"{_SRT}.server_args.ServerArgs.resolve_once",
        use="replace",
        ours=f"{_OURS}._resolve_once",
        why="the gate looks at the arguments before anything is resolved or downloaded",
        breaks="arguments that MLX cannot honour are ignored",
    ),
    *(
        Contract(
            target=f"{_SRT}.{module}.get_resolved_model_impl",
            use="replace",
            ours=f"{_OURS}._get_resolved_model_impl",
            why="upstream looks for the torch code of a model that MLX runs",
            breaks="families that SGLang has no torch code for (jamba, mamba) cannot be served",
            gone_when="SGLang asks only where torch code runs",
        )
        for module in ("managers.scheduler", "mem_cache.kv_cache_builder")
    ),
    Contract(
        target=f"{_SRT}.configs.model_config.ModelImpl.SGLANG",
        use="read",
        why="what get_resolved_model_impl answers",
        breaks="the scheduler dies while it builds the radix tree",
    ),
    Contract(
        target=f"{_SRT}.utils.common.get_device",
        use="replace",
        ours=f"{_OURS}._get_device",
        why="torch's side is the CPU, though torch may see MPS or CUDA",
        breaks="on a Mac torch's MPS device is chosen and its tensors meet CPU ones",
        gone_when="SGLang asks the platform for the device everywhere",
    ),
    Contract(
        target=f"{_SRT}.utils.common.get_available_gpu_memory",
        use="replace",
        ours=f"{_OURS}._get_available_gpu_memory",
        why="free memory is the MLX device's, and upstream asks lscpu for NUMA nodes",
        breaks="on a Mac the scheduler dies for want of lscpu",
        gone_when="SGLang asks the platform (get_available_memory) instead",
    ),
    Contract(
        target=f"{_SRT}.distributed.bootstrap._bind_threads_if_cpu",
        use="replace",
        ours=f"{_OURS}._bind_threads_if_cpu",
        why="upstream binds a replica to a NUMA node, and asserts that there are enough",
        breaks="--dp-size 2 dies on a machine with one NUMA node",
        gone_when="SGLang does not take device type cpu for its own CPU engine",
    ),
    Contract(
        target=f"{_SRT}.distributed.bootstrap._init_cpu_threads_env",
        use="replace",
        ours=f"{_OURS}._init_cpu_threads_env",
        why="upstream calls sgl_kernel on ARM64 and on x86-64 with AMX",
        breaks="on ARM64 the scheduler dies for want of sgl_kernel",
        gone_when="SGLang does not take device type cpu for its own CPU engine",
    ),
    Contract(
        target=f"{_SRT}.entrypoints.engine.Engine._launch_subprocesses",
        use="replace",
        ours=f"{_OURS}._launch_subprocesses",
        why="verifies the launch before a child is spawned, and prints a child's sentence last",
        breaks="a scheduler's failure ends in a stack trace instead of one sentence",
    ),
    Contract(
        target=f"{_SRT}.managers.scheduler.Scheduler.__init__",
        use="replace",
        ours=f"{_OURS}._scheduler_init",
        why="verifies the launch in the scheduler's process before a model is loaded",
        breaks="a scheduler's failure ends in a stack trace instead of one sentence",
    ),
    Contract(
        target=f"{_SRT}.managers.scheduler.Scheduler.init_tp_model_worker",
        use="replace",
        ours=f"{_OURS}._init_tp_model_worker",
        why="puts our worker where SGLang builds its own",
        breaks="the model is served by torch, or not at all",
        gone_when="SGLang asks the platform for the worker's class",
    ),
    Contract(
        target=f"{_SRT}.managers.tokenizer_manager.TokenizerManager.generate_request",
        use="replace",
        ours=f"{_ROUTES}.generate_request",
        why="every route and Engine.generate end here, so requests are checked here",
        breaks="fields of a request that MLX cannot honour are ignored",
        gone_when="SGLang asks the platform which requests it can serve",
    ),
    Contract(
        target=f"{_SRT}.managers.tokenizer_manager.TokenizerManager._validate_one_request",
        use="replace",
        ours=f"{_ROUTES}.validate_one_request",
        why="token ids are checked against the vocabulary when they are known",
        breaks="token ids outside the vocabulary reach the model",
    ),
    Contract(
        target=f"{_SRT}.entrypoints.openai.serving_base.OpenAIServingBase.handle_request",
        use="replace",
        ours=f"{_ROUTES}.handle_request",
        why="pydantic makes true of the text yes before anything else can look",
        breaks='text for true or false ("logprobs": "yes") is taken for true',
    ),
    Contract(
        target=(
            f"{_SRT}.entrypoints.openai.serving_responses.OpenAIServingResponses.create_responses"
        ),
        use="replace",
        ours=f"{_ROUTES}.create_responses",
        why="its route does not go through OpenAIServingBase.handle_request",
        breaks="unknown fields of /v1/responses are dropped without a word",
    ),
    Contract(
        target=f"{_SRT}.entrypoints.http_server.serve_generate_request",
        use="replace",
        ours=f"{_ROUTES}.serve_generate_request",
        why="a streamed /generate answers 200 before the request is looked at",
        breaks="a stream that is refused answers 200 first",
        since="0.5.22",
    ),
    Contract(
        target=f"{_SRT}.entrypoints.http_server.generate_contract_error",
        use="replace",
        ours=f"{_ROUTES}.generate_contract_error",
        why="the gate of the JSON schema names no field",
        breaks="a sampling parameter of the wrong type is refused without its name",
        since="0.5.22",
    ),
    Contract(
        target=f"{_SRT}.entrypoints.http_server._create_error_response",
        use="call",
        why="a refused request answers as SGLang's other refusals do",
        breaks="a streamed /generate that is refused answers 500",
    ),
    *group(
        f"{_SRT}.managers.scheduler.Scheduler",
        "read",
        "nccl_port",
        "server_args",
        why="our worker is built from what upstream builds its own from",
        breaks="the scheduler dies while it builds the worker",
    ),
    Contract(
        target=f"{_SRT}.plugins.hook_registry.HookRegistry.register",
        use="call",
        why="the hooks above are registered with it",
        breaks="the launch stops: no hook of ours is in place",
    ),
    Contract(
        target=f"{_SRT}.plugins.hook_registry.HookRegistry.apply_hooks",
        use="call",
        why="puts the hooks in place that were registered after SGLang applied the others",
        breaks="the launch stops: a hook of ours is not in place",
    ),
    Contract(
        target=f"{_SRT}.plugins.hook_registry.HookSource",
        use="construct",
        why="names us in SGLang's log of hooks",
        breaks="the launch stops: no hook of ours is in place",
    ),
    Contract(
        target=f"{_SRT}.plugins.hook_registry.HookType",
        use="read",
        why="says how each hook is called",
        breaks="the launch stops: no hook of ours is in place",
    ),
    Contract(
        target=f"{_SRT}.platforms.current_platform",
        use="read",
        why="the gate checks that the platform is ours",
        breaks="the launch stops: the platform cannot be verified",
    ),
    Contract(
        target=f"{_SRT}.runtime_context.get_parallel",
        use="call",
        why="the concurrency cap is split over data-parallel attention ranks",
        breaks="the scheduler dies while it sizes the pools",
    ),
    Contract(
        target=f"{_SRT}.runtime_context.get_device().gpu_id",
        use="read",
        why="upstream's worker is built with it, so ours is",
        breaks="the scheduler dies while it builds the worker",
    ),
    Contract(
        target="sglang.launch_server",
        use="import",
        why="the standard launch, which the benchmark times",
        breaks="sglang-mlx bench cannot start this server",
    ),
    *group(
        f"{_SRT}.runtime_context.get_model()",
        "read",
        "dtype",
        "json_model_override_args",
        "kv_cache_dtype",
        "startup_weight_load_mode",
        "trust_remote_code",
        why="how the user wants the model loaded",
        breaks="the scheduler dies while it loads the model, or an option is ignored",
    ),
    *group(
        f"{_SRT}.runtime_context.get_schedule()",
        "read",
        "max_mamba_cache_size",
        "max_running_requests",
        "max_total_tokens",
        "mem_fraction_static",
        why="the user's limits on memory and concurrency",
        breaks="the scheduler dies while it sizes the pools, or a limit is ignored",
    ),
    Contract(
        target=f"{_SRT}.runtime_context.get_memory().disable_radix_cache",
        use="read",
        why="decides who releases auxiliary slots and how many a request may hold",
        breaks="the scheduler dies while it sizes the pools",
    ),
)
