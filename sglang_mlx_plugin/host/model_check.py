"""Looks at a model folder before anything is started, and says what is wrong with it.

Pure Python over files: neither MLX nor torch is imported, no weight is read, and nothing
from the folder runs. What passes here can still fail in the engine; what fails here would
have ended in a stack trace, in another process, half a minute later.
"""

from __future__ import annotations

import ast
import json
import os
import re
import struct
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .errors import LaunchError, stop_launch

__all__ = ["check_model_folder", "find_model", "known_model_types"]

_JSON_LIMIT = 64 << 20
_HEADER_LIMIT = 100_000_000
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "tekken.json",
    "spiece.model",
    "sentencepiece.bpe.model",
)
# What serving text needs of a Hub repository.
_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.tiktoken", "*.txt", "*.jinja", "*.py"]


def find_model(
    model_path: str, *, revision: str | None = None, download_dir: str | None = None
) -> Path:
    """The local folder of ``--model-path``, fetched from the Hugging Face Hub if it is an id.

    Args:
        model_path: A folder, or a Hub id such as ``mlx-community/Qwen3-0.6B-4bit``.
        revision: ``--revision``.
        download_dir: ``--download-dir``.

    Raises:
        LaunchError: if there is no such folder and it is no id, or the Hub cannot give it.
    """
    path = Path(model_path).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        _refuse_file(path)
    if not _HUB_ID.fullmatch(model_path):
        stop_launch(
            f"There is no model folder {model_path!r}; give a folder with config.json and "
            "safetensors weights, or a Hugging Face id such as mlx-community/Qwen3-0.6B-4bit"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                model_path, revision=revision, cache_dir=download_dir, allow_patterns=_PATTERNS
            )
        )
    except Exception as error:
        raise LaunchError(_hub_sentence(model_path, revision, error)) from error


def check_model_folder(
    folder: Path,
    *,
    tokenizer: Path | None = None,
    trust_remote_code: bool = False,
    builtin_loader: bool = True,
) -> None:
    """Check that `folder` looks like a model that mlx-lm can load.

    Args:
        folder: The model folder.
        tokenizer: Where the tokenizer is, or None to need none.
        trust_remote_code: ``--trust-remote-code``; with it a folder may bring its own
            ``model_file``.
        builtin_loader: mlx-lm loads the model; a vendor's loader may know other families
            and other files.

    Raises:
        LaunchError: with one sentence on the first thing that is wrong.
    """
    config = _read_json(folder / "config.json", "the model folder is not complete")
    _check_sizes(folder, config)
    if builtin_loader:
        _check_model_type(folder, config, trust_remote_code)
        _check_weights(folder)
    if tokenizer is not None and tokenizer.is_dir():
        _check_tokenizer(tokenizer)


# What every reader of a config.json counts with: a number above 0 where it is given at all.
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
)


def _check_sizes(folder: Path, config: dict[str, Any]) -> None:
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, dict) else {}):
        for name in _SIZES:
            value = part.get(name)
            # Some families give a list, one number for each layer.
            if value is None or isinstance(value, list):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                stop_launch(
                    f"{folder / 'config.json'} is damaged: {name} is {value!r}, and must be a "
                    "whole number above 0"
                )


@cache
def known_model_types() -> frozenset[str]:
    """Model types that the installed mlx-lm has a module for, its aliases included."""
    spec = find_spec("mlx_lm")
    if spec is None or not spec.submodule_search_locations:
        return frozenset()
    package = Path(next(iter(spec.submodule_search_locations)))
    modules = {path.stem for path in (package / "models").glob("*.py")}
    modules |= {path.parent.name for path in (package / "models").glob("*/__init__.py")}
    aliases = {alias for alias, name in _remapping(package / "utils.py").items() if name in modules}
    return frozenset((modules | aliases) - {"__init__", "base", "cache"})


def _remapping(utils: Path) -> dict[str, str]:
    """mlx-lm's table of aliases, read without importing mlx-lm (which imports MLX)."""
    try:
        tree = ast.parse(utils.read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "MODEL_REMAPPING"
            for target in node.targets
        ):
            try:
                return dict(ast.literal_eval(node.value))
            except ValueError:
                return {}
    return {}


def _check_model_type(folder: Path, config: dict[str, Any], trust_remote_code: bool) -> None:
    own_code = config.get("model_file")
    if own_code is not None:
        if not trust_remote_code:
            stop_launch(
                f"{folder} brings its own model code ({own_code!r}), which is not run unless "
                "you trust it: read it, then add --trust-remote-code"
            )
        return
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        stop_launch(f"{folder / 'config.json'} names no model_type, so the model is unknown")
    known = known_model_types()
    if known and model_type not in known:
        stop_launch(
            f"mlx-lm has no model for model_type {model_type!r} ({folder / 'config.json'}); "
            "a newer mlx-lm may have it: pip install -U mlx-lm"
        )


def _check_weights(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = _read_json(index, "the index of the weights cannot be used").get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            stop_launch(f"{index} has no weight_map: fetch the model again")
        names = sorted(set(map(str, weight_map.values())))
        for name in names:
            if name != os.path.basename(name) or name in (".", ".."):
                stop_launch(f"{index} points outside its folder, at {name!r}: it is not used")
        shards = [folder / name for name in names]
        missing = [shard.name for shard in shards if not shard.exists()]
        if missing:
            stop_launch(
                f"{folder} lacks {len(missing)} of the {len(shards)} weight files that its index "
                f"names ({missing[0]} is the first): fetch the model again"
            )
    else:
        shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        _refuse_without_safetensors(folder)
    for shard in shards:
        problem = _safetensors_problem(shard)
        if problem is not None:
            stop_launch(f"The weights {shard} cannot be read: {problem}; fetch the model again")


def _safetensors_problem(path: Path) -> str | None:
    """What is wrong with the header of a safetensors file, as a clause, or None."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if start.startswith(b"version "):
            return "it is a Git LFS pointer, not the file itself (git lfs pull fetches it)"
        if len(start) < 8:
            return f"it is cut off after {size} bytes"
        (length,) = struct.unpack("<Q", start)
        if length > min(size - 8, _HEADER_LIMIT):
            return f"its header claims {length} bytes of the {size} that there are"
        try:
            header = json.loads(file.read(length))
        except ValueError:
            return "its header is not JSON"
    if not isinstance(header, dict):
        return "its header is not a table of tensors"
    room = size - 8 - length
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if (
            not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(isinstance(offset, int) for offset in offsets)
        ):
            return f"its header gives no place for {name!r}"
        begin, end = offsets
        if not 0 <= begin <= end:
            return f"its header gives {name!r} an impossible place"
        if end > room:
            return f"it is cut off: {name!r} ends {end - room} bytes past the end of the file"
    return None


def _check_tokenizer(folder: Path) -> None:
    if not any((folder / name).exists() for name in _TOKENIZERS) and not any(
        folder.glob("*.tiktoken")
    ):
        stop_launch(
            f"{folder} has no tokenizer (tokenizer.json, tokenizer.model or vocab.json); "
            "name a folder that has one with --tokenizer-path"
        )
    if (folder / "tokenizer.json").exists():
        _read_json(folder / "tokenizer.json", "the tokenizer cannot be used")


def _read_json(path: Path, consequence: str) -> dict[str, Any]:
    try:
        if path.stat().st_size > _JSON_LIMIT:
            stop_launch(f"{path} is larger than a JSON file of a model can be: {consequence}")
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        stop_launch(f"There is no {path}: {consequence}")
    except OSError as error:
        stop_launch(f"{path} cannot be read ({error.strerror}): {consequence}")
    except (ValueError, RecursionError) as error:
        stop_launch(f"{path} is not JSON ({error}): {consequence}")
    if not isinstance(value, dict):
        stop_launch(f"{path} holds {type(value).__name__}, not a JSON object: {consequence}")
    return value


def _refuse_file(path: Path) -> None:
    if path.suffix == ".gguf":
        stop_launch(
            f"{path} is a GGUF file, which MLX does not serve directly; convert it once with "
            f"`sglang-mlx fetch-model --from-gguf {path}` and serve the folder that it prints"
        )
    stop_launch(
        f"--model-path {path} is a file; give the folder with config.json and safetensors weights"
    )


def _refuse_without_safetensors(folder: Path) -> None:
    for pattern, words in (
        ("*.gguf", "GGUF weights"),
        ("*.bin", "PyTorch weights"),
        ("*.pth", "PyTorch weights"),
        ("*.npz", "numpy weights"),
    ):
        if any(folder.glob(pattern)):
            stop_launch(
                f"{folder} has {words} only, and MLX loads safetensors: convert the model with "
                "python -m mlx_lm convert"
            )
    stop_launch(f"{folder} has no weights: there is no *.safetensors file in it")


def _hub_sentence(model: str, revision: str | None, error: Exception) -> str:
    name = type(error).__name__
    at = f" at revision {revision!r}" if revision else ""
    if name == "GatedRepoError":
        return (
            f"{model} is a gated model: accept its terms on huggingface.co and log in (hf auth "
            "login), or give a local folder"
        )
    if name in ("RepositoryNotFoundError", "RevisionNotFoundError"):
        return (
            f"{model}{at} is neither a local folder nor a model that the Hugging Face Hub shows "
            "you: check the name, or log in (hf auth login) if it is private"
        )
    return (
        f"{model}{at} is not a local folder, and it could not be fetched from the Hugging Face "
        f"Hub ({name}): check the network, or give a local folder"
    )
