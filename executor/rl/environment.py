"""Rollouts of several turns: the policy writes, an environment answers, and only what the policy wrote is learned.

An environment is a Python class, one object a sample. The turns of a batch's samples are played beside each other: the
generation engine writes all of them at once, then all objects answer, awaited together.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from tensordict import TensorDict

from executor.rl.data import left_padded, right_padded
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from executor.controller.models import Models
    from executor.rl.environment_section import EnvironmentSection
    from executor.rl.text import TextCodec
    from executor.worker.futures import Future

TURN_SHIFT = 1 << 40
"""Added to a sample's number for each turn: sampling depends on it, and turns must not draw the same numbers."""


class Environment(Protocol):
    """One sample's environment."""

    def __init__(self, prompt: str, answer: str) -> None: ...

    async def step(self, response: str) -> tuple[str, bool]:
        """What it writes after the policy's turn ``response``, and whether that was the last one."""


@dataclass
class Episode:
    """One sample so far. ``written`` says of each token of the response whether the policy wrote it."""

    environment: Environment
    uid: int
    prompt: list[int]
    response: list[int] = field(default_factory=list)
    written: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    version: int = 0
    num_turns: int = 0
    is_done: bool = False

    def append(self, tokens: list[int], log_probs: list[float] | None, most: int) -> None:
        """Tokens of the policy with their log-probs, or of the environment with none, up to ``most`` in all."""
        tokens = tokens[: most - len(self.response)]
        self.response += tokens
        self.written += [log_probs is not None] * len(tokens)
        self.log_probs += log_probs[: len(tokens)] if log_probs is not None else [0.0] * len(tokens)
        self.is_done |= len(self.response) >= most


class Episodes:
    """The samples of a batch of prompts, at most ``most`` tokens of response each."""

    def __init__(self, section: EnvironmentSection, codec: TextCodec, prompts: TensorDict, most: int) -> None:
        self.section, self.codec, self.most = section, codec, most
        codec.load()
        make, texts = environment_class(section.name), []
        for tokens, mask, answer in zip(prompts["prompts"], prompts["prompt_mask"], prompts["answers"], strict=True):
            texts.append((tokens[mask].tolist(), codec.decode(answer[answer >= 0].tolist())))
        self.all = [
            Episode(make(codec.decode(prompt), answer), uid, prompt)
            for uid, (prompt, answer) in zip(prompts["uid"].tolist(), texts, strict=True)
        ]

    @property
    def open(self) -> list[Episode]:
        """Those in which the policy has a turn left."""
        return [episode for episode in self.all if not episode.is_done]

    def take(self, turns: TensorDict) -> int:
        """Append a turn of each open episode and what its environment answers; how many are open then."""
        playing, texts = self.open, []
        for episode, turn in zip(playing, turns, strict=True):
            mask = turn["response_mask"]
            tokens = turn["responses"][mask].tolist()
            episode.append(tokens, turn["log_probs"][mask].tolist(), self.most)
            episode.version, episode.num_turns = int(turn["version"]), episode.num_turns + 1
            texts.append(self.codec.decode(tokens))
        answers = asyncio.run(_answers([episode.environment for episode in playing], texts))
        for episode, (text, is_done) in zip(playing, answers, strict=True):
            episode.is_done |= is_done or episode.num_turns >= self.section.turns
            if not episode.is_done:
                episode.append(self.codec.encode(text), None, self.most)
        return len(self.open)

    def prompts(self) -> TensorDict:
        """What the policy reads in its next turn: prompts with all that was written since."""
        rows = [episode.prompt + episode.response for episode in self.open]
        tokens, mask = left_padded(rows, max(map(len, rows)))
        uid = torch.tensor([episode.uid + episode.num_turns * TURN_SHIFT for episode in self.open])
        return TensorDict({"uid": uid, "prompts": tokens, "prompt_mask": mask}, batch_size=[len(rows)])

    def turn_tokens(self) -> int:
        """Most tokens of the next turn."""
        left = self.most - min(len(episode.response) for episode in self.open)
        return min(left, self.section.turn_tokens or left)

    def columns(self) -> TensorDict:
        """Responses, all turns and answers in one; ``loss_mask [B, R]``: true where the policy wrote; ``turns [B]``."""
        responses, mask = right_padded([episode.response for episode in self.all], self.most, 0)
        written, log_probs = torch.zeros_like(mask), torch.zeros(mask.shape)
        for i, episode in enumerate(self.all):
            written[i, : len(episode.written)] = torch.tensor(episode.written)
            log_probs[i, : len(episode.log_probs)] = torch.tensor(episode.log_probs)
        columns = {"responses": responses, "response_mask": mask, "loss_mask": written, "log_probs": log_probs}
        of_samples = {
            "version": torch.tensor([episode.version for episode in self.all]),
            "turns": torch.tensor([episode.num_turns for episode in self.all]),
        }
        return TensorDict({**columns, **of_samples}, batch_size=[len(self.all)])


async def _answers(environments: list[Environment], texts: list[str]) -> list[tuple[str, bool]]:
    steps = (environment.step(text) for environment, text in zip(environments, texts, strict=True))
    return list(await asyncio.gather(*steps))


def environment_class(name: str) -> Callable[[str, str], Environment]:
    """The class behind ``module:class``; ``InputError`` where there is none, or its ``step`` is not async."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"run.environment.name {name}: {error}; it is module:class") from error
    if not inspect.iscoroutinefunction(getattr(found, "step", None)):
        raise InputError(f"run.environment.name {name}: it needs 'async def step(self, response)'")
    return found  # type: ignore[no-any-return]


def played(models: Models, prompts: Future, most: int) -> Future:
    """``prompts`` with the columns of their episodes; ``most`` tokens in the first turn."""
    models.controller.begin_episodes(prompts)
    turns = models.actor.generate_sequences(prompts, max_tokens=most)
    while models.controller.take_turn(turns).first():
        turns = models.actor.generate_more(
            models.controller.turn_prompts(), max_tokens=models.controller.turn_tokens().first()
        )
    answered: Future = prompts | models.controller.finished_episodes()
    return answered
