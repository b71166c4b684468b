"""Validation: prompts that are not learned from, answered and scored now and then."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executor.rl.data import held_out

if TYPE_CHECKING:
    from executor.controller.controller import Controller
    from executor.controller.models import Models
    from executor.rl.data_section import ValidationSection
    from executor.run_config import RunConfig
    from executor.worker.futures import Future


@dataclass(frozen=True)
class HeldOut:
    """The held-out prompts of a run, all as one batch."""

    section: ValidationSection
    prompts: Future

    @staticmethod
    def of(config: RunConfig, prompt_length: int, controller: Controller) -> HeldOut | None:
        """Those that the run section asks for, if it does; ``InputError`` where they cannot be read."""
        if config.validation is None:
            return None
        source = held_out(config.data, config.validation, prompt_length, config.seed)
        return HeldOut(config.validation, controller.put(source.batch(0)))

    def scores(self, models: Models, iteration: int) -> dict[str, float]:
        """Metrics before ``iteration`` where it is due: mean reward, mean length, and the seconds that they took.

        The calls count in no timeline.
        """
        if not self.section.is_due(iteration):
            return {}
        start_s = time.perf_counter()
        batch = self.prompts | models.actor.generate_held_out(self.prompts, do_sample=self.section.do_sample)
        batch |= models.reward.compute_reward(batch, suffix="held-out")
        found: dict[str, float] = models.controller.summarise_held_out(batch).first()
        models.controller.controller.wait_all()
        return {f"validation/{name}": value for name, value in found.items()} | {
            "validation/seconds": time.perf_counter() - start_s
        }
