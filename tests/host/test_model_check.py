"""What is wrong with a model folder, in one sentence, before anything is started."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_mlx_plugin.host.errors import LaunchError
from sglang_mlx_plugin.host.model_check import check_model_folder, find_model, known_model_types


def safetensors(header: dict[str, Any] | bytes, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


GOOD = safetensors(
    {
        "__metadata__": {"format": "mlx"},
        "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    },
    b"\0" * 8,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "model.safetensors").write_bytes(GOOD)
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def problem(folder: Path, **options: Any) -> str:
    with pytest.raises(LaunchError) as caught:
        check_model_folder(folder, tokenizer=folder, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_a_good_folder_passes(folder: Path) -> None:
    check_model_folder(folder, tokenizer=folder)


def test_aliases_of_mlx_lm_are_known() -> None:
    # mlx-lm has no mistral.py: the name is an alias of llama.
    assert {"llama", "mistral", "qwen3", "phi-msft"} <= known_model_types()
    assert "cache" not in known_model_types()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "There is no"),
        ("{", "is not JSON"),
        ("[]", "not a JSON object"),
        ("[" * 100_000, "is not JSON"),
        ("\0", "is not JSON"),
        ("{}", "names no model_type"),
        ('{"model_type": 3}', "names no model_type"),
        ('{"model_type": "nonesuch"}', "no model for model_type 'nonesuch'"),
        ('{"model_type": "../../evil"}', "no model for model_type"),
    ],
)
def test_a_config_that_cannot_be_used(folder: Path, config: str | None, words: str) -> None:
    path = folder / "config.json"
    path.unlink()
    if config is not None:
        path.write_text(config)
    assert words in problem(folder)


def test_code_of_the_folder_needs_trust(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "x", "model_file": "m.py"}))
    assert "--trust-remote-code" in problem(folder)
    check_model_folder(folder, tokenizer=folder, trust_remote_code=True)


def test_a_vendors_loader_may_know_other_families(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "nonesuch"}))
    (folder / "model.safetensors").unlink()
    check_model_folder(folder, tokenizer=folder, builtin_loader=False)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cut off after 0 bytes"),
        (b"\x08\0\0", "cut off after 3 bytes"),
        (GOOD[:-1], "'w' ends 1 bytes past the end"),
        (GOOD[:20], "its header claims"),
        (struct.pack("<Q", 1 << 62) + b"{}", "its header claims"),
        (safetensors(b"not json"), "its header is not JSON"),
        (safetensors(b"[]"), "not a table of tensors"),
        (safetensors({"w": {}}), "gives no place for 'w'"),
        (safetensors({"w": {"data_offsets": [4, 2]}}, b"1234"), "an impossible place"),
        (safetensors({"w": {"data_offsets": [-4, 2]}}, b"1234"), "an impossible place"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS pointer"),
    ],
)
def test_weights_that_cannot_be_read(folder: Path, content: bytes, words: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    sentence = problem(folder)
    assert words in sentence
    assert "model.safetensors" in sentence


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"w": "model-1.safetensors", "v": "model-2.safetensors"}, "lacks 1 of the 2"),
        ({"w": "../model.safetensors"}, "points outside its folder"),
        ({"w": "/etc/passwd"}, "points outside its folder"),
        ({}, "has no weight_map"),
    ],
)
def test_an_index_that_cannot_be_used(folder: Path, names: dict[str, str], words: str) -> None:
    (folder / "model-1.safetensors").write_bytes(GOOD)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert words in problem(folder)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model-Q4_0.gguf", "GGUF weights only"),
        ("pytorch_model.bin", "PyTorch weights only"),
        ("weights.npz", "numpy weights only"),
        (None, "has no weights"),
    ],
)
def test_other_kinds_of_weights(folder: Path, name: str | None, words: str) -> None:
    (folder / "model.safetensors").unlink()
    if name:
        (folder / name).touch()
    assert words in problem(folder)


def test_a_missing_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer" in problem(folder)
    # --skip-tokenizer-init, or a tokenizer that lies elsewhere.
    check_model_folder(folder, tokenizer=None)
    (folder / "qwen.tiktoken").touch()
    check_model_folder(folder, tokenizer=folder)


def test_a_tokenizer_that_was_cut_off(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": ')
    assert "the tokenizer cannot be used" in problem(folder)


def test_a_folder_is_found_as_it_is(folder: Path) -> None:
    assert find_model(str(folder)) == folder


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("{folder}/nowhere", "There is no model folder"),
        ("./nowhere", "There is no model folder"),
        ("s3://bucket/model", "There is no model folder"),
        ("a/b/c", "There is no model folder"),
        ("{folder}/x.gguf", "is a GGUF file"),
        ("{folder}/config.json", "is a file; give the folder"),
    ],
)
def test_a_path_that_is_no_folder(folder: Path, path: str, words: str) -> None:
    (folder / "x.gguf").touch()
    with pytest.raises(LaunchError, match=words):
        find_model(path.format(folder=folder))


def test_an_id_of_the_hub_is_fetched_with_what_text_needs(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: dict[str, Any] = {}

    def snapshot_download(model: str, **options: Any) -> str:
        asked.update(options, model=model)
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    assert find_model("org/model-4bit", revision="v1", download_dir="/cache") == folder
    assert (asked["model"], asked["revision"], asked["cache_dir"]) == (
        "org/model-4bit",
        "v1",
        "/cache",
    )
    assert "*.safetensors" in asked["allow_patterns"]
    assert "*.bin" not in asked["allow_patterns"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("GatedRepoError", "accept its terms"),
        ("RepositoryNotFoundError", "neither a local folder nor a model"),
        ("LocalEntryNotFoundError", "check the network"),
        ("ConnectError", "check the network"),
    ],
)
def test_what_the_hub_says_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def fails(*args: Any, **options: Any) -> str:
        raise type(name, (OSError,), {})("a long\nstory")

    monkeypatch.setattr(hub, "snapshot_download", fails)
    with pytest.raises(LaunchError, match=words) as caught:
        find_model("org/model")
    assert "\n" not in str(caught.value)


def test_looking_loads_neither_mlx_nor_torch(folder: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from sglang_mlx_plugin.host.model_check import check_model_folder\n"
        f"check_model_folder(Path({str(folder)!r}), tokenizer=Path({str(folder)!r}))\n"
        "sys.exit(bool({'mlx.core', 'mlx_lm', 'torch', 'sglang'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
