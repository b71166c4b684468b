"""GRPO: an actor, a score, and a reference where there is one; no critic.

RLOO, REINFORCE++ and DAPO make the same calls: how scores become advantages (``rl/estimators.py``) and what the
update minimises (``objectives.py``) goes by the algorithm's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.rl.algorithms.step import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from executor.controller.models import Models
    from executor.worker.futures import Future


def grpo(models: Models, batches: Iterable[Future]) -> Iterator[Step]:
    """One iteration per batch of prompts, each prompt in as many rows as it has samples."""
    for prompts in batches:
        batch = prompts | models.actor.generate_sequences(prompts)
        if "reference" in models:
            batch |= models.reference.compute_ref_log_prob(batch)
        batch |= models.reward.compute_reward(batch)
        batch |= models.controller.compute_advantage(batch)
        actor = models.actor.update_actor(batch)
        yield Step(batch, {"actor": actor})
