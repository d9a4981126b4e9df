"""The platform that SGLang sees: torch on the CPU for bookkeeping, MLX for the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.platforms.device_mixin import DeviceCapability, PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

from sglang_mlx_plugin import entrypoints
from sglang_mlx_plugin.engine import device as mlx_device
from sglang_mlx_plugin.hooks.types import DeviceKind

from . import releases
from .errors import stop_launch

__all__ = ["MlxPlatform"]


class MlxPlatform(SRTPlatform):
    """MLX as an out-of-tree platform of SGLang.

    torch only keeps SGLang's books (request tables, slot indices), so for torch the device
    is the CPU; memory is asked of the MLX device.
    """

    _enum = PlatformEnum.OOT
    device_name = "mlx"
    device_type = "cpu"
    # Nothing of torch's or Triton's runs here: every capability stays off.
    capabilities = releases.no_capabilities()
    supported_quantization: list[str] = []

    @property
    def kind(self) -> DeviceKind:
        """The MLX device that serves."""
        return entrypoints.device_choice().kind

    # What the launch asks.

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Upstream: `SRTPlatform.apply_server_args_defaults`, while arguments are resolved.

        Raises:
            LaunchError: if the gate was not passed.
        """
        from . import launch

        for name, value in launch.platform_defaults(server_args).items():
            setattr(server_args, name, value)

    def get_default_attention_backend(self) -> str:
        """torch's own: the only one that needs no kernel package; it is never run."""
        return "torch_native"

    def get_device(self, device_id: int = 0) -> str:
        """The torch device string. Upstream splits it at ``:``, so a string it must be."""
        return "cpu"

    def get_group_coordinator_device(self, local_rank: int) -> torch.device:
        """Where SGLang's process groups keep their tensors."""
        return torch.device("cpu")

    def get_torch_distributed_backend_str(self) -> str:
        """Gloo: the tensors of SGLang's groups are on the CPU."""
        return "gloo"

    def get_dispatch_key_name(self) -> str:
        """torch modules, if one is ever run, use plain torch."""
        return "native"

    def get_compile_backend(self, mode: str | None = None) -> str:
        """No torch graph is compiled here; ``eager`` is the backend that does nothing."""
        return "eager"

    def post_load_model(self, model: torch.nn.Module) -> None:
        """Upstream calls this after it loaded a torch model, which must never happen here.

        Raises:
            LaunchError: always.
        """
        stop_launch(
            "SGLang loaded the model with torch although MLX is the platform: the hook on "
            "Scheduler.init_tp_model_worker is not in place; run `sglang-mlx doctor`"
        )

    # What is asked of the device.

    def get_device_total_memory(self, device_id: int = 0) -> int:
        """Bytes that a process may use on the MLX device."""
        return mlx_device.memory_bytes(self.kind)

    def get_current_memory_usage(self, device: torch.device | None = None) -> float:
        """Bytes that MLX holds in this process, its cache included."""
        return float(mlx_device.used_bytes())

    def get_available_memory(self, device_id: int = 0) -> tuple[int, int]:
        """(free, total) bytes of the MLX device."""
        total = self.get_device_total_memory(device_id)
        return mlx_device.free_bytes(self.kind), total

    def get_device_name(self, device_id: int = 0) -> str:
        """A name for people."""
        return f"MLX on {self.kind}"

    def get_device_uuid(self, device_id: int = 0) -> str:
        """One device a host; the id is only compared with itself."""
        return f"mlx-{self.kind}-{device_id}"

    def get_device_capability(self, device_id: int = 0) -> DeviceCapability | None:
        """CUDA's notion; there is none here."""
        return None

    def set_device(self, device: torch.device | str) -> None:
        """MLX chooses its device itself, in the engine."""

    def is_pin_memory_available(self, device: Any = None) -> bool:
        """Pinned memory serves copies to a GPU of torch's; there is none."""
        return False

    @contextmanager
    def reindex_device_id(self, device_id: int) -> Iterator[int]:
        """Every worker of a host uses the one device."""
        yield device_id

    def empty_cache(self) -> None:
        """Upstream calls this when idle and after a flush: give MLX's free buffers back."""
        mlx_device.clear_cache()

    def synchronize(self) -> None:
        """torch has nothing to wait for; the engine waits for MLX where it must."""

    def get_torch_profiler_activity_str(self) -> str:
        """The torch profiler sees the host only."""
        return "CPU"

    def get_torch_profiler_activity(self) -> torch.profiler.ProfilerActivity:
        """The torch profiler sees the host only."""
        return torch.profiler.ProfilerActivity.CPU
