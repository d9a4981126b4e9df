"""Model folders that every contestant is given: the same weights, and no end token.

Run as a module it makes one, in a process of its own, so that the harness holds no model:

    python -m sglang_mlx_plugin.bench.folders same SOURCE TARGET [float32]
    python -m sglang_mlx_plugin.bench.folders tiny TARGET
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["main", "without_end"]


def make_same(source: Path, target: Path, dtype: str | None) -> None:
    """Copy `source` for all contestants; with `dtype`, dequantised and cast by mlx-lm."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    quantised = "quantization" in config or "quantization_config" in config
    if dtype is None or (not quantised and _dtype(config) == dtype):
        target.mkdir(parents=True)
        for path in sorted(source.iterdir()):
            if path.is_file():
                (target / path.name).symlink_to(path.resolve())
    else:
        from mlx_lm.convert import convert

        convert(str(source), str(target), dtype=dtype, dequantize=quantised)
    without_end(target)


def make_tiny(target: Path) -> None:
    """Write a random two-layer model, 64 wide, with a byte tokenizer."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models import llama
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    target.mkdir(parents=True)
    special = ["<|bos|>", "<|end|>", "<|unused|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(special + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(target / "tokenizer.json"))
    template = (
        "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}"
        "{% endfor %}"
    )
    _write(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": special[0],
            "eos_token": special[1],
            "pad_token": special[1],
            "model_max_length": 4096,
            "clean_up_tokenization_spaces": False,
            "chat_template": template,
        },
    )
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": len(vocabulary),
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    _write(target / "config.json", config)
    mx.random.seed(0)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    # Only printable ASCII is ever generated: a token without a row of its own has logit 0, which
    # is never the highest. So no answer ends early, and no server holds half a character back.
    printable = [len(token) == 1 and "!" <= token <= "~" for token in vocabulary]
    weight = model.model.embed_tokens.weight
    model.model.embed_tokens.weight = weight * mx.array(printable).astype(weight.dtype)[:, None]
    mx.save_safetensors(
        str(target / "model.safetensors"),
        dict(tree_flatten(model.parameters())),
        metadata={"format": "pt"},
    )
    without_end(target)


def without_end(folder: Path) -> None:
    """Name a special token that a model never writes as the end token, in place.

    Servers differ in what ``ignore_eos`` is called and whether there is one; without an end
    token they all generate exactly what is asked for. A folder with no unused special token
    is left as it is, and an answer that ends early is then an error in the record.
    """
    unused = _unused_special(folder)
    if unused is None:
        return
    index, token = unused
    for name, changes in (
        ("config.json", {"eos_token_id": index}),
        ("generation_config.json", {"eos_token_id": index}),
        ("tokenizer_config.json", {"eos_token": token}),
    ):
        path = folder / name
        if not path.exists():
            continue
        data = json.loads(path.read_text(encoding="utf-8"))
        for part in (data, data.get("text_config") or {}):
            part.update({key: value for key, value in changes.items() if key in part})
        path.unlink()  # it may be a link to the source
        _write(path, data)


def _unused_special(folder: Path) -> tuple[int, str] | None:
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    added = json.loads(path.read_text(encoding="utf-8")).get("added_tokens") or []
    used = ""
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        part = folder / name
        if part.exists():
            text = part.read_text(encoding="utf-8")
            if name.endswith(".json"):
                # The list of added tokens names every one of them.
                data = json.loads(text)
                data.pop("added_tokens_decoder", None)
                data.pop("additional_special_tokens", None)
                data.pop("extra_special_tokens", None)
                text = json.dumps(data, ensure_ascii=False)
            used += text
    for token in reversed(added):
        if token.get("special") and token["content"] not in used:
            return int(token["id"]), str(token["content"])
    return None


def _dtype(config: dict[str, Any]) -> str | None:
    for part in (config, config.get("text_config") or {}):
        for key in ("dtype", "torch_dtype"):
            if part.get(key):
                return str(part[key])
    return None


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(argv: list[str]) -> int:
    """Make the folder that the arguments name."""
    match argv:
        case ["same", source, target, *dtype]:
            make_same(Path(source), Path(target), dtype[0] if dtype else None)
        case ["tiny", target]:
            make_tiny(Path(target))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
