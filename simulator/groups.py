"""Parallel groups and shards of the 3D hybrid engine as pure functions of the degrees (HybridFlow section 5).

Ranks are numbered tensor parallel fastest, then pipeline, then data parallel. Closed forms are ours, derived from
the groups that the paper prints in Figs 7 and 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Literal

from profiles.errors import InputError

GenerationGrouping = Literal["hybridflow", "hybridflow-v"]


@dataclass(frozen=True)
class Degrees:
    """Training degrees ``p, t, d`` and generation degrees ``p_g, t_g``; ``d_g = p t / (p_g t_g)`` is derived."""

    p: int
    t: int
    d: int
    pg: int
    tg: int

    def __post_init__(self) -> None:
        if self.t % self.tg or self.p % self.pg:
            raise InputError(
                f"strided groups need t_g | t and p_g | p, got t {self.t}, t_g {self.tg}, p {self.p}, p_g {self.pg}"
            )

    @property
    def dg(self) -> int:
        """Micro data-parallel size: generation replicas made of one training replica."""
        return self.p * self.t // (self.pg * self.tg)

    @property
    def num_ranks(self) -> int:
        return self.p * self.t * self.d


@dataclass(frozen=True)
class Shard:
    """The part of the model a rank holds: an interval of layers times an interval of every tensor, as fractions."""

    layers: tuple[Fraction, Fraction]
    tensor: tuple[Fraction, Fraction]

    def contains(self, other: Shard) -> bool:
        """Whether ``other`` lies inside this shard."""
        return (
            self.layers[0] <= other.layers[0]
            and other.layers[1] <= self.layers[1]
            and self.tensor[0] <= other.tensor[0]
            and other.tensor[1] <= self.tensor[1]
        )


def training_coordinates(rank: int, x: Degrees) -> tuple[int, int, int]:
    """``(tp, pp, dp)`` of a rank."""
    return rank % x.t, rank // x.t % x.p, rank // (x.p * x.t)


def generation_coordinates(
    rank: int, x: Degrees, grouping: GenerationGrouping = "hybridflow"
) -> tuple[int, int, int, int]:
    """``(tg, pg, micro-dp, dp)`` of a rank; ``hybridflow-v`` reuses the consecutive rule of training."""
    tp, pp, dp = training_coordinates(rank, x)
    if grouping == "hybridflow-v":
        micro = rank % (x.p * x.t) // (x.pg * x.tg)
        return rank % x.tg, rank // x.tg % x.pg, micro, dp
    a, b = x.t // x.tg, x.p // x.pg
    return tp // a, pp // b, pp % b * a + tp % a, dp


def training_shard(rank: int, x: Degrees) -> Shard:
    """What a rank holds in training."""
    tp, pp, _ = training_coordinates(rank, x)
    return _shard(pp, x.p, tp, x.t)


def generation_shard(rank: int, x: Degrees, grouping: GenerationGrouping = "hybridflow") -> Shard:
    """What a rank holds in generation."""
    tg, pg, _, _ = generation_coordinates(rank, x, grouping)
    return _shard(pg, x.pg, tg, x.tg)


def micro_dp_groups(x: Degrees, grouping: GenerationGrouping = "hybridflow") -> list[list[int]]:
    """Ranks that together hold one generation shard's training shards and gather it from each other."""
    return _groups(
        x, lambda r: (generation_coordinates(r, x, grouping)[3], *generation_coordinates(r, x, grouping)[:2])
    )


def generation_tp_groups(x: Degrees, grouping: GenerationGrouping = "hybridflow") -> list[list[int]]:
    """Ranks that share the tensors of one generation replica's pipeline stage."""
    return _groups(
        x, lambda r: (generation_coordinates(r, x, grouping)[3], *generation_coordinates(r, x, grouping)[1:3])
    )


def training_tp_groups(x: Degrees) -> list[list[int]]:
    """Tensor-parallel groups of training: consecutive ranks."""
    return _groups(x, lambda r: training_coordinates(r, x)[1:])


def training_dp_groups(x: Degrees) -> list[list[int]]:
    """Data-parallel groups of training: ranks at stride ``p t``."""
    return _groups(x, lambda r: training_coordinates(r, x)[:2])


def _shard(stage: int, stages: int, slice_: int, slices: int) -> Shard:
    return Shard(
        (Fraction(stage, stages), Fraction(stage + 1, stages)), (Fraction(slice_, slices), Fraction(slice_ + 1, slices))
    )


def _groups(x: Degrees, key: object) -> list[list[int]]:
    """Ranks with equal key, each group ascending, groups by their first rank."""
    assert callable(key)
    ranks = sorted(range(x.num_ranks), key=lambda r: (key(r), r))
    return sorted([list(g) for _, g in groupby(ranks, key=key)])
