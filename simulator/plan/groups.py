"""Parallel groups of the 3D hybrid engine as pure functions of the degrees (HybridFlow section 5).

Ranks are numbered tensor parallel fastest, then context parallel, pipeline, data parallel. Closed forms are ours,
derived from the groups that the paper prints in Figs 7 and 8. Table 2's volumes, peaks and redundancies are here too,
as exact shares of the model's bytes: the price and the executor count by the same formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

GenerationGrouping = Literal["hybridflow", "hybridflow-v", "consecutive"]
TransitionMethod = Literal["hybridflow", "hybridflow-v", "ds-chat"]
BUCKET_ELEMENTS = 1 << 26
"""Elements that a transition between engines converts at once, where their layouts differ."""

LINK_BUCKET_BYTES = 64 << 20
"""Bytes of one broadcast between pools; a receiver holds two of them."""

METHODS: tuple[TransitionMethod, ...] = ("hybridflow", "hybridflow-v", "ds-chat")


@dataclass(frozen=True)
class Degrees:
    """Training degrees ``p, t, d`` and generation degrees ``p_g, t_g``; ``d_g = p t / (p_g t_g)`` is derived.

    ``c`` ranks share the sequences of a data-parallel rank (context parallelism) and hold equal weights: to whatever
    moves weights they are so many more copies.

    Pairs that do not nest (``t_g`` does not divide ``t``, or ``p_g`` does not divide ``p``) have no micro-DP groups;
    their generation replicas are consecutive ranks, and a general resharder serves them.
    """

    p: int
    t: int
    d: int
    pg: int
    tg: int
    c: int = 1

    def __post_init__(self) -> None:
        if min(self.p, self.t, self.d, self.pg, self.tg, self.c) < 1:
            raise InputError(f"degrees are at least 1, got {self}")
        if self.num_ranks % (self.pg * self.tg):
            raise InputError(
                f"generation replicas of t_g {self.tg} x p_g {self.pg} ranks do not fill {self.num_ranks} ranks "
                f"(p {self.p} x t {self.t} x d {self.d}{f' x c {self.c}' if self.c > 1 else ''})"
            )

    @property
    def nests(self) -> bool:
        """Whether strided groups exist: every training shard can lie inside a generation shard of its rank."""
        return self.t % self.tg == 0 and self.p % self.pg == 0

    @property
    def grouping(self) -> GenerationGrouping:
        """How generation replicas are made of ranks: strided where the layouts nest, else consecutive."""
        return "hybridflow" if self.nests else "consecutive"

    @property
    def dg(self) -> int:
        """Micro data-parallel size: generation replicas made of one training replica; ``InputError`` if none is."""
        if self.p * self.t % (self.pg * self.tg):
            raise InputError(f"a training replica of {self.p * self.t} ranks is no whole number of generation replicas")
        return self.p * self.t // (self.pg * self.tg)

    @property
    def num_replicas(self) -> int:
        """Generation replicas in all."""
        return self.num_ranks // (self.pg * self.tg)

    @property
    def num_ranks(self) -> int:
        return self.p * self.t * self.d * self.c


def training_coordinates(rank: int, degrees: Degrees) -> tuple[int, int, int]:
    """``(tp, pp, dp)`` of a rank; context-parallel ranks share one ``dp``, whose rows they all have."""
    stage = rank // (degrees.t * degrees.c)
    return rank % degrees.t, stage % degrees.p, stage // degrees.p


def context_coordinate(rank: int, degrees: Degrees) -> int:
    """Which part of the sequences a rank has, of ``c``."""
    return rank // degrees.t % degrees.c


def copy_of_weights(rank: int, degrees: Degrees) -> int:
    """Which of the ``d x c`` copies of the model a rank has its shard of."""
    return training_coordinates(rank, degrees)[2] * degrees.c + context_coordinate(rank, degrees)


def generation_coordinates(
    rank: int, degrees: Degrees, grouping: GenerationGrouping | None = None
) -> tuple[int, int, int, int]:
    """``(tg, pg, micro-dp, copy)`` of a rank, by default in the grouping that the degrees allow; without context
    parallelism the copy of the weights is the data-parallel rank.

    ``hybridflow-v`` reuses the consecutive rule of training inside each training replica; ``consecutive`` does so over
    all ranks, where ``micro-dp`` is then the number of the replica and the copy 0.
    """  # noqa: D205
    grouping = grouping or degrees.grouping
    (tp, pp, _), copy = training_coordinates(rank, degrees), copy_of_weights(rank, degrees)
    if grouping == "consecutive":
        return rank % degrees.tg, rank // degrees.tg % degrees.pg, rank // (degrees.pg * degrees.tg), 0
    if grouping == "hybridflow-v":
        inside = pp * degrees.t + tp
        micro = inside // (degrees.p * degrees.t // degrees.dg)
        return inside % degrees.tg, inside // degrees.tg % degrees.pg, micro, copy
    require_nested(degrees)
    a, b = degrees.t // degrees.tg, degrees.p // degrees.pg
    return tp // a, pp // b, pp % b * a + tp % a, copy


def require_nested(degrees: Degrees) -> None:
    """Raise ``InputError`` for degrees without strided groups."""
    if not degrees.nests:
        raise InputError(
            f"strided groups need t_g | t and p_g | p, got t {degrees.t}, t_g {degrees.tg}, "
            f"p {degrees.p}, p_g {degrees.pg}"
        )


def generation_replica(rank: int, degrees: Degrees) -> int:
    """Which generation replica a rank is in, numbered so that a training replica's own follow one another."""
    _, _, micro, copy = generation_coordinates(rank, degrees)
    return copy * degrees.dg + micro if degrees.nests else micro


def micro_dp_groups(degrees: Degrees, grouping: GenerationGrouping = "hybridflow") -> list[list[int]]:
    """Ranks that together hold one generation shard's training shards and gather it from each other."""
    require_nested(degrees)

    def place(rank: int) -> tuple[int, ...]:
        tg, pg, _, copy = generation_coordinates(rank, degrees, grouping)
        return copy, tg, pg

    return _groups(degrees, place)


def generation_order(degrees: Degrees, grouping: GenerationGrouping | None = None) -> list[int]:
    """Ranks in the order of an engine that numbers tensor parallel fastest, then pipeline, then replicas."""

    def place(rank: int) -> tuple[int, ...]:
        tg, pg, micro, copy = generation_coordinates(rank, degrees, grouping)
        return copy, micro, pg, tg

    return sorted(range(degrees.num_ranks), key=place)


def gather_groups(method: TransitionMethod, degrees: Degrees) -> list[list[int]]:
    """Groups that all-gather in a method's transition: micro-DP groups, training replicas, or all ranks (Table 2)."""
    if method == "hybridflow":
        return micro_dp_groups(degrees)
    if method == "hybridflow-v":
        return _groups(degrees, lambda r: (copy_of_weights(r, degrees),))
    return [list(range(degrees.num_ranks))]


def in_buckets(sizes: Iterable[int], most: int) -> list[list[int]]:
    """Numbers of consecutive items, as many to a bucket as have ``most`` together; a larger item has its own."""
    buckets: list[list[int]] = []
    filled = 0
    for i, size in enumerate(sizes):
        if not buckets or filled + size > most:
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += size
    return buckets


@dataclass(frozen=True)
class TransitionShares:
    """What one rank receives, holds at most, and holds twice in a transition, as shares of the model's bytes."""

    moved: Fraction
    peak: Fraction
    redundant: Fraction


def transition_shares(method: TransitionMethod, degrees: Degrees) -> TransitionShares:
    """Table 2 of the HybridFlow paper for evenly sharded parameters; ring all-gather volumes.

    ``ds-chat`` gathers over all ``t p d`` ranks from shards of ``1 / (t p d)``; ``hybridflow-v`` inside the training
    tensor-pipeline group; ``hybridflow`` inside each micro-DP group, and only for degrees that nest.
    """
    tp = degrees.t * degrees.p
    if method == "hybridflow":
        require_nested(degrees)
        return TransitionShares(Fraction(degrees.dg - 1, tp), Fraction(1, degrees.tg * degrees.pg), Fraction(0))
    ranks = degrees.num_ranks if method == "ds-chat" else tp
    return TransitionShares(Fraction(ranks - 1, ranks), Fraction(1), Fraction(1, ranks))


def _groups(degrees: Degrees, key: Callable[[int], tuple[int, ...]]) -> list[list[int]]:
    """Ranks with equal key, each group ascending, groups by their first rank."""
    ranks = sorted(range(degrees.num_ranks), key=lambda r: (key(r), r))
    return sorted([list(g) for _, g in groupby(ranks, key=key)])
