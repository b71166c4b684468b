"""Text to tokens and back: a tokenizer of the model, or an alphabet of single characters for toy tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from profiles.errors import InputError


@dataclass
class TextCodec:
    """One of ``alphabet`` (token ``i`` is its ``i``-th character) and ``tokenizer`` (a local Hugging Face folder)."""

    alphabet: str | None = None
    tokenizer: str | None = None
    _loaded: Any = field(default=None, repr=False, compare=False)

    def load(self) -> None:
        """Make ready; ``InputError`` if the tokenizer cannot be read."""
        if self.tokenizer is None or self._loaded is not None:
            return
        try:
            from transformers import AutoTokenizer

            self._loaded = AutoTokenizer.from_pretrained(self.tokenizer, local_files_only=True, trust_remote_code=False)
        except (ImportError, OSError, ValueError) as error:
            raise InputError(f"tokenizer {self.tokenizer}: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Token ids; ``InputError`` for a character that the alphabet lacks."""
        if self._loaded is not None:
            return list(self._loaded.encode(text, add_special_tokens=False))
        assert self.alphabet is not None
        unknown = sorted(set(text) - set(self.alphabet))
        if unknown:
            raise InputError(f"the alphabet '{self.alphabet}' lacks {', '.join(map(repr, unknown))}")
        return [self.alphabet.index(character) for character in text]

    def decode(self, tokens: list[int]) -> str:
        """Text; tokens beyond the alphabet read as a question mark."""
        if self._loaded is not None:
            return str(self._loaded.decode(tokens, skip_special_tokens=True))
        assert self.alphabet is not None
        return "".join(self.alphabet[i] if i < len(self.alphabet) else "?" for i in tokens)
