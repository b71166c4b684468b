"""Protects one search as it is asked: every part of a request is in its problem, and several modes are not one."""

import pytest

from mapper.execution_mode import GENERATOR, SYNC, ExecutionMode
from mapper.pins import Pin, Spare
from mapper.problem import sets_of
from mapper.request import SearchRequest
from mapper.search_options import SearchOptions
from profiles.errors import InputError
from tests.builders import make_facts

OWN = ExecutionMode("one-step-off", dedicated_rollout=True)


def test_of_several_modes_none_is_the_one() -> None:
    facts = make_facts()
    assert SearchRequest(facts).mode == SYNC
    assert SearchRequest(facts, modes=(OWN,)).mode == OWN
    with pytest.raises(InputError, match=r"allows sync, .*; one-step-off, a dedicated generation pool; name one"):
        _ = SearchRequest(facts, modes=(SYNC, OWN)).mode


def test_pools_are_slices_of_a_node_and_whole_nodes() -> None:
    facts = make_facts(nodes=3)
    device = facts.group.device
    assert SearchRequest(facts).problem(SYNC).sizes == {device: (1, 2, 4, 8, 16, 24)}
    spared = SearchRequest(facts, pins=(Spare(1),)).problem(SYNC)
    assert (spared.sizes, spared.num_gpus) == ({device: (1, 2, 4, 8, 16)}, 16)


def test_placement_pins_and_options_are_those_of_the_problem() -> None:
    facts, pins = make_facts(nodes=2), (Pin("actor", {"tp": 2}),)
    wide = SearchOptions(tensor_parallel_across_nodes=True)
    problem = SearchRequest(facts, pins=pins, options=wide, placement="split", even=True).problem(SYNC)
    assert (problem.facts, problem.pins, problem.options, problem.equal_sizes) == (facts, pins, wide, True)
    assert [sets_of(p) for p in problem.partitions] == [(("actor", "reference"), ("critic", "reward"))]


def test_the_problem_is_that_of_the_mode_that_is_asked_for() -> None:
    request = SearchRequest(make_facts(), modes=(SYNC, OWN), placement="colocate")
    assert [request.problem(mode).roles for mode in request.modes] == [
        ("actor", "critic", "reference", "reward"),
        ("actor", GENERATOR, "critic", "reference", "reward"),
    ]
    assert [len(request.problem(mode).partitions[0]) for mode in request.modes] == [1, 2]
