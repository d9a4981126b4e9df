"""Prompts of an exact number of tokens, the same for everyone, never the same twice."""

from __future__ import annotations

import random
from pathlib import Path

from .types import BenchError

__all__ = ["PromptMaker"]

# Plain nouns that most tokenizers hold as one token each; variety is what matters.
_TEXT = """
river mountain garden window paper bridge market winter summer doctor teacher engine signal
village forest ocean island planet camera bottle kitchen letter number picture railway station
harbor machine library science history language question answer memory pattern surface valley
castle journey weather shadow silver copper battle farmer soldier artist writer singer driver
student captain culture nation border energy matter motion
"""
_WORDS = tuple(_TEXT.split())


class PromptMaker:
    """Makes prompts of a folder's tokenizer.

    The first words are random, so that two prompts share no prefix worth caching.
    """

    def __init__(self, folder: Path, seed: str = "") -> None:
        from tokenizers import Tokenizer

        path = folder / "tokenizer.json"
        if not path.exists():
            raise BenchError(f"{folder} has no tokenizer.json, which the prompts are made with.")
        self._tokenizer = Tokenizer.from_file(str(path))
        self._random = random.Random(seed)

    def reseed(self, seed: str) -> None:
        """Start a new series: the same seed gives the same prompts in any run."""
        self._random = random.Random(seed)

    def encode(self, text: str) -> list[int]:
        """Token ids as a server would see them."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, tokens: list[int]) -> str:
        """The text that a server would send for these tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def plain(self, text: str) -> str:
        """A text without the special tokens that a server may have written out."""
        return self.decode(self.encode(text))

    def prompt(self, tokens: int, *, prefix: str = "") -> str:
        """A text of exactly `tokens` tokens (as near as the tokenizer allows), after `prefix`."""
        words = [] if prefix else [self._random.choice(_WORDS)]
        text = prefix + " ".join(words)
        while len(self.encode(text)) < tokens:
            missing = tokens - len(self.encode(text))
            # In large steps first; the last few one word at a time.
            for _ in range(max(1, missing // 3)):
                text += " " + self._random.choice(_WORDS)
        ids = self.encode(text)
        if len(ids) > tokens:
            shorter = self.decode(ids[:tokens])
            if len(self.encode(shorter)) <= len(ids):
                text = shorter
        return text
