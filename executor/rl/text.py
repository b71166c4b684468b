"""Text to tokens and back: a tokenizer of the model, or an alphabet of single characters for toy tasks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles.errors import FileFormatError, InputError

Messages = list[dict[str, str]]
"""A conversation: each message has a ``role`` and its ``content``."""


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

    def encode_chat(self, messages: Messages) -> list[int]:
        """Token ids of a conversation by the tokenizer's chat template, up to where the assistant begins to answer."""
        if self._loaded is None or self._loaded.chat_template is None:
            raise InputError(f"messages take a chat template, and {self.tokenizer or 'an alphabet'} has none")
        return list(self._loaded.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    def end_tokens(self) -> tuple[int, ...]:
        """Tokens that end a text: the tokenizer's own, and those of the ``generation_config.json`` beside it."""
        self.load()
        own = None if self._loaded is None else self._loaded.eos_token_id
        found = set() if own is None else {int(own)}
        file = Path(self.tokenizer or "") / "generation_config.json"
        if self.tokenizer is not None and file.exists():
            try:
                given = json.loads(file.read_text()).get("eos_token_id")
                found |= {int(i) for i in (given if isinstance(given, list) else [given]) if i is not None}
            except (OSError, ValueError, TypeError, AttributeError) as error:
                raise FileFormatError(f"{file}: no generation config with an eos_token_id ({error})") from error
        return tuple(sorted(found))

    def decode(self, tokens: list[int]) -> str:
        """Text; tokens beyond the alphabet read as a question mark."""
        if self._loaded is not None:
            return str(self._loaded.decode(tokens, skip_special_tokens=True))
        assert self.alphabet is not None
        return "".join(self.alphabet[i] if i < len(self.alphabet) else "?" for i in tokens)
