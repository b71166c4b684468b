"""A model replica as one of its ranks sees it: in the layout of training, of scoring or of generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from executor.weights.architecture import EMBEDDING, HEAD
from executor.weights.parameters import Slice
from simulator.plan.groups import generation_coordinates, training_coordinates

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from executor.collectives import Group
    from executor.weights.architecture import Architecture
    from simulator.plan.groups import Degrees


@dataclass(frozen=True)
class Replica:
    """The slice that this rank holds, the ranks that hold the others, and the weights by Hugging Face's names."""

    arch: Architecture
    piece: Slice
    tp: Group
    pp: Group
    weights: Mapping[str, torch.Tensor]

    @property
    def head(self) -> torch.Tensor:
        """The rows of the vocabulary head that this rank has; the embedding where they are tied."""
        return self.weights[HEAD] if HEAD in self.weights else self.weights[EMBEDDING]


def training_slice(rank: int, degrees: Degrees) -> Slice:
    """What a rank holds in training."""
    tp, pp, _ = training_coordinates(rank, degrees)
    return Slice(pp, degrees.p, tp, degrees.t)


def generation_slice(rank: int, degrees: Degrees) -> Slice:
    """What a rank holds in generation."""
    tg, pg, _, _ = generation_coordinates(rank, degrees)
    return Slice(pg, degrees.pg, tg, degrees.tg)
