"""Prompts: from a made-up task or a file to batches of token ids, drawn by seed and iteration."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tensordict import TensorDict

from executor.rl.text import TextCodec
from profiles.errors import FileFormatError, InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable

    from executor.run_config import DataSection


@dataclass(frozen=True)
class Example:
    """A prompt and its right answer (empty where there is none), as text."""

    prompt: str
    answer: str


def sorted_digits(random: np.random.Generator, digits: int) -> Example:
    """Three digits below ``digits``; the answer has them in ascending order."""
    drawn = random.integers(0, digits, 3)
    return Example("".join(map(str, drawn)) + "=", "".join(map(str, sorted(drawn))))


def modular_sum(random: np.random.Generator, digits: int) -> Example:
    """Two digits below ``digits``; the answer is their sum modulo ``digits``."""
    a, b = random.integers(0, digits, 2)
    return Example(f"{a}+{b}=", str((a + b) % digits))


TASKS: dict[str, Callable[[np.random.Generator, int], Example]] = {
    "sorted-digits": sorted_digits,
    "modular-sum": modular_sum,
}


class PromptSource:
    """Batches of ``num_prompts`` prompts, each repeated for ``samples_per_prompt`` rows that follow one another."""

    def __init__(self, section: DataSection, num_prompts: int, samples_per_prompt: int, length: int, seed: int) -> None:
        if section.task is not None and section.task not in TASKS:
            raise UnknownNameError("task", section.task, TASKS)
        self.section, self.num_prompts, self.length, self.seed = section, num_prompts, length, seed
        self.samples = samples_per_prompt
        self.codec = TextCodec(section.alphabet, section.tokenizer)
        self.codec.load()
        self._examples = read_examples(Path(section.file)) if section.file else None

    def batch(self, iteration: int) -> TensorDict:
        """The rows of an iteration: ``uid``, ``group``, ``prompts``, ``prompt_mask``, ``answers``, pretraining text.

        ``answers`` are padded with -1; ``pretrain_tokens`` are the prompts followed by their answers.
        """
        examples = [e for e in self._drawn(iteration) for _ in range(self.samples)]
        prompts = [self.codec.encode(example.prompt) for example in examples]
        answers = [self.codec.encode(example.answer) for example in examples]
        tokens, mask = left_padded(prompts, self.length)
        texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        text, text_mask = right_padded(texts, max(map(len, texts)), 0)
        first = iteration * len(examples)
        return TensorDict(
            {
                "uid": torch.arange(first, first + len(examples)),
                "group": torch.arange(first, first + len(examples)) // self.samples,
                "prompts": tokens,
                "prompt_mask": mask,
                "answers": right_padded(answers, max(map(len, answers)) or 1, -1)[0],
                "pretrain_tokens": text,
                "pretrain_mask": text_mask,
            },
            batch_size=[len(examples)],
        )

    def _drawn(self, iteration: int) -> list[Example]:
        random = np.random.default_rng((self.seed, iteration))
        if self._examples is not None:
            chosen = random.integers(0, len(self._examples), self.num_prompts)
            return [self._examples[i] for i in chosen]
        assert self.section.task is not None
        return [TASKS[self.section.task](random, self.section.digits) for _ in range(self.num_prompts)]


def left_padded(rows: list[list[int]], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens ``[B, length]`` padded on the left, and their mask; ``InputError`` for a prompt that is longer."""
    longest = max(map(len, rows))
    if longest > length:
        raise InputError(f"a prompt has {longest} tokens, workload.prompt_length is {length}")
    tokens = torch.zeros(len(rows), length, dtype=torch.int64)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for i, row in enumerate(rows):
        tokens[i, length - len(row) :] = torch.tensor(row)
        mask[i, length - len(row) :] = True
    return tokens, mask


def right_padded(rows: list[list[int]], length: int, filler: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens ``[B, length]`` padded on the right with ``filler``, and their mask."""
    tokens = torch.full((len(rows), length), filler, dtype=torch.int64)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row, dtype=torch.int64)
        mask[i, : len(row)] = True
    return tokens, mask


def read_examples(file: Path) -> list[Example]:
    """Lines of ``{"prompt": .., "answer": ..}``; errors name the line."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with a null byte
        raise InputError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    examples = []
    for number, line in enumerate(lines, start=1):
        try:
            document = json.loads(line)
            examples.append(Example(str(document["prompt"]), str(document.get("answer", ""))))
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise FileFormatError(f"{file}, line {number}: no JSON object with a prompt ({error})") from error
    if not examples:
        raise InputError(f"{file}: no prompts")
    return examples
