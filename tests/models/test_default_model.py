"""The real default model, as mlx-lm and transformers see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TEXTS = ["naïve café 日本語 🦙🏽", "In 2024: 12345", "\tdef f(x):\n\n    return x", "<|im_end|>"]


@pytest.fixture(scope="module")
def tokenizer(default_model: Path):
    from sglang_mlx_plugin.host import torchvision_cure

    torchvision_cure.install()
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(default_model)


def test_its_settings(default_model: Path) -> None:
    config = json.loads((default_model / "config.json").read_text())
    assert config["vocab_size"] == 49152
    assert config["eos_token_id"] == 2
    assert config["rope_theta"] == 100000.0
    assert config["rms_norm_eps"] == 1e-5
    assert config["quantization"]["bits"] == 4
    assert config["quantization"]["model.embed_tokens"]["bits"] == 8


def test_its_tokenizer(tokenizer) -> None:
    assert len(tokenizer) == 49152
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == tokenizer.eos_token_id == 2
    chat = tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    assert chat.startswith("<|im_start|>system\n")
    ids = tokenizer.encode(chat)
    assert ids.count(1) == 3
    assert ids.count(2) == 2
    assert tokenizer.decode(ids) == chat
    for text in [
        "naïve café 日本語 🦙🏽",
        "In 2024: 12345",
        "\tdef f(x):\n\n    return x",
        "<|im_end|>",
    ]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    # Digits one by one, as SmolLM2 was trained.
    assert len(tokenizer.encode("12345")) == 5


def test_it_knows_the_capital(default_model: Path, tokenizer) -> None:
    from tests.support import reference

    prompt = tokenizer.encode(
        tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    )
    tokens, _ = reference.greedy(reference.load_float32(default_model), prompt, 8)
    assert tokens[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(tokens[:-1]) == "The capital of France is Paris."
