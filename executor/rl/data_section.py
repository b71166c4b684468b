"""``run.data`` and ``run.validation``: where prompts come from. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from executor.section import Section


class DataSection(Section):
    """Where prompts come from, and how text becomes tokens.

    ``task`` is a made-up task with known answers, ``file`` a JSONL file with ``prompt`` and (for functions)
    ``answer``. Every pass over a file takes each of its prompts once, in an order of its own with ``shuffle``. A
    ``prompt`` that is a list of messages goes through the tokenizer's chat template, with ``chat_template`` one that
    is a text, too, as the message of a user. ``alphabet`` makes each character a token; else ``tokenizer`` is a local
    Hugging Face folder.
    """

    task: str | None = None
    file: str | None = None
    digits: Annotated[int, Field(ge=2, le=10)] = 6
    shuffle: bool = True
    alphabet: str | None = None
    tokenizer: str | None = None
    chat_template: bool = False

    @model_validator(mode="after")
    def _one_of_each(self) -> DataSection:
        if (self.task is None) == (self.file is None):
            raise ValueError("give either task or file")
        if (self.alphabet is None) == (self.tokenizer is None):
            raise ValueError("give either alphabet or tokenizer")
        if self.chat_template and self.tokenizer is None:
            raise ValueError("chat_template is a tokenizer's: give tokenizer")
        return self


class ValidationSection(Section):
    """Score held-out prompts before every ``every``-th iteration, the first included with ``at_start``.

    ``file`` holds them as that of ``data`` does; without one, prompts of the same task are drawn with another seed.
    ``prompts``: how many, all of a file unless given. Each gets ``samples`` responses, the likeliest ones unless
    ``do_sample``.
    """

    every: Annotated[int, Field(ge=1)]
    file: str | None = None
    prompts: Annotated[int, Field(ge=1)] | None = None
    samples: Annotated[int, Field(ge=1)] = 1
    do_sample: bool = False
    at_start: bool = True

    def is_due(self, iteration: int) -> bool:
        """Whether held-out prompts are scored before iteration ``iteration``, which counts from 0."""
        return iteration % self.every == 0 and (iteration > 0 or self.at_start)
