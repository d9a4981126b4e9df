"""The choice of device, its memory, and the BLAS lent to MLX."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from sglang_mlx_plugin.engine import device


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a command without SGLang: torch is not loaded, and no driver has a node."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(device.os.path, "exists", lambda path: False)


def fake_torch(*, cuda: bool = False, hip: str | None = None, xpu: bool = False) -> SimpleNamespace:
    return SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: cuda),
        xpu=SimpleNamespace(is_available=lambda: xpu),
        version=SimpleNamespace(hip=hip),
    )


def on_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.sys, "platform", "darwin")
    monkeypatch.setattr(device.platform, "machine", lambda: "arm64")


@pytest.mark.usefixtures("no_torch")
def test_this_linux_without_cuda_serves_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_has_cuda_build", lambda: False)
    choice = device.choose_device({})
    assert (choice.active, choice.kind) == (True, "cpu")


@pytest.mark.usefixtures("no_torch")
def test_a_mac_serves_on_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    on_mac(monkeypatch)
    choice = device.choose_device({})
    assert (choice.active, choice.kind) == (True, "metal")


@pytest.mark.usefixtures("no_torch")
def test_a_cuda_build_is_used_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_has_cuda_build", lambda: True)
    assert device.choose_device({}).kind == "cuda"
    assert device.choose_device({"SGLANG_MLX_DEVICE": "cpu"}).kind == "cpu"


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        (fake_torch(cuda=True), "an NVIDIA GPU"),
        (fake_torch(cuda=True, hip="6.4"), "an AMD GPU"),
        (fake_torch(xpu=True), "an Intel GPU"),
    ],
)
def test_beside_another_accelerator_it_must_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, torch: SimpleNamespace, words: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    choice = device.choose_device({})
    assert not choice.active
    assert words in choice.reason
    assert "SGLANG_PLATFORM=mlx" in choice.reason
    assert device.choose_device({"SGLANG_PLATFORM": "mlx"}).active


def test_drivers_are_looked_for_where_torch_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(device.os.path, "exists", lambda path: path == "/dev/kfd")
    assert device.other_accelerator() == "an AMD GPU"


@pytest.mark.usefixtures("no_torch")
def test_sglangs_own_cpu_engine_is_left_to_those_who_ask_for_it() -> None:
    choice = device.choose_device({"SGLANG_USE_CPU_ENGINE": "1"})
    assert not choice.active
    assert "SGLANG_USE_CPU_ENGINE" in choice.reason


@pytest.mark.parametrize("platform", [{}, {"SGLANG_PLATFORM": "mlx"}])
def test_without_mlx_it_is_inactive_and_says_so(
    monkeypatch: pytest.MonkeyPatch, platform: dict[str, str]
) -> None:
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    choice = device.choose_device(platform)
    assert not choice.active
    assert choice.reason == "MLX is not installed"


def test_mlx_without_a_back_end_is_no_mlx(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("mlx")
    (folder / "core.cpython-311-x86_64-linux-gnu.so").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(folder)])
    monkeypatch.setattr(device, "find_spec", lambda name: spec)
    monkeypatch.setattr(device.sys, "platform", "linux")
    assert "mlx[cpu]" in device.choose_device({}).reason


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize("name", ["gpu", "metal", "cuda"])
def test_a_device_that_is_not_here_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(device, "_has_cuda_build", lambda: False)
    monkeypatch.setattr(device.sys, "platform", "linux")
    with pytest.raises(ValueError, match=f"SGLANG_MLX_DEVICE={name}|{name!r}"):
        device.choose_device({"SGLANG_MLX_DEVICE": name})


def test_memory_is_the_machines_and_some_of_it_is_free() -> None:
    assert 0 < device.free_bytes("cpu") <= device.memory_bytes("cpu")


def test_choosing_imports_neither_mlx_nor_torch_nor_numpy() -> None:
    seen = run(
        "from sglang_mlx_plugin.engine.device import choose_device\n"
        "choose_device({})\n"
        "answer = [n for n in ('mlx.core', 'torch', 'numpy', 'psutil') if n in sys.modules]"
    )
    assert seen == []


@pytest.mark.skipif(sys.platform != "linux", reason="a Mac is never touched")
def test_blas_is_lent_before_mlx_without_torch_being_imported() -> None:
    report = run(
        "from sglang_mlx_plugin.engine import device\n"
        "report = device.lend_blas('cpu')\n"
        "answer = [report.lent, report.late, 'torch' in sys.modules,"
        " device.lend_blas() is report, device.measured_gflops(512)]"
    )
    assert report[:4] == [True, False, False, True]
    # The reference BLAS gives 1.6 whatever else the machine does.
    assert report[4] > 4


@pytest.mark.skipif(sys.platform != "linux", reason="a Mac is never touched")
def test_lending_too_late_is_reported() -> None:
    report = run(
        "import mlx.core\n"
        "from sglang_mlx_plugin.engine import device\n"
        "report = device.lend_blas('cpu')\n"
        "answer = [report.lent, report.late, str(report)]"
    )
    assert report[:2] == [False, True]
    assert "before torch's BLAS" in report[2]


@pytest.mark.parametrize("kind", ["metal", "cuda"])
def test_a_gpu_is_lent_nothing(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(device, "_blas", None)
    monkeypatch.setattr(device.ctypes, "CDLL", lambda *args, **kwargs: pytest.fail("loaded"))
    assert not device.lend_blas(kind).lent  # type: ignore[arg-type]


def test_a_mac_is_lent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_blas", None)
    on_mac(monkeypatch)
    monkeypatch.setattr(device.ctypes, "CDLL", lambda *args, **kwargs: pytest.fail("loaded"))
    assert not device.lend_blas("cpu").lent


def run(code: str) -> list[object]:
    """The value of ``answer`` after `code` ran in an interpreter of its own."""
    script = f"import sys, json\n{code}\nprint(json.dumps(answer))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    answer: list[object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_freed_memory_is_kept_for_a_cpu_alone() -> None:
    """glibc takes the settings; no other device's process is touched."""
    import platform

    assert device.keep_freed_memory("cpu") is (platform.libc_ver()[0] == "glibc")
    assert not device.keep_freed_memory("metal")
    assert not device.keep_freed_memory("cuda")
