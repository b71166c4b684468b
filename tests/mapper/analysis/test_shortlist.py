"""Protects searches on a shortlist: its rows priced anew are the prices of their plans, and a rival wins by right."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.analysis.shortlist import faster_rival, make_shortlist
from mapper.analysis.thresholds import Dimension, changed
from mapper.execution_mode import GENERATOR, SYNC, ExecutionMode
from mapper.model.instance import Instance, make_instance
from mapper.model.variables import Choice
from mapper.price_families import with_memory
from mapper.problem import Problem, make_problem
from mapper.request import SearchRequest
from mapper.search.best import best_choice
from mapper.search.place import build_plan
from simulator.facts import Facts
from simulator.feasibility import check_plan
from simulator.plan.dataflow import CONTROLLER
from simulator.play.simulate import simulate
from tests.builders import tiny_facts, toy_instance
from tests.draws import draws
from tests.mapper.enumeration import allowed, least_ticks
from tests.work import HANGS_S

CHANGES: list[tuple[Dimension, float]] = [
    ("response", 2.0),
    ("prompts", 0.5),
    ("compute", 0.25),
    ("memory", 4.0),
    ("network", 0.125),
    ("host", 8.0),
]
MODES = [SYNC, ExecutionMode("one-step-off", dedicated_rollout=True)]


def repriced(facts: Facts, mode: ExecutionMode) -> tuple[Problem, Instance]:
    """The shortlist of the job as it was, under changed facts; all placements."""
    shortlist = make_shortlist(SearchRequest(tiny_facts("grpo", 2, 6.0), modes=(mode,)))
    problem = make_problem(facts, mode=mode)
    return problem, shortlist.instance(facts, problem.partitions)


def drawn_choices(x: Instance, num: int) -> list[Choice]:
    """Choices of any placement, sizes and rows that fit together."""
    rng, found = np.random.default_rng(0), []
    for _ in range(2000):
        placement = x.partitions[rng.integers(len(x.partitions))]
        if not all(x.sizes[group] for group in placement):
            continue
        pools = tuple((group, int(rng.choice(x.sizes[group]))) for group in placement)
        rows = {role: int(rng.integers(len(table))) for role, table in x.tables.items()}
        if len(found) < num and allowed(x, Choice(pools, rows)):
            found.append(Choice(pools, rows))
    return found


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(("dimension", "factor"), CHANGES)
def test_every_row_has_the_price_of_a_plan_with_it(dimension: Dimension, factor: float, mode: ExecutionMode) -> None:
    facts = changed(tiny_facts("grpo", 2, 6.0), dimension, factor)
    problem, x = repriced(facts, mode)
    there = drawn_choices(x, 6)
    assert len(there) == 6
    for choice in there:
        plan = build_plan(x, choice, problem)
        assert check_plan(plan, facts) == []
        spans = {span.call: span.duration_s for span in simulate(plan, facts).spans}
        for role, calls in x.ticks.items():
            for key, ticks in calls.items():
                if key != "transition" or mode is SYNC:
                    row = 0 if role == CONTROLLER else choice.rows[role]
                    assert ticks[row] * x.tick_s == pytest.approx(spans[key], abs=x.tick_s), key


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(("dimension", "factor"), CHANGES)
def test_its_best_is_that_of_a_search_of_everything(dimension: Dimension, factor: float, mode: ExecutionMode) -> None:
    """Of this job; in general a layout may be missing that is worth having under the changed facts alone."""
    facts = changed(tiny_facts("grpo", 2, 6.0), dimension, factor)
    problem, x = repriced(facts, mode)
    whole = make_instance(problem)
    best, anew = (best_choice(one, 0, HANGS_S)[1].objective_ticks * one.tick_s for one in (x, whole))
    assert best == pytest.approx(anew, rel=1e-5)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_as_the_job_is_nothing_changes(mode: ExecutionMode) -> None:
    """More rows than a search has, for they hold what longer work needs; those that fit are priced as they were."""
    facts = tiny_facts("grpo", 2, 6.0)
    _, x = repriced(facts, mode)
    shortlist = make_shortlist(SearchRequest(facts, modes=(mode,)))
    for role, table in shortlist.tables.items():
        room = facts.memory_room_bytes
        fitting = np.flatnonzero(table.resident_bytes + table.transient_bytes <= room)
        again = x.tables[role]
        assert len(again) == len(fitting)
        for key, seconds in table.durations_s.items():
            assert np.allclose(again.durations_s[key], seconds[fitting], rtol=1e-12)
        assert np.allclose(
            again.resident_bytes + again.transient_bytes, (table.resident_bytes + table.transient_bytes)[fitting]
        )
    assert (GENERATOR in x.tables) is mode.dedicated_rollout


def test_rows_of_a_job_with_less_memory_are_those_that_still_fit() -> None:
    facts = tiny_facts("grpo", 2, 6.0)
    shortlist = make_shortlist(SearchRequest(facts))
    poorer = with_memory(facts, lambda num_bytes: num_bytes * 2 // 3)
    x = shortlist.instance(poorer, make_problem(facts).partitions)
    room = poorer.memory_room_bytes
    for role, table in x.tables.items():
        need = shortlist.tables[role].resident_bytes + shortlist.tables[role].transient_bytes
        assert 0 < len(table) == np.count_nonzero(need <= room) < len(need)


def test_a_rank_without_a_sample_is_no_row() -> None:
    """With an eighth of sixteen prompts, in two minibatches, no update runs on two data-parallel ranks."""
    _, x = repriced(changed(tiny_facts("grpo", 2, 6.0), "prompts", 0.125), SYNC)
    layouts = x.tables["actor"].layouts
    assert layouts.training is not None
    assert layouts.generation is not None
    assert set(layouts.training.dp.tolist()) == {1}
    assert set(layouts.generation.dp.tolist()) <= {1, 2}


@settings(max_examples=draws(25))
@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(10, 40), st.integers(0, 4))
def test_a_rival_wins_exactly_where_an_enumeration_says_so(seed: int, gpus: int, capacity: int, at: int) -> None:
    x = toy_instance(
        "remax", ("actor", "reference", "reward"), seed, num_gpus=gpus, sizes=(1, 2), most_rows=1, capacity_mib=capacity
    )
    won, rivals = x.partitions[at], tuple(p for i, p in enumerate(x.partitions) if i != at)
    least = {p: least_ticks(replace(x, partitions=(p,))) for p in x.partitions}
    faster = {p for p in rivals if least[p] is not None and (least[won] is None or least[p] < least[won])}
    found = faster_rival(x, won, rivals)
    if not faster:
        assert found is None
        return
    assert found is not None
    assert {frozenset(p) for p in faster} >= {frozenset(found)}
    (same,) = [p for p in faster if set(p) == set(found)]
    assert least[same] == min(least[p] for p in faster)
