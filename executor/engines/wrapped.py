"""A trainer inside another engine, which stays a trainer for its worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from tensordict import TensorDict

    from executor.checkpoint.shards import Chunk, EngineState
    from executor.engines.interfaces import TrainingEngine
    from executor.records import Spent
    from executor.rl.objectives import Objective


class WrappedTrainer:
    """Every call of ``Trainer``, made by ``trainer`` once ``to_training`` has made it ready."""

    def __init__(self, trainer: TrainingEngine) -> None:
        self.trainer = trainer

    def to_training(self) -> None:
        """Have the trainer's weights where its calls need them."""

    @property
    def spent(self) -> Spent:
        return self.trainer.spent

    @property
    def num_steps(self) -> int:
        return self.trainer.num_steps

    def log_probs(self, batch: TensorDict, temperature: float) -> torch.Tensor | None:
        self.to_training()
        return self.trainer.log_probs(batch, temperature)

    def values(self, batch: TensorDict) -> torch.Tensor | None:
        self.to_training()
        return self.trainer.values(batch)

    def scores(self, batch: TensorDict) -> torch.Tensor | None:
        self.to_training()
        return self.trainer.scores(batch)

    def update(self, objectives: tuple[Objective, ...]) -> dict[str, float] | None:
        self.to_training()
        return self.trainer.update(objectives)

    def check_replicas(self) -> None:
        self.to_training()
        self.trainer.check_replicas()

    def lasting_weights(self) -> Mapping[str, torch.Tensor]:
        return self.trainer.lasting_weights()

    def save(self, folder: str) -> None:
        self.to_training()
        self.trainer.save(folder)

    def saved_state(self) -> EngineState:
        self.to_training()
        return self.trainer.saved_state()

    def load_state(self, fill: Callable[[list[Chunk]], None], counters: Mapping[str, int]) -> None:
        self.to_training()
        self.trainer.load_state(fill, counters)
