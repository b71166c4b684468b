"""A trained model that scores in a layout of its own: a frozen engine besides, on the same ranks."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from executor.collectives import own_group
from executor.engines.native.offload import spans_of
from executor.weights.counting_collectives import Wire
from executor.weights.move import move
from executor.weights.plan import plan_transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict import TensorDict


class TrainerWithScoringCopy:
    """``trainer`` in everything but forward passes, which run on ``copy``: an engine of the same model, never trained.

    The copy has memory for its weights inside a call only. Every call brings them there anew, by a transfer plan.
    """

    def __init__(self, trainer: Any, copy: Any) -> None:
        self._trainer, self._copy = trainer, copy
        copy.clock = trainer.clock  # what both spend in collectives is counted together

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_trainer"], name)

    def load(self) -> None:
        """Load both; ``InputError`` if the model does not divide into either layout."""
        trainer, copy = self._trainer, self._copy
        trainer.load()
        copy.load()
        self._rank = trainer.identity.rank
        self._plan = plan_transfers(trainer.arch, trainer.layout, copy.layout)
        everyone = list(range(trainer.layout.num_ranks))
        self._wire = Wire(own_group(self._rank, [everyone], trainer.clock))
        self._give_back()

    def log_probs(self, batch: TensorDict, temperature: float) -> torch.Tensor | None:
        with self._filled() as copy:
            found: torch.Tensor | None = copy.log_probs(batch, temperature)
        return found

    def values(self, batch: TensorDict) -> torch.Tensor | None:
        with self._filled() as copy:
            found: torch.Tensor | None = copy.values(batch)
        return found

    def scores(self, batch: TensorDict) -> torch.Tensor | None:
        with self._filled() as copy:
            found: torch.Tensor | None = copy.scores(batch)
        return found

    @contextmanager
    def _filled(self) -> Iterator[Any]:
        """The copy with the trainer's weights, inside the block."""
        for storage, size in self._empty:
            storage.resize_(size)
        target = self._copy.weights()
        with self._trainer.present(), torch.no_grad():
            for stored in self._copy.layout.stored(self._rank):
                if stored.padding:
                    target[stored.name].zero_()
            move(self._plan, self._rank, self._trainer.tensors(), target, self._wire, None)
        yield self._copy
        self._give_back()

    def _give_back(self) -> None:
        storages = [span.untyped_storage() for span in spans_of(self._copy.weights().values())]
        self._empty = [(storage, storage.nbytes()) for storage in storages]
        for storage in storages:
            storage.resize_(0)
