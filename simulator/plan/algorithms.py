"""RL algorithms as records: who takes part, which calls they make, and what other systems call them.

Adding one is a record here, and to run it a script in ``executor/rl/algorithms``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from profiles.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Algorithm:
    """One RL algorithm.

    Parameters
    ----------
    name, title
        In job files, and for people.
    roles, optional_roles
        Models that it cannot do without, and that may be named too. Without a reward model the reward is a function on
        CPU; without a reference there is no KL term.
    compares_responses
        Whether a response is judged by the others to its prompt, so that a prompt needs two samples or more.
    greedy_baseline
        Whether a second, greedy generation is scored as a baseline.
    pretraining_loss
        Whether the actor also learns from pretraining text, with a forward pass of its own.
    kl_in_loss
        Whether the KL term is part of the loss; else it is taken off the reward.
    drops_equal_groups
        Whether groups that all score alike do not count in the mean of the loss.
    clip_high
        Upper clip range where it is not the lower one.
    estimators
        Name of its advantage in other systems (verl, openrlhf); one that is not there cannot run it.
    """

    name: str
    title: str
    roles: tuple[str, ...]
    optional_roles: tuple[str, ...] = ()
    compares_responses: bool = False
    greedy_baseline: bool = False
    pretraining_loss: bool = False
    kl_in_loss: bool = False
    drops_equal_groups: bool = False
    clip_high: float | None = None
    estimators: Mapping[str, str] = field(default_factory=dict, hash=False)


_ALL = (
    Algorithm(
        "ppo",
        "PPO",
        ("actor", "critic"),
        ("reference", "reward"),
        estimators={"verl": "gae", "openrlhf": "gae"},
    ),
    Algorithm(
        "safe-rlhf",
        "Safe-RLHF",
        ("actor", "critic", "reference", "reward", "cost"),
        pretraining_loss=True,
    ),
    Algorithm(
        "remax",
        "ReMax",
        ("actor",),
        ("reference", "reward"),
        greedy_baseline=True,
        estimators={"verl": "remax"},
    ),
    Algorithm(
        "grpo",
        "GRPO",
        ("actor",),
        ("reference", "reward"),
        compares_responses=True,
        kl_in_loss=True,
        estimators={"verl": "grpo", "openrlhf": "group_norm", "nemo-rl": "grpo", "slime": "grpo"},
    ),
    Algorithm(
        "rloo",
        "RLOO",
        ("actor",),
        ("reference", "reward"),
        compares_responses=True,
        kl_in_loss=True,
        estimators={"verl": "rloo", "openrlhf": "rloo", "nemo-rl": "grpo"},
    ),
    Algorithm(
        "dapo",
        "DAPO",
        ("actor",),
        ("reward",),
        compares_responses=True,
        kl_in_loss=True,
        drops_equal_groups=True,
        clip_high=0.28,
        estimators={"verl": "grpo", "openrlhf": "group_norm", "nemo-rl": "grpo", "slime": "grpo"},
    ),
    Algorithm(
        "reinforce++",
        "REINFORCE++",
        ("actor",),
        ("reference", "reward"),
        estimators={"verl": "reinforce_plus_plus", "openrlhf": "reinforce", "slime": "reinforce_plus_plus"},
    ),
)
ALGORITHMS: dict[str, Algorithm] = {algorithm.name: algorithm for algorithm in _ALL}
"""Every algorithm by its name in job files."""


def algorithm_of(name: str) -> Algorithm:
    """The record of an algorithm; ``UnknownNameError`` names those that there are."""
    if name not in ALGORITHMS:
        raise UnknownNameError("algorithm", name, sorted(ALGORITHMS))
    return ALGORITHMS[name]
