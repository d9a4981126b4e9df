"""Turns a llama GGUF into a normal mlx-lm folder, exactly."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ModelFileError
from .gguf import GGUFFile, Tensor
from .packing import GROUP, Packed, pack, plain
from .tokenizer import write_tokenizer

__all__ = ["convert"]

_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
# Tables that the file carries for other runtimes and that follow from the config.
_IGNORED = ("rope_freqs.weight",)
_DTYPES = {"float32": "F32", "uint32": "U32"}


def convert(source: Path, folder: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Write the model of a GGUF file into `folder`.

    Args:
        source: The GGUF file.
        folder: An existing folder.
        progress: Called with bytes done and bytes in all.

    Raises:
        ModelFileError: If the file is damaged, or of an architecture, tokenizer or packing
            that is not known here.
    """
    with GGUFFile(source) as file:
        config = _config(file)
        arrays = _Writer(file, config)
        quantised = arrays.write(folder / "model.safetensors", progress)
        if quantised:
            config["quantization"] = quantised
        _write_json(folder / "config.json", config)
        _write_json(
            folder / "generation_config.json",
            {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]},
        )
        write_tokenizer(file.metadata, folder, context=config["max_position_embeddings"])


def _need(file: GGUFFile, key: str, kind: type | tuple[type, ...]) -> Any:
    value = file.metadata.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ModelFileError(f"The GGUF file {str(file.path)!r} lacks a usable {key!r}.")
    return value


def _config(file: GGUFFile) -> dict[str, Any]:
    architecture = _need(file, "general.architecture", str)
    if architecture != "llama":
        raise ModelFileError(
            f"The GGUF file {str(file.path)!r} holds a model of architecture {architecture!r}; "
            "only 'llama' can be converted. Use an mlx-lm or safetensors folder instead."
        )
    heads = _need(file, "llama.attention.head_count", int)
    hidden = _need(file, "llama.embedding_length", int)
    if heads < 1 or hidden % heads:
        raise ModelFileError(
            f"The GGUF file {str(file.path)!r} has {heads} heads for a width of {hidden}."
        )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"The GGUF file {str(file.path)!r} has no token embedding.")
    for key in file.metadata:
        if key.startswith("llama.rope.scaling.") and file.metadata[key] not in ("none", 1.0):
            raise ModelFileError(
                f"The GGUF file {str(file.path)!r} scales its positions ({key}), which is not "
                "converted; use the model's safetensors folder instead."
            )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": _need(file, "llama.feed_forward_length", int),
        "num_hidden_layers": _need(file, "llama.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": file.metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": hidden // heads,
        "max_position_embeddings": _need(file, "llama.context_length", int),
        "rms_norm_eps": float(_need(file, "llama.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": float(file.metadata.get("llama.rope.freq_base", 10_000.0)),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _need(file, "tokenizer.ggml.eos_token_id", int),
    }


class _Writer:
    """Converts tensors one at a time: memory holds one, never the model."""

    def __init__(self, file: GGUFFile, config: dict[str, Any]) -> None:
        self._file = file
        self._heads = {
            "attn_q": config["num_attention_heads"],
            "attn_k": config["num_key_value_heads"],
        }
        self._layers = config["num_hidden_layers"]
        self._hidden = config["hidden_size"]

    def write(
        self, path: Path, progress: Callable[[int, int], None] | None
    ) -> dict[str, Any] | None:
        """Write all tensors as safetensors.

        Returns:
            The ``quantization`` entry of config.json, or None if nothing is quantised.
        """
        plans = [(tensor, self._name(tensor)) for tensor in self._wanted()]
        header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
        widths: dict[str, int] = {}
        offset = 0
        for tensor, name in plans:
            for part, dtype, shape in _layout(tensor, name):
                nbytes = int(np.prod(shape)) * 4
                header[part] = {
                    "dtype": _DTYPES[dtype],
                    "shape": list(shape),
                    "data_offsets": [offset, offset + nbytes],
                }
                offset += nbytes
            bits = _bits(tensor)
            if bits:
                widths[name] = bits
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        total = sum(tensor.nbytes for tensor, _ in plans)
        done = 0
        with path.open("wb") as out:
            out.write(struct.pack("<Q", len(text)))
            out.write(text)
            for tensor, name in plans:
                for array in self._arrays(tensor, name):
                    out.write(np.ascontiguousarray(array).tobytes())
                done += tensor.nbytes
                if progress is not None:
                    progress(done, total)
        return _quantization(widths)

    def _wanted(self) -> list[Tensor]:
        return [t for name, t in sorted(self._file.tensors.items()) if name not in _IGNORED]

    def _name(self, tensor: Tensor) -> str:
        parts = tensor.name.split(".")
        name = None
        if parts[-1] == "weight":
            if len(parts) == 2:
                name = _TOP_NAMES.get(parts[0])
            elif len(parts) == 4 and parts[0] == "blk" and parts[1].isdigit():
                inner = _LAYER_NAMES.get(parts[2])
                if inner is not None and int(parts[1]) < self._layers:
                    name = f"model.layers.{int(parts[1])}.{inner}"
        if name is None:
            raise ModelFileError(
                f"The GGUF file {str(self._file.path)!r} has a tensor {tensor.name!r} that a "
                "llama model has no place for."
            )
        if len(tensor.shape) != (1 if name.endswith("norm") else 2):
            raise ModelFileError(
                f"The GGUF file {str(self._file.path)!r} has tensor {tensor.name!r} of shape "
                f"{tensor.shape}."
            )
        return name

    def _arrays(self, tensor: Tensor, name: str) -> Iterator[NDArray[Any]]:
        blocks = self._file.blocks(tensor)
        order = self._row_order(tensor)
        packed = pack(tensor, blocks) if len(tensor.shape) == 2 else None
        if packed is None:
            values = plain(tensor, blocks)
            yield values if order is None else values[order]
            return
        if order is not None:
            packed = packed.take(order)
        yield from _parts(packed)

    def _row_order(self, tensor: Tensor) -> NDArray[np.int64] | None:
        """Rows of q and k as mlx-lm's rope wants them.

        GGUF interleaves the two halves of each head's rotated pairs; undoing it reorders
        whole rows, so quantised rows move as they are.
        """
        heads = self._heads.get(tensor.name.split(".")[-2])
        if heads is None:
            return None
        rows = tensor.shape[0]
        if heads < 1 or rows % (2 * heads):
            raise ModelFileError(
                f"The GGUF file {str(self._file.path)!r} has {rows} rows in {tensor.name!r}, "
                f"which do not divide among {heads} heads."
            )
        grid = np.arange(rows).reshape(heads, rows // heads // 2, 2)
        return grid.swapaxes(1, 2).reshape(-1)


def _bits(tensor: Tensor) -> int:
    if len(tensor.shape) != 2:
        return 0
    return {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}.get(tensor.type.name, 0)


def _layout(tensor: Tensor, name: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Names, dtypes and shapes that a tensor is written as, in the order of `_parts`."""
    bits = _bits(tensor)
    if not bits:
        yield f"{name}.weight", "float32", tensor.shape
        return
    rows, columns = tensor.shape
    yield f"{name}.weight", "uint32", (rows, columns * bits // 32)
    yield f"{name}.scales", "float32", (rows, columns // GROUP)
    yield f"{name}.biases", "float32", (rows, columns // GROUP)


def _parts(packed: Packed) -> Iterator[NDArray[Any]]:
    yield packed.weight
    yield packed.scales
    yield packed.biases


def _quantization(widths: dict[str, int]) -> dict[str, Any] | None:
    """mlx-lm's entry: the commonest width for all, the others by name."""
    if not widths:
        return None
    counts = {bits: list(widths.values()).count(bits) for bits in set(widths.values())}
    common = max(counts, key=lambda bits: counts[bits])
    entry: dict[str, Any] = {"group_size": GROUP, "bits": common}
    for name, bits in widths.items():
        if bits != common:
            entry[name] = {"group_size": GROUP, "bits": bits}
    return entry


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
