"""RL algorithms, a file each: its script, its advantages, its loss. Edit them, or write your own and add its line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.rl.algorithms.dapo import DAPO
from executor.rl.algorithms.grpo import GRPO
from executor.rl.algorithms.ppo import PPO
from executor.rl.algorithms.reinforce_plus_plus import REINFORCE_PLUS_PLUS
from executor.rl.algorithms.remax import REMAX
from executor.rl.algorithms.rloo import RLOO
from executor.rl.algorithms.safe_rlhf import SAFE_RLHF

if TYPE_CHECKING:
    from executor.rl.algorithm import Runnable

RUNNABLE: dict[str, Runnable] = {
    one.algorithm.name: one for one in (PPO, REMAX, SAFE_RLHF, GRPO, RLOO, REINFORCE_PLUS_PLUS, DAPO)
}
"""Every algorithm that can run, by its name in job files."""
