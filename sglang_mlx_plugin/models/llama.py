"""The llama architecture: its GGUF metadata and tensors in the names of a model folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ModelFileError
from .gguf import GGUFFile, TensorInfo

__all__ = ["Llama", "Target", "read_llama", "unpermute"]

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True)
class Target:
    """What one tensor of the file becomes.

    Attributes:
        module: Path of the module in the model folder; its parameter is ``module.weight``.
        source: The tensor in the file.
        heads: Heads whose rows GGUF has reordered, to be put back; 0 for every other tensor.
    """

    module: str
    source: TensorInfo
    heads: int = 0


@dataclass(frozen=True)
class Llama:
    """A llama model: its ``config.json`` so far (no dtype, eos or quantisation), its tensors."""

    config: dict[str, Any]
    targets: tuple[Target, ...]


def read_llama(file: GGUFFile) -> Llama:
    """Understand a GGUF file as a llama model, each shape checked.

    Raises:
        ModelFileError: If it is of another architecture, a variant that a folder of the llama
            family cannot express, or if a tensor is missing, superfluous or of a wrong shape.
    """
    meta = file.metadata
    architecture = meta.text("general.architecture")
    if architecture != "llama":
        raise ModelFileError(
            f"The GGUF file {str(file.path)!r} is of the architecture {architecture!r}, and only "
            "'llama' can be converted: fetch that model as safetensors instead."
        )
    _refuse_variants(file)
    layers = meta.integer("llama.block_count", 1, 1024)
    hidden = meta.integer("llama.embedding_length", 1, 1 << 20)
    inner = meta.integer("llama.feed_forward_length", 1, 1 << 22)
    heads = meta.integer("llama.attention.head_count", 1, 4096)
    kv_heads = meta.integer("llama.attention.head_count_kv", 1, heads, default=heads)
    head_dim = meta.integer("llama.attention.key_length", 2, 4096, default=hidden // heads)
    value_dim = meta.integer("llama.attention.value_length", 2, 4096, default=head_dim)
    rotated = meta.integer("llama.rope.dimension_count", 2, 4096, default=head_dim)
    if heads % kv_heads or head_dim % 2 or not head_dim == value_dim == rotated:
        file.fail(
            f"its attention has {heads} heads, {kv_heads} KV heads, and {head_dim} key, "
            f"{value_dim} value and {rotated} rotated dimensions, which do not go together"
        )
    vocab = len(meta.texts("tokenizer.ggml.tokens"))
    vocab = meta.integer("llama.vocab_size", vocab, 1 << 22, default=vocab)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": inner,
        "max_position_embeddings": meta.integer("llama.context_length", 1, 1 << 30),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": meta.number("llama.attention.layer_norm_rms_epsilon", 0.0, 1.0),
        "rope_theta": meta.number("llama.rope.freq_base", 1.0, 1e30, default=10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "use_cache": True,
        "vocab_size": vocab,
    }
    scaling = _rope_scaling(file)
    if scaling is not None:
        config["rope_scaling"] = scaling
    queries, keys = heads * head_dim, kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_output": (hidden, queries),
        "ffn_norm": (hidden,),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    reordered = {"attn_q": heads, "attn_k": kv_heads}
    wanted: list[tuple[str, str, tuple[int, ...], int]] = [
        ("token_embd", "model.embed_tokens", (vocab, hidden), 0)
    ]
    for layer in range(layers):
        for part, module in _LAYER.items():
            path = f"model.layers.{layer}.{module}"
            wanted.append((f"blk.{layer}.{part}", path, shapes[part], reordered.get(part, 0)))
    wanted.append(("output_norm", "model.norm", (hidden,), 0))
    if not config["tie_word_embeddings"]:
        wanted.append(("output", "lm_head", (vocab, hidden), 0))
    return Llama(config, _match(file, wanted))


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Put the rows of a query or key matrix back into the order of model folders.

    GGUF stores each head's rows so that the two numbers that rotary embedding turns together
    stand side by side; folders keep the first halves before the second ones. Only whole rows
    move, so this works on packed blocks as well as on numbers.

    Args:
        rows: (heads * head_dim, anything).
        heads: How many heads the rows belong to.

    Returns:
        The same rows, reordered.
    """
    count, width = rows.shape
    pairs = rows.reshape(heads, count // heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(count, width)


def _refuse_variants(file: GGUFFile) -> None:
    meta = file.metadata
    if meta.integer("llama.expert_count", 0, 1 << 16, default=0):
        file.fail("it is a mixture of experts, and only dense llama models can be converted")
    if "rope_freqs.weight" in file.tensors:
        file.fail(
            "it scales its rotary embedding with a table (rope_freqs, as Llama 3.1 does) that "
            "the formula in a model folder cannot express"
        )


def _rope_scaling(file: GGUFFile) -> dict[str, Any] | None:
    meta = file.metadata
    kind = meta.text("llama.rope.scaling.type", default="none")
    if kind == "none":
        return None
    if kind != "linear":
        file.fail(f"it scales its rotary embedding by {kind!r}, and only 'linear' is known")
    factor = meta.number("llama.rope.scaling.factor", 1e-6, 1e6)
    return {"rope_type": "linear", "type": "linear", "factor": factor}


def _match(
    file: GGUFFile, wanted: list[tuple[str, str, tuple[int, ...], int]]
) -> tuple[Target, ...]:
    targets = []
    for name, module, shape, heads in wanted:
        info = file.tensors.get(f"{name}.weight")
        if info is None:
            file.fail(f"it lacks the tensor '{name}.weight'")
        if info.shape != shape:
            file.fail(f"its tensor {info.name!r} has the shape {info.shape} instead of {shape}")
        if len(shape) == 1 and info.type.name not in ("F32", "F16", "BF16"):
            file.fail(f"its vector {info.name!r} is quantised as {info.type.name}")
        targets.append(Target(module, info, heads))
    extra = file.tensors.keys() - {target.source.name for target in targets}
    if extra:
        file.fail(f"it has the tensor {min(extra)!r}, which no llama model folder has a place for")
    return tuple(targets)
