"""RL algorithms as scripts: a loop over prompts, one line per model call. Edit them, or write your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.rl.algorithms.grpo import grpo
from executor.rl.algorithms.ppo import ppo
from executor.rl.algorithms.remax import remax
from executor.rl.algorithms.safe_rlhf import safe_rlhf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from executor.rl.algorithms.step import Step

SCRIPTS: dict[str, Callable[..., Iterator[Step]]] = {
    "ppo": ppo,
    "remax": remax,
    "safe-rlhf": safe_rlhf,
    "grpo": grpo,
    "rloo": grpo,
    "reinforce++": grpo,
    "dapo": grpo,
}
"""Every algorithm that can run, by its name in job files."""
