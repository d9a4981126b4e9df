"""The tokenizer that a folder gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from sglang_mlx_plugin.models.convert import convert_gguf
from sglang_mlx_plugin.models.errors import ModelFileError
from tests.models.tiny_gguf import HIDDEN, SPECIAL, TOKENS, random_weights, write_gguf

TEXTS = [
    "",
    " ",
    "hello world",
    "  two  spaces\n\n\ttabs ",
    "In 2024, 12 + 345",
    "naïve café 日本語 🦙🏽 é \u200d \u00a0",
    "it's we'll I'D",
    "\x00\x7f\ufeff",
]


def folder_of(tmp_path: Path, **changes: Any) -> Path:
    weights = random_weights()
    tokens = changes.get("tokenizer.ggml.tokens") or TOKENS
    weights["token_embd"] = np.resize(weights["token_embd"], (len(tokens), HIDDEN))
    write_gguf(tmp_path / "tiny.gguf", changes=changes, weights=weights)
    (tmp_path / "folder").mkdir()
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "folder")
    return tmp_path / "folder"


def tokenizer_of(tmp_path: Path, **changes: Any) -> Tokenizer:
    return Tokenizer.from_file(str(folder_of(tmp_path, **changes) / "tokenizer.json"))


@pytest.mark.parametrize("rule", ["smollm", "gpt-2", "llama-bpe"])
def test_text_comes_back(rule: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, **{"tokenizer.ggml.pre": rule})
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_merges_and_digits(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    smollm = tokenizer_of(tmp_path / "a")
    gpt2 = tokenizer_of(tmp_path / "b", **{"tokenizer.ggml.pre": "gpt-2"})
    assert smollm.encode("hello w").tokens == ["hell", "o", "Ġw"]
    # The rule decides: SmolLM2 never joins digits, though the vocabulary has "12".
    assert smollm.encode("12").tokens == ["1", "2"]
    assert gpt2.encode("12").tokens == ["12"]


def test_special_tokens_are_one_token_each(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path)
    for number, token in enumerate(SPECIAL):
        assert tokenizer.encode(token).ids == [number]
        assert tokenizer.encode(f"he{token}he").ids == [
            TOKENS.index("he"), number, TOKENS.index("he")
        ]  # fmt: skip
    assert tokenizer.decode([1, TOKENS.index("he"), 2]) == "he"
    assert tokenizer.get_vocab_size() == len(TOKENS)


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({}, []),
        ({"tokenizer.ggml.add_bos_token": True}, [1]),
        ({"tokenizer.ggml.add_bos_token": None, "tokenizer.ggml.pre": "llama-bpe"}, [1]),
    ],
)
def test_a_first_token_where_the_file_asks_for_one(
    changes: dict[str, Any], want: list[int], tmp_path: Path
) -> None:
    assert tokenizer_of(tmp_path, **changes).encode("he").ids == [*want, TOKENS.index("he")]


def test_transformers_reads_it(tmp_path: Path) -> None:
    from sglang_mlx_plugin.host import torchvision_cure

    torchvision_cure.install()
    from transformers import AutoConfig, AutoTokenizer

    folder = folder_of(tmp_path)
    assert AutoConfig.from_pretrained(folder).eos_token_id == 2
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.eos_token_id == 2
    assert tokenizer.bos_token_id == 1
    assert tokenizer.model_max_length == 256
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("12") == [TOKENS.index("1"), TOKENS.index("2")]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_sentence_pieces_as_their_own_library_cuts_them(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    text = tmp_path / "corpus.txt"
    text.write_text(
        "\n".join(f"the quick brown fox {n} jumps over the lazy dog again" for n in range(200))
    )
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(tmp_path / "pieces"),
        model_type="bpe",
        vocab_size=330,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "pieces.model"))
    count = theirs.get_piece_size()
    kinds = [
        2 if theirs.is_unknown(n) else 3 if theirs.is_control(n) else 6 if theirs.is_byte(n) else 1
        for n in range(count)
    ]
    ours = tokenizer_of(
        tmp_path,
        **{
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": None,
            "tokenizer.ggml.merges": None,
            "tokenizer.ggml.tokens": [theirs.id_to_piece(n) for n in range(count)],
            "tokenizer.ggml.scores": [theirs.get_score(n) for n in range(count)],
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_bos_token": None,
        },
    )
    for sample in ["the lazy fox", "quick quicker quickest", "dog 日本 🦙", "a  b"]:
        want = theirs.encode(sample)
        assert ours.encode(sample).ids == [1, *want], sample
        assert ours.decode([1, *want]) == theirs.decode(want)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "of the kind 'rwkv'"),
        ({"tokenizer.ggml.pre": "tekken"}, "by the rule 'tekken'"),
        ({"tokenizer.ggml.merges": ["h e", "nospace"]}, "merge 'nospace'"),
        ({"tokenizer.ggml.merges": ["h é"]}, "not of two tokens"),
        ({"tokenizer.ggml.tokens": ["a"] * len(TOKENS)}, "repeats a token"),
        ({"tokenizer.ggml.tokens": ["", *TOKENS[1:]]}, "empty token"),
        ({"tokenizer.ggml.tokens": ["x" * 2000, *TOKENS[1:]]}, "1024 characters"),
        ({"tokenizer.ggml.token_type": [1]}, "a list of"),
        ({"tokenizer.ggml.tokens": None}, "lacks the metadata key"),
        ({"tokenizer.ggml.bos_token_id": 9999}, "a whole number"),
        ({"tokenizer.ggml.add_bos_token": 1}, "true or false"),
        ({"tokenizer.chat_template": 1}, "a text"),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=words):
        folder_of(tmp_path, **changes)
