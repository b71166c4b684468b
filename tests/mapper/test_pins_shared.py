"""Protects pins beyond one role: they filter placements, shrink the cluster, and what conflicts is named minimally."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.pins import Pin, Share, Spare, joined, parts_of
from mapper.problem import make_problem, set_partitions, sets_of, with_pins
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from mapper.search.infeasible import conflict
from profiles.errors import InfeasibleError
from tests.builders import make_facts, tiny_facts
from tests.draws import draws

ROLES = ("actor", "critic", "reference", "reward")


def test_required_and_forbidden_sharing_filter_the_set_partitions() -> None:
    facts = tiny_facts()
    pins = (Share(("actor", "reference"), True), Share(("actor", "critic"), False))
    partitions = make_problem(facts, pins=pins).partitions
    kept = [p for p in set_partitions(ROLES) if all(pin.allows(p) for pin in pins)]
    assert [sets_of(p) for p in partitions] == kept
    assert 0 < len(kept) < 15
    for partition in kept:
        group = next(g for g in partition if "actor" in g)
        assert "reference" in group
        assert "critic" not in group


def test_three_forbidden_roles_are_apart_two_by_two() -> None:
    apart = Share(("actor", "critic", "reward"), False)
    assert not apart.allows((("actor",), ("critic", "reward"), ("reference",)))
    assert apart.allows((("actor", "reference"), ("critic",), ("reward",)))


def test_spare_nodes_stay_free_and_the_rest_is_the_smaller_cluster() -> None:
    spared = find_plan(SearchRequest(make_facts(nodes=2), pins=(Spare(1),), runners_up=False))
    assert spared.plan.num_gpus <= 8
    alone = find_plan(SearchRequest(make_facts(nodes=1), runners_up=False))
    assert spared.iteration_s == pytest.approx(alone.iteration_s, rel=1e-4)  # the controller reaches two nodes, or one


def test_a_pinned_pool_has_its_size_whoever_shares_it() -> None:
    facts = tiny_facts("ppo", 8, 24.0)
    plan = find_plan(SearchRequest(facts, pins=(Pin("actor", num_gpus=2),), runners_up=False)).plan
    assert plan.pools[0].num_gpus == 2
    assert "actor" in plan.pools[0].roles


def test_parts_join_to_the_pin_they_came_from() -> None:
    pin = Pin("actor", {"tp": 2, "pp": 1}, {"micro_batch": 2}, {"tp": (1, 2)}, 8, 4)
    assert joined(parts_of(pin)) == (pin,)
    assert len(parts_of(pin)) == 6


PINS = [
    Pin("actor", {"tp": 4}, num_gpus=4),
    Pin("actor", {"tp": 2}, generation={"tp": 4}, num_gpus=2),
    Pin("critic", {"tp": 2}, num_gpus=4),
    Share(("actor", "critic"), False),
    Share(("actor", "critic"), True),
    Share(("actor", "reward"), False),
]


@given(chosen=st.sets(st.integers(0, len(PINS) - 1), min_size=1), which=st.integers(0, 1))
@settings(max_examples=draws(12), deadline=None)
def test_a_conflict_is_infeasible_and_minimal(chosen: set[int], which: int) -> None:
    pins = tuple(PINS[i] for i in sorted(chosen) if i != which)
    facts = tiny_facts("ppo", 4, 24.0)
    try:
        find_plan(SearchRequest(facts, pins=pins, runners_up=False))
        return
    except InfeasibleError as error:
        message = str(error)
    problem = make_problem(facts, pins=pins)
    parts = conflict(problem)
    assert parts
    assert all(str(part) in message for part in parts)
    with pytest.raises(InfeasibleError):
        find_plan(SearchRequest(facts, pins=joined(parts), runners_up=False))
    for part in parts:
        rest = joined(tuple(other for other in parts if other is not part))
        assert find_plan(SearchRequest(with_pins(problem, rest).facts, pins=rest, runners_up=False))


def test_a_spare_node_too_many_is_named_with_what_would_do() -> None:
    facts = make_facts("ppo", "llama-2-13b", nodes=3, gpus_per_node=4)
    with pytest.raises(InfeasibleError, match=r"the pin of spare_nodes: 2 .* it leaves 4 GPUs, the fewest that would"):
        find_plan(SearchRequest(facts, pins=(Spare(2),)))


def test_without_a_plan_for_the_job_itself_no_pin_is_blamed() -> None:
    with pytest.raises(InfeasibleError, match="alone needs at least"):
        find_plan(SearchRequest(tiny_facts("ppo", 2, 1.0), pins=(Share(("actor", "critic"), False),)))
