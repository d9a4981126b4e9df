"""A byte-level BPE tokenizer from a GGUF file's metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import ModelFileError

__all__ = ["write_tokenizer"]

_CONTROL, _USER_DEFINED = 3, 4
# How text is split before merging; the names are llama.cpp's. Digits one by one, or not.
_SPLIT_DIGITS = {"smollm": True, "gpt-2": False, "default": False}


def write_tokenizer(metadata: dict[str, Any], folder: Path, context: int) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and the chat template.

    Args:
        metadata: The GGUF file's metadata.
        folder: The model folder.
        context: Tokens that the model can see.

    Raises:
        ModelFileError: If the tokenizer is of a kind that is not known here.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = metadata.get("tokenizer.ggml.model")
    split = metadata.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or split not in _SPLIT_DIGITS:
        raise ModelFileError(
            f"The GGUF file's tokenizer ({kind!r}, split {split!r}) is not known here; "
            f"byte-level BPE (gpt2) with a split of {', '.join(_SPLIT_DIGITS)} can be converted."
        )
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _strings(metadata, "tokenizer.ggml.merges")]
    if any(len(merge) != 2 for merge in merges):
        raise ModelFileError("The GGUF file's tokenizer has a merge that is not of two parts.")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    except Exception as error:
        raise ModelFileError(
            f"The GGUF file's tokenizer does not fit together: {error}."
        ) from error
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        if _SPLIT_DIGITS[split]
        else byte_level
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type") or []
    special = [
        AddedToken(tokens[index], special=kind == _CONTROL, normalized=False)
        for index, kind in enumerate(types[: len(tokens)])
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
    }
    for name, key in (
        ("bos_token", "bos_token_id"),
        ("eos_token", "eos_token_id"),
        ("unk_token", "unknown_token_id"),
        ("pad_token", "padding_token_id"),
    ):
        index = metadata.get(f"tokenizer.ggml.{key}")
        if isinstance(index, int) and 0 <= index < len(tokens):
            config[name] = tokens[index]
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _strings(metadata: dict[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ModelFileError(f"The GGUF file lacks a usable {key!r}.")
    return value
