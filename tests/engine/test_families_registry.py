"""The registry of tiny models: complete, alive, and what mlx-lm itself would load."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.families import (
    EOS_TOKEN,
    FAMILIES,
    PARTS,
    UNTESTED,
    VOCAB,
    build,
    cache_kinds,
    model_modules,
    reference_generate,
    reference_logits,
    runnable,
    save,
)

import mlx.core as mx  # isort: skip
import numpy as np  # isort: skip
from mlx.utils import tree_flatten  # isort: skip
from mlx_lm.models.cache import make_prompt_cache  # isort: skip

PROMPT = [5, 77, 31, 9, 120, 64, 18, 90, 44, 101, 23, 7, 58, 33]

# One family of each cache kind, for what need not be tried with every family.
OF_EACH_KIND = (
    "llama",
    "gemma3_text",
    "qwen3_next",
    "deepseek_v32",
    "falcon_h1",
    "mamba2",
    "llama4",
)


def test_every_model_module_of_mlx_lm_has_a_recipe_or_a_reason() -> None:
    covered = {recipe.module for recipe in FAMILIES.values()}
    assert set(model_modules()) == covered | set(UNTESTED)
    assert not covered & set(UNTESTED)


def test_parts_are_no_models() -> None:
    for name in PARTS:
        assert not hasattr(importlib.import_module(f"mlx_lm.models.{name}"), "ModelArgs"), name


@pytest.mark.parametrize("name", FAMILIES)
def test_family_builds_and_answers(name: str) -> None:
    if not runnable(name):
        pytest.skip("mlx-lm runs it by Metal kernels only")
    model, config = build(name)

    caches = make_prompt_cache(model)
    assert cache_kinds(caches) == FAMILIES[name].kinds
    assert config["model_type"] == FAMILIES[name].module
    assert {value.dtype for _, value in tree_flatten(model.parameters())} <= {
        mx.float32,
        mx.int32,
        mx.uint32,
    }

    logits = model(mx.array([PROMPT]), cache=caches)
    following = model(mx.array([[11]]), cache=caches)
    assert logits.shape == (1, len(PROMPT), VOCAB) and following.shape == (1, 1, VOCAB)

    ours = np.array(logits[0])
    assert np.isfinite(ours).all()
    # What it says changes with the position, and the first token still tells at the end.
    assert len(set(ours.argmax(-1).tolist())) > len(PROMPT) // 3
    other = reference_logits(model, [PROMPT[0] + 1, *PROMPT[1:]])
    assert np.abs(other[-1] - ours[-1]).max() > 1e-3 * ours.std()


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_weights_come_from_the_seed_alone(name: str) -> None:
    logits = [reference_logits(build(name, seed)[0], PROMPT) for seed in (0, 0, 1)]
    assert np.array_equal(logits[0], logits[1])
    assert np.abs(logits[0] - logits[2]).max() > 0.1


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_reference_is_what_mlx_lm_generates(name: str) -> None:
    from mlx_lm.generate import generate_step

    model, _ = build(name)
    tokens, logits = reference_generate(model, PROMPT, 6)
    theirs = [token for token, _ in generate_step(mx.array(PROMPT), model, max_tokens=6)]
    assert tokens == theirs
    assert logits.shape == (6, VOCAB) and logits.dtype == np.float32
    assert logits.argmax(-1).tolist() == tokens


@pytest.mark.parametrize("name", (*OF_EACH_KIND, "gpt_oss", "gemma3", "nemotron_h", "rwkv7"))
def test_saved_folder_is_one_that_mlx_lm_loads(name: str, tmp_path: Path) -> None:
    from mlx_lm.utils import load_model

    model, config = build(name)
    save(model, config, tmp_path, tokenizer=False)
    loaded, read = load_model(tmp_path)
    assert read["model_type"] == config["model_type"]
    assert np.array_equal(reference_logits(loaded, PROMPT), reference_logits(model, PROMPT))


def test_saved_tokenizer_reads_and_writes_text(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    model, config = build("llama")
    save(model, config, tmp_path)
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    assert len(tokenizer) == VOCAB
    assert tokenizer.eos_token_id == EOS_TOKEN
    text = "Is it 7 o'clock?\nYes."
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    chat = [{"role": "user", "content": "Hi"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert prompt == "user: Hi\nassistant: "
