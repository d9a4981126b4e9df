"""Which MLX device serves, what it holds, and the BLAS that MLX's CPU device needs.

`choose_device` runs in every process of a server while ``import sglang`` runs, so it looks
at files and at what is loaded already; it imports neither MLX nor torch. `lend_blas` must run
before ``import mlx.core``.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sglang_mlx_plugin.hooks.types import DeviceChoice, DeviceKind

__all__ = [
    "BlasReport",
    "choose_device",
    "clear_cache",
    "free_bytes",
    "keep_freed_memory",
    "lend_blas",
    "measured_gflops",
    "memory_bytes",
    "other_accelerator",
    "use_device",
    "used_bytes",
]

KINDS: tuple[DeviceKind, ...] = ("metal", "cuda", "cpu")

# Distributions that bring a CUDA libmlx; `mlx` itself is the same wheel for every back end.
_CUDA_DISTRIBUTIONS = ("mlx-cuda-12", "mlx-cuda-13", "mlx-cuda")

_DEVICE_NODES = {
    "/dev/nvidiactl": "an NVIDIA GPU",
    "/dev/kfd": "an AMD GPU",
    "/dev/davinci_manager": "an Ascend NPU",
}


def choose_device(environ: Mapping[str, str]) -> DeviceChoice:
    """Choose the MLX device, and whether this backend takes part at all.

    Args:
        environ: ``SGLANG_MLX_DEVICE`` names the device; ``SGLANG_PLATFORM=mlx`` is needed
            beside another accelerator; ``SGLANG_USE_CPU_ENGINE=1`` is a user's wish for
            SGLang's own CPU engine.

    Returns:
        The choice; ``reason`` is one clause.

    Raises:
        ValueError: if ``SGLANG_MLX_DEVICE`` names no device, or one that is not here.
    """
    wanted = environ.get("SGLANG_MLX_DEVICE", "").strip().lower()
    missing = _why_mlx_is_missing()
    if missing is not None:
        return DeviceChoice(active=False, kind="cpu", reason=missing)
    kind, reason = _kind(wanted)
    if environ.get("SGLANG_PLATFORM") == "mlx":
        return DeviceChoice(active=True, kind=kind, reason=f"{reason}; SGLANG_PLATFORM=mlx")
    other = other_accelerator()
    if other is not None:
        return DeviceChoice(
            active=False,
            kind=kind,
            reason=f"this host has {other}; SGLANG_PLATFORM=mlx chooses MLX beside it",
        )
    if environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1":
        return DeviceChoice(
            active=False,
            kind=kind,
            reason="SGLANG_USE_CPU_ENGINE=1 asks for SGLang's own CPU engine; "
            "SGLANG_PLATFORM=mlx overrides it",
        )
    return DeviceChoice(active=True, kind=kind, reason=reason)


def other_accelerator() -> str | None:
    """An accelerator that SGLang would serve on by itself, in words, or None.

    torch is asked if it is loaded, as it always is inside SGLang; without it (a command such
    as ``sglang-mlx doctor``) the device nodes of drivers are looked for.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        for node, words in _DEVICE_NODES.items():
            if os.path.exists(node):
                return words
        return None
    if torch.cuda.is_available():
        hip = getattr(torch.version, "hip", None)
        return "an AMD GPU" if hip else "an NVIDIA GPU"
    for name, words in (("xpu", "an Intel GPU"), ("npu", "an Ascend NPU"), ("hpu", "a Gaudi")):
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            return words
    return None


def use_device(kind: DeviceKind) -> None:
    """Make `kind` MLX's default device in this process.

    Raises:
        RuntimeError: if this MLX cannot run on `kind` on this machine.
    """
    import mlx.core as mx

    if kind == "cpu":
        mx.set_default_device(mx.cpu)  # type: ignore[arg-type]
        return
    available = mx.metal.is_available() if kind == "metal" else mx.cuda.is_available()
    if not available:
        raise RuntimeError(
            f"MLX finds no {kind} device on this machine; "
            "set SGLANG_MLX_DEVICE=cpu to serve on the CPU"
        )
    mx.set_default_device(mx.gpu)  # type: ignore[arg-type]


def memory_bytes(kind: DeviceKind) -> int:
    """Bytes that a process may use on the device.

    On Metal it is the recommended working-set limit, on CUDA the GPU's memory, on the CPU
    the machine's memory or the container's limit, whichever is lower.
    """
    if kind == "cpu":
        return _host_memory_bytes()
    import mlx.core as mx

    info: Mapping[str, Any] = mx.device_info(mx.Device(mx.gpu))  # type: ignore[call-arg,arg-type]
    for key in ("max_recommended_working_set_size", "total_memory", "memory_size"):
        if info.get(key):
            return int(info[key])
    return _host_memory_bytes()


def used_bytes() -> int:
    """Bytes that MLX holds in this process, its cache of free buffers included."""
    mx = sys.modules.get("mlx.core")
    if mx is None:
        return 0
    return int(mx.get_active_memory() + mx.get_cache_memory())


def free_bytes(kind: DeviceKind) -> int:
    """Bytes of the device that are free for this process now.

    A GPU that shares the machine's memory is bound by that memory too.
    """
    free = memory_bytes(kind) - used_bytes()
    if kind == "cuda":
        return max(0, free)
    return max(0, min(free, _host_available_bytes()))


def clear_cache() -> None:
    """Give MLX's cache of free buffers back, if MLX is loaded here."""
    mx = sys.modules.get("mlx.core")
    if mx is not None:
        mx.clear_cache()


@dataclass(frozen=True, kw_only=True)
class BlasReport:
    """What MLX's CPU device multiplies matrices with.

    Attributes:
        lent: torch's BLAS stands in for the reference BLAS that MLX's Linux wheel brings.
        late: ``mlx.core`` was imported before; what it resolved already stays as it was.
        reason: One clause for the log and for ``sglang-mlx doctor``.
        library: The library that was lent, or None.
    """

    lent: bool
    late: bool
    reason: str
    library: Path | None = None

    def __str__(self) -> str:
        return self.reason if self.lent or sys.platform != "linux" else f"MLX's ({self.reason})"


_blas: BlasReport | None = None


def lend_blas(kind: DeviceKind = "cpu") -> BlasReport:
    """Let MLX's CPU device use the BLAS inside torch; once a process.

    MLX's Linux wheel calls a reference BLAS, 10 to 60 times slower than the MKL that is
    inside ``libtorch_cpu.so``. Symbols are resolved in load order, so loading torch's library
    with ``RTLD_GLOBAL`` before ``mlx.core`` puts its ``sgemm_`` first. torch itself is not
    imported.

    A Mac (Accelerate) and a CUDA build (cuBLAS) are never touched.

    Threads: torch's BLAS runs on OpenMP and takes every core that the process may run on;
    ``OMP_NUM_THREADS`` limits it, as everywhere else.

    Returns:
        What happened; the same report on every call.
    """
    global _blas
    if _blas is None:
        _blas = _lend(kind)
    return _blas


def keep_freed_memory(kind: DeviceKind) -> bool:
    """Let the C library keep what MLX's CPU device frees; whether it was told so.

    That device has no cache of buffers: each operation takes its output from ``malloc``, and
    glibc hands large blocks back to the system when they are freed. Every page is then faulted
    in again by the next operation, which took four times as long as the operation itself.
    Nothing to do on another device, nor where the C library is another.
    """
    if kind != "cpu" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3
    # Blocks from 64 MB on still go back at once, and so does the end of the
    # heap when a gigabyte of it is free.
    return all(
        mallopt(name, value)
        for name, value in (
            (mmap_threshold, 64 << 20),
            (trim_threshold, 1 << 30),
            (top_pad, 64 << 20),
        )
    )


def measured_gflops(size: int = 1024, repeats: int = 3) -> float:
    """GFLOP/s of a float32 product of `size` x `size` on MLX's default device; best of runs."""
    import mlx.core as mx

    a = mx.random.normal((size, size))
    b = mx.random.normal((size, size))
    mx.eval(a, b, a @ b)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        mx.eval(a @ b)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e9


def _lend(kind: DeviceKind) -> BlasReport:
    if sys.platform != "linux":
        return BlasReport(lent=False, late=False, reason="MLX brings its own BLAS here")
    if kind != "cpu":
        return BlasReport(lent=False, late=False, reason=f"MLX runs on {kind}")
    late = "mlx.core" in sys.modules
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return BlasReport(lent=False, late=late, reason="torch is not installed")
    library = Path(spec.origin).parent / "lib" / "libtorch_cpu.so"
    try:
        handle = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return BlasReport(lent=False, late=late, reason=f"torch's library does not load: {error}")
    if not hasattr(handle, "sgemm_"):
        return BlasReport(lent=False, late=late, reason="this torch exports no BLAS")
    if late:
        return BlasReport(
            lent=False,
            late=True,
            reason="mlx.core was imported before torch's BLAS could be lent to it",
            library=library,
        )
    return BlasReport(lent=True, late=False, reason="torch's BLAS", library=library)


def _why_mlx_is_missing() -> str | None:
    spec = find_spec("mlx")
    if spec is None or not spec.submodule_search_locations:
        return "MLX is not installed"
    folders = [Path(folder) for folder in spec.submodule_search_locations]
    if not any(folder.glob("core*.so") for folder in folders):
        return "MLX is not installed for this Python"
    if sys.platform == "linux" and not any(
        (folder / "lib" / "libmlx.so").exists() for folder in folders
    ):
        return "MLX has no back end here: install mlx[cpu], mlx[cuda12] or mlx[cuda13]"
    return None


def _kind(wanted: str) -> tuple[DeviceKind, str]:
    if wanted and wanted not in KINDS:
        raise ValueError(
            f"SGLANG_MLX_DEVICE={wanted!r} names no device; it can be metal, cuda or cpu"
        )
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    cuda = _has_cuda_build()
    if wanted == "metal" and not apple:
        raise ValueError("SGLANG_MLX_DEVICE=metal needs a Mac with Apple silicon")
    if wanted == "cuda" and not cuda:
        raise ValueError(
            "SGLANG_MLX_DEVICE=cuda needs a CUDA build of MLX: pip install 'mlx[cuda13]'"
        )
    for kind in KINDS:
        if wanted == kind:
            return kind, f"SGLANG_MLX_DEVICE={kind}"
    if apple:
        return "metal", "Metal on Apple silicon"
    if cuda:
        return "cuda", "a CUDA build of MLX"
    return "cpu", "neither Metal nor a CUDA build of MLX"


def _has_cuda_build() -> bool:
    if sys.platform != "linux":
        return False
    for name in _CUDA_DISTRIBUTIONS:
        try:
            distribution(name)
        except PackageNotFoundError:
            continue
        return True
    return False


def _host_memory_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            words = Path(limit).read_text().strip()
        except OSError:
            continue
        if words.isdigit():
            total = min(total, int(words))
    return total


def _host_available_bytes() -> int:
    """What the machine, or the container, could still give."""
    available = _host_memory_bytes()
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = min(available, int(line.split()[1]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit.isdigit():
            current = int(Path("/sys/fs/cgroup/memory.current").read_text())
            available = min(available, max(0, int(limit) - current))
    except (OSError, ValueError):
        # No such files (a Mac): MLX's working-set limit is the better bound there anyway.
        pass
    return available
