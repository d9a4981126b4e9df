"""A tiny llama as a GGUF file, written with gguf's own writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
HEAD_DIM = HIDDEN // HEADS
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The 256 letters that byte-level tokenizers write bytes as, in the order of the bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in plain else next(spare)) for byte in range(256)]


SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "Ġ w", "1 2"]
TOKENS = [*SPECIAL, *byte_alphabet(), "he", "ll", "hell", "Ġw", "12"]
KINDS = [3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL))
# Rows of the embedding: GGUF may pad a vocabulary.
VOCAB = len(TOKENS)


def permuted(matrix: np.ndarray, heads: int) -> np.ndarray:
    """What a converter to GGUF does to query and key rows: halves become neighbours."""
    halves = matrix.reshape(heads, 2, matrix.shape[0] // heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(matrix.shape)


def random_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Weights by GGUF's names in the row order of model folders, float32."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0, 0.1, (rows, columns)).astype(np.float32)

    def norm() -> np.ndarray:
        # Multiples of 1/64 near 1: exact in float16 and bfloat16.
        return (1 + random.integers(-8, 9, HIDDEN) / 64).astype(np.float32)

    weights = {"token_embd": matrix(VOCAB, HIDDEN), "output_norm": norm()}
    for layer in range(LAYERS):
        weights |= {
            f"blk.{layer}.attn_norm": norm(),
            f"blk.{layer}.attn_q": matrix(HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_k": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_v": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_output": matrix(HIDDEN, HEADS * HEAD_DIM),
            f"blk.{layer}.ffn_norm": norm(),
            f"blk.{layer}.ffn_gate": matrix(INNER, HIDDEN),
            f"blk.{layer}.ffn_up": matrix(INNER, HIDDEN),
            f"blk.{layer}.ffn_down": matrix(HIDDEN, INNER),
        }
    return weights


def metadata() -> dict[str, Any]:
    """Keys and values; ints become uint32, floats float32."""
    return {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": 256,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": HEAD_DIM,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": KINDS,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def write_gguf(
    path: Path,
    type_name: str = "Q4_1",
    changes: dict[str, Any] | None = None,
    weights: dict[str, np.ndarray] | None = None,
    types: dict[str, str] | None = None,
) -> dict[str, np.ndarray]:
    """Write a GGUF file.

    Args:
        path: The file.
        type_name: Type of every matrix; vectors are F32.
        changes: Metadata to set, or to leave out where None.
        weights: In the row order of model folders; random ones by default.
        types: Types of single tensors.

    Returns:
        What each tensor dequantises to by gguf's reference, in the row order of folders.
    """
    weights = random_weights() if weights is None else weights
    writer = gguf.GGUFWriter(path, "llama")
    writer.kv_data[0].clear()
    for key, value in (metadata() | (changes or {})).items():
        if value is not None:
            _add(writer, key, value)
    reference = {}
    for name, matrix in weights.items():
        wanted = (types or {}).get(name, type_name if matrix.ndim > 1 else "F32")
        kind = gguf.GGMLQuantizationType[wanted]
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-1])
        stored = permuted(matrix, heads) if heads else matrix
        data = gguf.quantize(stored, kind)
        if wanted == "BF16":
            data = data.view(np.uint8)
        reference[name] = gguf.dequantize(gguf.quantize(matrix, kind), kind)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return reference


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
