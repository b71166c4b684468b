"""A trained model that scores in a layout of its own: a frozen engine on the same ranks, filled for each call."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from executor.collectives import own_group
from executor.engines.offload import spans_of
from executor.engines.wrapped import WrappedTrainer
from executor.weights.counting_collectives import CountingCollectives
from executor.weights.move import Resharder
from executor.weights.plan import plan_transfers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import torch
    from tensordict import TensorDict

    from executor.collectives import CommClock, Groups
    from executor.engines.interfaces import Model, TrainingEngine
    from executor.engines.model_spec import ModelSpec
    from executor.records import Identity, WeightsMoved
    from executor.weights.architecture import Architecture
    from executor.weights.mover import WeightMover
    from executor.weights.regions import Layout


class TrainerWithScoringCopy(WrappedTrainer):
    """``trainer`` in everything but forward passes, which run on ``copy``: an engine of the same model, never trained.

    The copy has memory for its weights inside a call only. Every call brings them there anew.
    """

    arch: Architecture
    layout: Layout
    groups: Groups
    dtype: torch.dtype

    def __init__(self, trainer: TrainingEngine, copy: TrainingEngine) -> None:
        super().__init__(trainer)
        self.copy = copy
        self.clock: CommClock = trainer.clock
        self.device: torch.device = trainer.device
        copy.clock = trainer.clock  # what both spend in collectives is counted together

    @property
    def identity(self) -> Identity:
        return self.trainer.identity

    @property
    def spec(self) -> ModelSpec:
        return self.trainer.spec

    def load(self) -> None:
        """Load both; ``InputError`` if the model does not divide into either layout."""
        trainer = self.trainer
        trainer.load()
        self.copy.load()
        self.arch, self.layout, self.groups, self.dtype = trainer.arch, trainer.layout, trainer.groups, trainer.dtype
        plan = plan_transfers(trainer.arch, trainer.layout, self.copy.layout)
        rank, everyone = trainer.identity.rank, list(range(trainer.layout.num_ranks))
        world = own_group(rank, [everyone], trainer.clock)
        self._mover: WeightMover = Resharder(plan, rank, CountingCollectives(world))
        self._give_back()

    def weights_moved(self) -> WeightsMoved:
        return self.trainer.weights_moved()

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.trainer.tensors()

    def weights(self) -> dict[str, torch.Tensor]:
        return self.trainer.weights()

    def present(self) -> AbstractContextManager[None]:
        return self.trainer.present()

    def log_probs(self, batch: TensorDict, temperature: float) -> torch.Tensor | None:
        with self._filled() as copy:
            return copy.log_probs(batch, temperature)

    def values(self, batch: TensorDict) -> torch.Tensor | None:
        with self._filled() as copy:
            return copy.values(batch)

    def scores(self, batch: TensorDict) -> torch.Tensor | None:
        with self._filled() as copy:
            return copy.scores(batch)

    @contextmanager
    def _filled(self) -> Iterator[Model]:
        """The copy with the trainer's weights, inside the block."""
        for storage, size in self._empty:
            storage.resize_(size)
        with self.trainer.present():
            self._mover.move(self.trainer.tensors(), self.copy.weights())
        yield self.copy
        self._give_back()

    def _give_back(self) -> None:
        storages = [span.untyped_storage() for span in spans_of(self.copy.weights().values())]
        self._empty = [(storage, storage.nbytes()) for storage in storages]
        for storage in storages:
            storage.resize_(0)
