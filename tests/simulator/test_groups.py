"""Protects the 3D hybrid engine's groups: those printed in the paper's Figs 7 and 8, and that a rank's training shard
always lies inside its generation shard.
"""

import itertools

import pytest

from profiles.errors import InputError
from simulator.groups import (
    Degrees,
    Shard,
    generation_coordinates,
    generation_shard,
    generation_tp_groups,
    micro_dp_groups,
    training_coordinates,
    training_dp_groups,
    training_shard,
    training_tp_groups,
)

FIG_7 = Degrees(p=1, t=2, d=2, pg=1, tg=1)
FIG_8 = Degrees(p=1, t=4, d=2, pg=1, tg=2)


def gpus(groups: list[list[int]]) -> list[list[str]]:
    """Ranks as the paper prints them, from G1."""
    return [[f"G{rank + 1}" for rank in group] for group in groups]


def overlap(a: Shard, b: Shard) -> bool:
    """Whether two shards share any weights: both intervals meet in more than a point."""
    layers = min(a.layers[1], b.layers[1]) > max(a.layers[0], b.layers[0])
    return layers and min(a.tensor[1], b.tensor[1]) > max(a.tensor[0], b.tensor[0])


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
    apart = [
        rank for rank in range(8)
        if not overlap(training_shard(rank, FIG_8), generation_shard(rank, FIG_8, "hybridflow-v"))
    ]  # fmt: skip
    assert gpus([apart]) == [["G2", "G3", "G6", "G7"]]


def test_fig_8_hybridflow() -> None:
    assert gpus(generation_tp_groups(FIG_8)) == [["G1", "G3"], ["G2", "G4"], ["G5", "G7"], ["G6", "G8"]]
    assert gpus(micro_dp_groups(FIG_8)) == [["G1", "G2"], ["G3", "G4"], ["G5", "G6"], ["G7", "G8"]]
    assert all(overlap(training_shard(rank, FIG_8), generation_shard(rank, FIG_8)) for rank in range(8))


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
            assert generation_shard(rank, x).contains(training_shard(rank, x)), (x, rank)


def test_the_consecutive_rule_breaks_that() -> None:
    broken = [
        x for x in every_degrees()
        if not all(generation_shard(r, x, "hybridflow-v").contains(training_shard(r, x)) for r in range(x.num_ranks))
    ]  # fmt: skip
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


@pytest.mark.parametrize(("pg", "tg"), [(1, 3), (3, 1), (1, 8)])
def test_degrees_that_do_not_nest_are_refused(pg: int, tg: int) -> None:
    with pytest.raises(InputError, match="strided groups need"):
        Degrees(p=4, t=4, d=1, pg=pg, tg=tg)
