"""Rows of the platform: what SGLang asks it, and how it says no."""

from ..contract import Contract, group

_PLATFORM = "sglang.srt.platforms.interface.SRTPlatform"
_OURS = "sglang_mlx_plugin.host.platform.MlxPlatform"


def _rows(*names: str, why: str, breaks: str, since: str = "") -> tuple[Contract, ...]:
    return tuple(
        Contract(
            target=f"{_PLATFORM}.{name}",
            use="override",
            ours=f"{_OURS}.{name}",
            why=why,
            breaks=breaks,
            since=since,
        )
        for name in names
    )


ROWS: tuple[Contract, ...] = (
    *_rows(
        "_enum",
        "device_name",
        "device_type",
        why="says that an out-of-tree platform runs here, and that torch's side is the CPU",
        breaks="SGLang takes this machine for one of its own devices",
    ),
    *group(
        "sglang.srt.platforms.device_mixin.PlatformEnum",
        "read",
        "OOT",
        why="the value of _enum",
        breaks="the platform cannot be imported and SGLang starts without MLX",
    ),
    *_rows(
        "capabilities",
        why="no Triton, no graph capture: SGLang then picks torch-native bookkeeping",
        breaks="SGLang launches Triton kernels on a device that has none",
        since="0.5.22",
    ),
    Contract(
        target="sglang.srt.platforms.interface.PlatformCapabilities",
        use="construct",
        why="the value of capabilities",
        breaks="the platform cannot be imported and SGLang starts without MLX",
        since="0.5.22",
    ),
    *_rows(
        "supported_quantization",
        why="names the quantised formats that SGLang lets through",
        breaks="a quantised model is refused before it reaches MLX",
    ),
    *_rows(
        "apply_server_args_defaults",
        why="SGLang's arguments get their defaults for MLX here",
        breaks="arguments keep CUDA's defaults",
    ),
    *_rows(
        "get_default_attention_backend",
        why="the name that SGLang writes into its arguments; attention runs in the engine",
        breaks="the launch stops in the resolution of arguments",
    ),
    *_rows(
        "get_device",
        why="must be the string 'cpu': SGLang splits it at ':'",
        breaks="the launch stops in the resolution of arguments",
    ),
    *_rows(
        "get_group_coordinator_device",
        why="torch's process groups live on the CPU",
        breaks="the scheduler dies while it builds process groups",
        since="0.5.23",
    ),
    *_rows(
        "get_torch_distributed_backend_str",
        why="torch's process groups use gloo",
        breaks="the scheduler dies while it builds process groups",
    ),
    *_rows(
        "get_dispatch_key_name",
        why="fused operators of SGLang take their torch-native form",
        breaks="SGLang picks a kernel of another device",
    ),
    *_rows(
        "get_compile_backend",
        why="nothing is compiled by torch",
        breaks="torch.compile starts on bookkeeping code",
    ),
    *_rows(
        "post_load_model",
        why="called with the model that the runner holds; there is nothing to do",
        breaks="SGLang walks a torch model that is not there",
        since="0.5.22",
    ),
    *_rows(
        "get_device_total_memory",
        "get_current_memory_usage",
        "get_available_memory",
        "get_device_name",
        "get_device_uuid",
        "get_device_capability",
        why="what SGLang may ask of any device; the base raises NotImplementedError",
        breaks="metrics and /get_server_info fail",
    ),
    Contract(
        target="sglang.srt.platforms.device_mixin.DeviceCapability",
        use="import",
        why="what get_device_capability returns, for annotations",
        breaks="the platform cannot be imported and SGLang starts without MLX",
    ),
    *_rows(
        "set_device",
        "empty_cache",
        "synchronize",
        "reindex_device_id",
        "is_pin_memory_available",
        why="device management that has no meaning for MLX",
        breaks="SGLang calls torch.cuda",
    ),
    *_rows(
        "get_torch_profiler_activity",
        "get_torch_profiler_activity_str",
        why="the profiler records the CPU",
        breaks="/start_profile fails",
    ),
    Contract(
        target="sglang.srt.plugins.load_plugins",
        use="call",
        why="`sglang-mlx doctor` loads plugins as a launch does, to see which platform comes of it",
        breaks="the doctor cannot say what a launch would come to",
    ),
)
