"""ReMax: actor, reference, reward; the baseline is the score of the greedy response."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.rl.algorithms.step import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from executor.controller.models import Models
    from executor.worker.futures import Future


def remax(models: Models, batches: Iterable[Future]) -> Iterator[Step]:
    """One iteration per batch of prompts."""
    for prompts in batches:
        batch = prompts | models.actor.generate_sequences(prompts)
        greedy = prompts | models.actor.generate_sequences(prompts, do_sample=False, suffix="greedy")
        batch |= models.reference.compute_ref_log_prob(batch)
        batch |= models.reward.compute_reward(batch)
        batch |= models.reward.compute_reward(greedy, column="greedy_scores", suffix="greedy")
        batch |= models.controller.compute_advantage(batch)
        actor = models.actor.update_actor(batch)
        yield Step(batch, {"actor": actor})
