"""A GGUF file's tokenizer as ``tokenizer.json`` and ``tokenizer_config.json``.

GGUF keeps the vocabulary and the merges (or scores), and only names the rule by which text is
cut before merging. That rule decides the tokens (SmolLM2 takes digits one by one), so a name
that is not known here is refused rather than guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ModelFileError
from .gguf import GGUFFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["end_tokens", "write_tokenizer"]

_MAX_TOKEN_CHARACTERS = 1024
_MAX_TOKENS = 1 << 20
# GGUF's kinds of token.
_UNKNOWN, _CONTROL, _USER = 2, 3, 4
_SPECIAL = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_tokenizer(file: GGUFFile, folder: Path, context: int) -> None:
    """Write the tokenizer, its settings and the chat template.

    Args:
        file: The open file.
        folder: Where to write.
        context: Tokens that the model was made for.

    Raises:
        ModelFileError: If the tokenizer is of an unknown kind or its tables do not fit together.
        OSError: If the folder cannot be written.
    """
    meta = file.metadata
    kind = meta.text("tokenizer.ggml.model")
    build = {"gpt2": _byte_level, "llama": _sentence_pieces}.get(kind)
    if build is None:
        file.fail(f"its tokenizer is of the kind {kind!r}, and only 'gpt2' and 'llama' are known")
    tokens = meta.texts("tokenizer.ggml.tokens")
    vocab = {token: number for number, token in enumerate(tokens)}
    if len(tokens) > _MAX_TOKENS or len(vocab) != len(tokens) or not tokens:
        file.fail(f"its vocabulary of {len(tokens)} tokens is empty, too large or repeats a token")
    if max(map(len, tokens)) > _MAX_TOKEN_CHARACTERS or "" in vocab:
        file.fail("its vocabulary has an empty token, or one of more than 1024 characters")
    try:
        tokenizer = build(file, tokens, vocab)
        _add_marked_tokens(file, tokenizer, tokens)
        special = _special_tokens(file, tokens)
        _add_ends(file, tokenizer, special, kind)
        tokenizer.save(str(folder / "tokenizer.json"))
    except (ModelFileError, OSError):
        raise
    except Exception as error:  # tokenizers raises plain Exception for tables that do not fit.
        file.fail(f"its tokenizer does not fit together ({str(error).splitlines()[:1]})")
    settings: dict[str, Any] = {
        # The class that takes tokenizer.json as it is; named classes rebuild parts of it.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        **{f"{name}_token": token for name, token in special.items()},
    }
    if "tokenizer.chat_template" in meta:
        settings["chat_template"] = meta.text("tokenizer.chat_template")
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def end_tokens(file: GGUFFile) -> list[int]:
    """Ids of the tokens that end an answer, the principal one first.

    Raises:
        ModelFileError: If the file names none, or one outside its vocabulary.
    """
    meta = file.metadata
    last = len(meta.texts("tokenizer.ggml.tokens")) - 1
    found = [meta.integer("tokenizer.ggml.eos_token_id", 0, last)]
    for name in ("eot", "eom"):
        key = f"tokenizer.ggml.{name}_token_id"
        if key in meta:
            found.append(meta.integer(key, 0, last))
    return list(dict.fromkeys(found))


def _byte_level(file: GGUFFile, tokens: list[str], vocab: dict[str, int]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cuts: dict[str, Callable[[], Any]] = {
        "gpt-2": lambda: gpt2,
        "smollm": lambda: pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), gpt2]
        ),
        "llama-bpe": lambda: pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), "isolated"), bytes_only]
        ),
    }
    rule = file.metadata.text("tokenizer.ggml.pre")
    if rule not in cuts:
        known = ", ".join(cuts)
        file.fail(f"its tokenizer cuts text by the rule {rule!r}, and only {known} are known")
    merges = []
    for text in file.metadata.texts("tokenizer.ggml.merges"):
        left, space, right = text.partition(" ")
        if not space or not {left, right, left + right} <= vocab.keys():
            file.fail(f"its merge {text[:80]!r} is not of two tokens that make a third")
        merges.append((left, right))
    # Llama 3 takes a word that is a token as it is, whatever the merges say.
    whole = rule == "llama-bpe"
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=whole))
    tokenizer.pre_tokenizer = cuts[rule]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_pieces(file: GGUFFile, tokens: list[str], vocab: dict[str, int]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = file.metadata.numbers("tokenizer.ggml.scores", len(tokens))
    # SentencePiece joins the pair whose union scores highest, so the list of all pairs in the
    # order of their unions' scores is the list of merges.
    merges = []
    for token, number in vocab.items():
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        inside = [pair for pair in pairs if pair[0] in vocab and pair[1] in vocab]
        inside.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        merges += [(-float(scores[number]), pair) for pair in inside]
    merges.sort(key=lambda entry: entry[0])
    unknown = file.metadata.integer("tokenizer.ggml.unknown_token_id", 0, len(tokens) - 1, 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[pair for _, pair in merges],
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = [normalizers.Replace(" ", "▁")]
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.metadata.flag("tokenizer.ggml.add_space_prefix", default=True):
        spaces.insert(0, normalizers.Prepend("▁"))
        back.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(back)
    return tokenizer


def _add_marked_tokens(file: GGUFFile, tokenizer: Tokenizer, tokens: list[str]) -> None:
    from tokenizers import AddedToken

    kinds = file.metadata.numbers("tokenizer.ggml.token_type", len(tokens))
    marked = [
        AddedToken(token, special=kind != _USER, normalized=False)
        for token, kind in zip(tokens, kinds.tolist(), strict=True)
        if kind in (_UNKNOWN, _CONTROL, _USER)
    ]
    # They are in the vocabulary already, and so keep their ids.
    tokenizer.add_tokens(marked)


def _special_tokens(file: GGUFFile, tokens: list[str]) -> dict[str, str]:
    found = {}
    for theirs, ours in _SPECIAL.items():
        key = f"tokenizer.ggml.{theirs}_token_id"
        if key in file.metadata:
            found[ours] = tokens[file.metadata.integer(key, 0, len(tokens) - 1)]
    return found


def _add_ends(file: GGUFFile, tokenizer: Tokenizer, special: dict[str, str], kind: str) -> None:
    from tokenizers import processors

    meta = file.metadata
    # What llama.cpp does where the file is silent.
    default = kind == "llama" or meta.text("tokenizer.ggml.pre") == "llama-bpe"
    first = meta.flag("tokenizer.ggml.add_bos_token", default=default)
    last = meta.flag("tokenizer.ggml.add_eos_token", default=False)
    names = [special.get("bos") if first else None, special.get("eos") if last else None]
    if names == [None, None]:
        return
    one = " ".join(part for part in (names[0], "$A", names[1]) if part)
    two = " ".join(part for part in (names[0], "$B:1", names[1]) if part)
    ids = [(name, tokenizer.token_to_id(name)) for name in dict.fromkeys(names) if name]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=one, pair=f"{one} {two}", special_tokens=ids
    )
