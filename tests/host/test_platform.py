"""The platform answers whatever SGLang asks of an out-of-tree platform."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

sglang = pytest.importorskip("sglang")
torch = pytest.importorskip("torch")

from sglang_mlx_plugin.host.errors import LaunchError  # noqa: E402
from sglang_mlx_plugin.host.platform import MlxPlatform  # noqa: E402

ROOT = Path(sglang.__file__).parent
# Other hardware's own code, and the diffusion server with its platform of another kind.
NOT_OURS = ("hardware_backend", "multimodal_gen", "test", "kernels/ops/diffusion")


@pytest.fixture(scope="module")
def platform() -> MlxPlatform:
    return MlxPlatform()


def asked() -> Iterator[str]:
    """Attributes that SGLang reads off ``current_platform``, found in its source."""
    for path in ROOT.rglob("*.py"):
        if str(path.relative_to(ROOT)).startswith(
            tuple(f"srt/{part}" for part in NOT_OURS) + NOT_OURS
        ):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if "current_platform" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "current_platform"
            ):
                yield node.attr


def test_everything_that_is_asked_has_an_answer(platform: MlxPlatform) -> None:
    names = set(asked())
    assert {"is_out_of_tree", "get_device", "apply_server_args_defaults"} <= names
    missing = {name for name in names if not hasattr(platform, name)}
    assert not missing
    # What upstream's base only raises for must be ours.
    abstract = {
        name
        for name in names
        if inspect.isfunction(getattr(MlxPlatform, name, None))
        and "raise NotImplementedError" in inspect.getsource(getattr(MlxPlatform, name))
    }
    # Speculative decoding is refused before these are asked.
    assert abstract <= {"get_default_speculative_draft_attention_backend"}


def test_sglang_chose_it_here() -> None:
    from sglang.srt.platforms import current_platform

    assert isinstance(current_platform, MlxPlatform)
    assert current_platform.is_out_of_tree()
    assert not current_platform.is_cuda_alike()


def test_the_torch_side_is_the_cpu(platform: MlxPlatform) -> None:
    # A string: upstream splits it at the colon, although its docstring says torch.device.
    assert platform.get_device() == "cpu"
    assert platform.get_device(0).split(":")[0] == "cpu"
    assert platform.get_group_coordinator_device(0) == torch.device("cpu")
    assert platform.get_torch_distributed_backend_str() == "gloo"
    assert platform.get_default_attention_backend() == "torch_native"
    assert not platform.is_pin_memory_available()


def test_memory_is_the_mlx_devices(platform: MlxPlatform) -> None:
    free, total = platform.get_available_memory()
    assert 0 < free <= total == platform.get_device_total_memory()
    assert platform.get_current_memory_usage() >= 0


def test_what_has_no_meaning_here_does_nothing(platform: MlxPlatform) -> None:
    platform.set_device(torch.device("cpu"))
    platform.empty_cache()
    platform.synchronize()
    platform.init_backend()
    assert platform.get_device_capability() is None
    assert platform.get_device_uuid() and platform.get_device_name()
    with platform.reindex_device_id(3) as index:
        assert index == 3


def test_a_seed_is_a_seed(platform: MlxPlatform) -> None:
    platform.seed_everything(7)
    first = torch.rand(3)
    platform.seed_everything(7)
    assert torch.equal(first, torch.rand(3))


def test_a_torch_model_is_never_served(platform: MlxPlatform) -> None:
    with pytest.raises(LaunchError, match="loaded the model with torch"):
        platform.post_load_model(torch.nn.Linear(1, 1))
