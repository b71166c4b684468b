"""Prompts: from a made-up task or a file to batches of token ids, drawn by seed and iteration."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tensordict import TensorDict

from executor.rl.text import Messages, TextCodec
from profiles.errors import FileFormatError, InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from executor.rl.data_section import DataSection, ValidationSection

HELD_OUT_PROMPTS = 64
"""Prompts of a task that are drawn for validation where the run does not say how many."""
HELD_OUT_SEED = 1 << 32
"""Added to a run's seed, which is below 2^31, for prompts that are held out."""


@dataclass(frozen=True)
class Example:
    """A prompt, a text or a conversation, and its right answer (empty where there is none)."""

    prompt: str | Messages
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
    """Batches of ``num_prompts`` prompts, each repeated for ``samples_per_prompt`` rows that follow one another.

    A file is read without replacement: no prompt comes again before all others have come. 0 prompts are all of a file.
    """

    def __init__(self, section: DataSection, num_prompts: int, samples_per_prompt: int, length: int, seed: int) -> None:
        if section.task is not None and section.task not in TASKS:
            raise UnknownNameError("task", section.task, TASKS)
        self.section, self.length, self.seed = section, length, seed
        self.samples = samples_per_prompt
        self.codec = TextCodec(section.alphabet, section.tokenizer)
        self.codec.load()
        self._examples = read_examples(Path(section.file)) if section.file else None
        self.num_prompts = num_prompts or len(self._examples or ())
        self._orders: dict[int, np.ndarray] = {}

    def batch(self, number: int) -> TensorDict:
        """The rows of the run's batch ``number``: ``uid``, ``group``, ``prompts``, ``prompt_mask``, ``answers``, text.

        ``answers`` are padded with -1; ``pretrain_tokens`` are the prompts followed by their answers.
        """
        return self._rows(self._drawn(number), number * self.num_prompts)

    def _rows(self, drawn: list[Example], first_group: int) -> TensorDict:
        prompts = [self._encoded(example.prompt) for example in drawn]
        answers = [self.codec.encode(example.answer) for example in drawn]
        tokens, mask = left_padded(prompts, self.length)
        texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        text, text_mask = right_padded(texts, max(map(len, texts)), 0)
        of_prompts = {
            "prompts": tokens,
            "prompt_mask": mask,
            "answers": right_padded(answers, max(map(len, answers)) or 1, -1)[0],
            "pretrain_tokens": text,
            "pretrain_mask": text_mask,
        }
        columns = {name: rows.repeat_interleave(self.samples, 0) for name, rows in of_prompts.items()}
        uid = torch.arange(len(drawn) * self.samples) + first_group * self.samples
        return TensorDict({"uid": uid, "group": uid // self.samples, **columns}, batch_size=[len(uid)])

    def _encoded(self, prompt: str | Messages) -> list[int]:
        if isinstance(prompt, str) and not self.section.chat_template:
            return self.codec.encode(prompt)
        return self.codec.encode_chat([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)

    def _drawn(self, number: int) -> list[Example]:
        if self._examples is not None:
            first = number * self.num_prompts
            return [self._at(place) for place in range(first, first + self.num_prompts)]
        assert self.section.task is not None
        random = np.random.default_rng((self.seed, number))
        return [TASKS[self.section.task](random, self.section.digits) for _ in range(self.num_prompts)]

    def _at(self, place: int) -> Example:
        """The example at a place of a file that is read over and over, each time in another order."""
        assert self._examples is not None
        through, index = divmod(place, len(self._examples))
        return self._examples[self._order(through)[index] if self.section.shuffle else index]

    def _order(self, through: int) -> np.ndarray:
        """The order of pass ``through`` over the file, a function of it and the seed alone."""
        if through not in self._orders:
            assert self._examples is not None
            order = np.random.default_rng((self.seed, through)).permutation(len(self._examples))
            self._orders = {k: kept for k, kept in self._orders.items() if k == through - 1} | {through: order}
        return self._orders[through]


def held_out(data: DataSection, section: ValidationSection, length: int, seed: int) -> PromptSource:
    """The prompts of ``run.validation`` as a source whose batch 0 is all of them."""
    from_file = section.file is not None
    given = data.model_copy(update={"file": section.file, "task": None} if from_file else {})
    given = given.model_copy(update={"shuffle": False})
    num = section.prompts or (0 if from_file else HELD_OUT_PROMPTS)
    return PromptSource(given, num, section.samples, length, seed if from_file else seed + HELD_OUT_SEED)


def left_padded(rows: Sequence[Sequence[int]], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens ``[B, length]`` padded on the left, and their mask; ``InputError`` for a prompt that is longer."""
    longest = max(map(len, rows))
    if longest > length:
        raise InputError(f"a prompt has {longest} tokens, workload.prompt_length is {length}")
    starts = length - _lengths(rows)
    return _placed(rows, np.arange(length) >= starts[:, None], 0)


def right_padded(rows: Sequence[Sequence[int]], length: int, filler: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens ``[B, length]`` padded on the right with ``filler``, and their mask."""
    return _placed(rows, np.arange(length) < _lengths(rows)[:, None], filler)


def _lengths(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.fromiter(map(len, rows), np.int64, len(rows))


def _placed(rows: Sequence[Sequence[int]], mask: np.ndarray, filler: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of all rows where ``mask`` says, at once: a tensor for each row costs more than all else of a batch."""
    tokens = np.full(mask.shape, filler, dtype=np.int64)
    tokens[mask] = np.fromiter(itertools.chain.from_iterable(rows), np.int64)
    return torch.from_numpy(tokens), torch.from_numpy(mask)


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
            examples.append(Example(_prompt_of(document["prompt"]), str(document.get("answer", ""))))
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise FileFormatError(f"{file}, line {number}: no JSON object with a prompt ({error})") from error
    if not examples:
        raise InputError(f"{file}: no prompts")
    return examples


def _prompt_of(given: object) -> str | Messages:
    if not isinstance(given, list):
        return str(given)
    return [{"role": str(message["role"]), "content": str(message["content"])} for message in given]
