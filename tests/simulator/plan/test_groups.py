"""Protects the 3D hybrid engine's groups: those printed in the paper's Figs 7 and 8, and that a rank's training shard
always lies inside its generation shard.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InputError
from simulator.plan.groups import (
    Degrees,
    GenerationGrouping,
    TransitionShares,
    context_coordinate,
    gather_groups,
    generation_coordinates,
    generation_order,
    generation_replica,
    in_buckets,
    micro_dp_groups,
    training_coordinates,
    transition_shares,
)

FIG_7 = Degrees(p=1, t=2, d=2, pg=1, tg=1)
FIG_8 = Degrees(p=1, t=4, d=2, pg=1, tg=2)


def gpus(groups: list[list[int]]) -> list[list[str]]:
    """Ranks as the paper prints them, from G1."""
    return [[f"G{rank + 1}" for rank in group] for group in groups]


def groups_of(x: Degrees, place: Callable[[int], tuple[int, ...]]) -> list[list[int]]:
    """Ranks that are in one place, by their first rank."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(x.num_ranks):
        groups.setdefault(place(rank), []).append(rank)
    return list(groups.values())


def training_tp_groups(x: Degrees) -> list[list[int]]:
    return groups_of(x, lambda rank: training_coordinates(rank, x)[1:])


def training_dp_groups(x: Degrees) -> list[list[int]]:
    return groups_of(x, lambda rank: training_coordinates(rank, x)[:2])


def generation_tp_groups(x: Degrees, grouping: GenerationGrouping | None = None) -> list[list[int]]:
    return groups_of(x, lambda rank: generation_coordinates(rank, x, grouping)[1:])


@dataclass(frozen=True)
class Shard:
    """What a rank holds: an interval of layers times an interval of every tensor, as fractions."""

    layers: tuple[Fraction, Fraction]
    tensor: tuple[Fraction, Fraction]

    @staticmethod
    def of(stage: int, stages: int, part: int, parts: int) -> "Shard":
        layers = Fraction(stage, stages), Fraction(stage + 1, stages)
        return Shard(layers, (Fraction(part, parts), Fraction(part + 1, parts)))


def training_shard(rank: int, x: Degrees) -> Shard:
    tp, pp, _ = training_coordinates(rank, x)
    return Shard.of(pp, x.p, tp, x.t)


def generation_shard(rank: int, x: Degrees, grouping: GenerationGrouping | None = None) -> Shard:
    tg, pg, _, _ = generation_coordinates(rank, x, grouping)
    return Shard.of(pg, x.pg, tg, x.tg)


def inside(part: Shard, whole: Shard) -> bool:
    return all(
        outer[0] <= inner[0] and inner[1] <= outer[1]
        for inner, outer in ((part.layers, whole.layers), (part.tensor, whole.tensor))
    )


def test_fig_7() -> None:
    assert FIG_7.dg == 2
    assert gpus(training_tp_groups(FIG_7)) == [["G1", "G2"], ["G3", "G4"]]
    assert gpus(training_dp_groups(FIG_7)) == [["G1", "G3"], ["G2", "G4"]]
    assert gpus(micro_dp_groups(FIG_7)) == [["G1", "G2"], ["G3", "G4"]]
    assert gpus(generation_tp_groups(FIG_7)) == [["G1"], ["G2"], ["G3"], ["G4"]]


def test_fig_8_training() -> None:
    assert gpus(training_tp_groups(FIG_8)) == [["G1", "G2", "G3", "G4"], ["G5", "G6", "G7", "G8"]]
    assert gpus(training_dp_groups(FIG_8)) == [["G1", "G5"], ["G2", "G6"], ["G3", "G7"], ["G4", "G8"]]


def test_fig_8_hybridflow_v() -> None:
    assert gpus(generation_tp_groups(FIG_8, "hybridflow-v")) == [["G1", "G2"], ["G3", "G4"], ["G5", "G6"], ["G7", "G8"]]
    assert gpus(micro_dp_groups(FIG_8, "hybridflow-v")) == [["G1", "G3"], ["G2", "G4"], ["G5", "G7"], ["G6", "G8"]]


def test_fig_8_hybridflow() -> None:
    assert gpus(generation_tp_groups(FIG_8)) == [["G1", "G3"], ["G2", "G4"], ["G5", "G7"], ["G6", "G8"]]
    assert gpus(micro_dp_groups(FIG_8)) == [["G1", "G2"], ["G3", "G4"], ["G5", "G6"], ["G7", "G8"]]


def every_degrees() -> list[Degrees]:
    powers = (1, 2, 4, 8)
    return [
        Degrees(p, t, d, pg, tg)
        for p, t, d, pg, tg in itertools.product(powers, powers, (1, 2), powers, powers)
        if p % pg == 0 and t % tg == 0
    ]


def test_the_training_shard_is_always_inside_the_generation_shard() -> None:
    cases = every_degrees()
    assert len(cases) == 2 * 10 * 10
    for x in cases:
        for rank in range(x.num_ranks):
            assert inside(training_shard(rank, x), generation_shard(rank, x)), (x, rank)


def test_the_consecutive_rule_breaks_that() -> None:
    broken = [
        x
        for x in every_degrees()
        if not all(inside(training_shard(r, x), generation_shard(r, x, "hybridflow-v")) for r in range(x.num_ranks))
    ]
    assert FIG_8 in broken


@pytest.mark.parametrize("grouping", ["hybridflow", "hybridflow-v"])
def test_groups_are_partitions_of_the_right_size(grouping: str) -> None:
    for x in every_degrees():
        for groups, size in (
            (micro_dp_groups(x, grouping), x.dg),
            (generation_tp_groups(x, grouping), x.tg),
            (training_tp_groups(x), x.t),
            (training_dp_groups(x), x.d),
        ):
            assert sorted(itertools.chain(*groups)) == list(range(x.num_ranks))
            assert {len(group) for group in groups} == {size}
        places = {generation_coordinates(rank, x, grouping) for rank in range(x.num_ranks)}
        assert len(places) == x.num_ranks
        assert len({training_coordinates(rank, x) for rank in range(x.num_ranks)}) == x.num_ranks


def test_a_micro_dp_group_holds_exactly_its_generation_shard() -> None:
    """So one all-gather in the group is all the transition needs."""
    for x in every_degrees():
        for group in micro_dp_groups(x):
            whole = generation_shard(group[0], x)
            assert all(generation_shard(rank, x) == whole for rank in group)
            parts = {training_shard(rank, x) for rank in group}
            assert len(parts) == len(group)
            area = sum((s.layers[1] - s.layers[0]) * (s.tensor[1] - s.tensor[0]) for s in parts)
            assert area == (whole.layers[1] - whole.layers[0]) * (whole.tensor[1] - whole.tensor[0])


@pytest.mark.parametrize(("pg", "tg"), [(1, 8), (8, 1), (2, 8)])
def test_degrees_that_do_not_nest_have_no_micro_dp_groups_but_replicas_of_consecutive_ranks(pg: int, tg: int) -> None:
    x = Degrees(p=4, t=4, d=1, pg=pg, tg=tg)
    assert not x.nests
    with pytest.raises(InputError, match="strided groups need"):
        micro_dp_groups(x)
    with pytest.raises(InputError, match="strided groups need"):
        generation_coordinates(0, x, "hybridflow")
    assert generation_order(x) == list(range(16))
    assert [generation_replica(rank, x) for rank in range(16)] == [rank // (pg * tg) for rank in range(16)]
    assert {generation_shard(rank, x).layers[1] for rank in range(16)} >= {Fraction(1, pg)}


@pytest.mark.parametrize(("pg", "tg"), [(1, 3), (3, 1), (1, 32)])
def test_replicas_that_do_not_fill_the_ranks_are_refused(pg: int, tg: int) -> None:
    with pytest.raises(InputError, match="do not fill 16 ranks"):
        Degrees(p=4, t=4, d=1, pg=pg, tg=tg)


@pytest.mark.parametrize("x", [Degrees(2, 4, 2, 1, 2, c=2), Degrees(1, 2, 1, 1, 1, c=4), Degrees(1, 2, 2, 1, 8, c=2)])
def test_context_ranks_are_copies_of_the_weights_inside_a_stage(x: Degrees) -> None:
    """They follow tensor parallelism, share rows, and count as replicas wherever weights move."""
    ranks = range(x.num_ranks)
    assert len(ranks) == x.p * x.t * x.d * x.c
    places = {(*training_coordinates(r, x), context_coordinate(r, x)) for r in ranks}
    assert len(places) == x.num_ranks
    for r in ranks:
        tp, pp, dp = training_coordinates(r, x)
        assert r == tp + x.t * (context_coordinate(r, x) + x.c * (pp + x.p * dp))
    assert len({generation_coordinates(r, x) for r in ranks}) == x.num_ranks
    sizes = [sum(generation_replica(r, x) == i for r in ranks) for i in range(x.num_replicas)]
    assert sizes == [x.pg * x.tg] * x.num_replicas


def test_weights_of_context_ranks_move_as_those_of_data_parallel_ranks() -> None:
    x = Degrees(1, 4, 1, 1, 2, c=2)
    assert micro_dp_groups(x) == micro_dp_groups(Degrees(1, 4, 2, 1, 2))
    assert [generation_replica(r, x) for r in range(8)] == [0, 1, 0, 1, 2, 3, 2, 3]
    assert transition_shares("ds-chat", x) == transition_shares("ds-chat", Degrees(1, 4, 2, 1, 2))


def divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


@st.composite
def nested(draw: st.DrawFn) -> Degrees:
    """Any p, t, d with p_g | p and t_g | t, up to 64 ranks."""
    p = draw(st.integers(1, 64))
    t = draw(st.integers(1, 64 // p))
    d = draw(st.integers(1, 64 // (p * t)))
    return Degrees(p, t, d, draw(st.sampled_from(divisors(p))), draw(st.sampled_from(divisors(t))))


@given(nested())
def test_up_to_64_ranks_strided_groups_nest_and_partition(x: Degrees) -> None:
    for rank in range(x.num_ranks):
        assert inside(training_shard(rank, x), generation_shard(rank, x))
    for groups, size in ((micro_dp_groups(x), x.dg), (generation_tp_groups(x), x.tg)):
        assert sorted(itertools.chain(*groups)) == list(range(x.num_ranks))
        assert {len(group) for group in groups} == {size}
    assert {generation_replica(rank, x) for rank in range(x.num_ranks)} == set(range(x.num_replicas))


@given(nested())
def test_table_2_follows_from_groups_and_shards(x: Degrees) -> None:
    """Received: what the others of the group hold. Peak: what is held after. Redundant: held, and not part of it."""

    def area(shard: Shard) -> Fraction:
        return (shard.layers[1] - shard.layers[0]) * (shard.tensor[1] - shard.tensor[0])

    for rank in {0, x.num_ranks // 2, x.num_ranks - 1}:
        (group,) = (group for group in gather_groups("hybridflow", x) if rank in group)
        others = sum((area(training_shard(r, x)) for r in group if r != rank), Fraction(0))
        found = transition_shares("hybridflow", x)
        assert found == TransitionShares(others, area(generation_shard(rank, x)), Fraction(0))
        (replica,) = (group for group in gather_groups("hybridflow-v", x) if rank in group)
        others = sum((area(training_shard(r, x)) for r in replica if r != rank), Fraction(0))
        assert transition_shares("hybridflow-v", x) == TransitionShares(
            others, Fraction(1), area(training_shard(rank, x))
        )
    assert gather_groups("ds-chat", x) == [list(range(x.num_ranks))]
    assert transition_shares("ds-chat", x).moved == 1 - Fraction(1, x.num_ranks)


def test_the_order_of_an_engine_that_numbers_consecutively() -> None:
    """Fig 8: strided generation groups [G1,G3],[G2,G4] are the engine's consecutive ones in this order."""
    assert gpus([generation_order(FIG_8)]) == [["G1", "G3", "G2", "G4", "G5", "G7", "G6", "G8"]]
    assert generation_order(FIG_8, "hybridflow-v") == list(range(8))


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=30), most=st.integers(1, 80))
def test_buckets_hold_all_items_in_order(sizes, most):
    buckets = in_buckets(sizes, most)
    assert [i for bucket in buckets for i in bucket] == list(range(len(sizes)))
    filled = [sum(sizes[i] for i in bucket) for bucket in buckets]
    assert all(size <= most or len(bucket) == 1 for size, bucket in zip(filled, buckets, strict=True))
    for first, second in pairwise(buckets):
        assert sum(sizes[i] for i in first) + sizes[second[0]] > most  # none is cut short
