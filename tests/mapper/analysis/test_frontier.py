"""Protects the searches over budgets: every objective's answer, and the whole frontier, are those of brute force."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmap.text.frontier import proof_lines
from mapper.analysis.frontier import frontier, trace, with_left_out
from mapper.candidates import layouts
from mapper.deadline import NEVER, Deadline, TimeUpError
from mapper.model.choices import fits, gpus_of, ticks_of
from mapper.model.instance import Instance, make_instance
from mapper.model.solver import Solution
from mapper.objective import Objective
from mapper.pins import Pin
from mapper.problem import make_problem
from mapper.request import SearchRequest
from mapper.result import OPTIMAL_GAP
from mapper.search.budgets import Search, budgets_of, fewest_gpus_within, least_gpu_time
from mapper.search.find_plan import find_plan
from mapper.search.incumbent import greedy
from profiles.errors import InfeasibleError
from tests.builders import TINY, make_facts, tiny_facts, toy_instance, workload
from tests.draws import draws
from tests.mapper.exhaustive import best_by_gpus

ROLES = ("actor", "critic", "reference", "reward")
seeds = st.integers(0, 10**6)
capacities = st.sampled_from([12, 24, 60])


def toy(seed: int, capacity: int, gpus: int = 8) -> Instance:
    return toy_instance("ppo", ROLES, seed, num_gpus=gpus, capacity_mib=capacity)


def searching(instance: Instance) -> Search:
    return Search(instance, 0, NEVER)


def brute(instance: Instance) -> dict[int, int]:
    """Ticks of the best choice on at most so many GPUs, where there is one."""
    found = {n: ticks for n, (_, ticks) in best_by_gpus(instance).items()}
    upto = {n: [ticks for used, ticks in found.items() if used <= n] for n in range(1, instance.budget + 1)}
    return {n: min(ticks) for n, ticks in upto.items() if ticks}


@given(seed=seeds, capacity=capacities)
@settings(max_examples=draws(10), deadline=None)
def test_the_frontier_is_that_of_brute_force(seed: int, capacity: int) -> None:
    x = toy(seed, capacity)
    best, budgets = brute(x), [1, 2, 4, 8]
    steps, none_below = trace(searching(x), budgets, lambda done, total: None)
    assert none_below
    for budget in budgets:
        there = [step for step in steps if gpus_of(step.choice) <= budget]
        assert (there[-1].ticks if there else None) == best.get(budget)
    for step in steps:
        assert step.bound_ticks == step.ticks == ticks_of(x, step.choice)
        assert gpus_of(step.choice) <= step.last_budget
        assert fits(x, step.choice)
    assert [s.ticks for s in steps] == sorted({s.ticks for s in steps}, reverse=True)
    assert [gpus_of(s.choice) for s in steps] == sorted({gpus_of(s.choice) for s in steps})


@given(seed=seeds, capacity=capacities)
@settings(max_examples=draws(10), deadline=None)
def test_the_least_gpu_time_is_that_of_brute_force(seed: int, capacity: int) -> None:
    x = toy(seed, capacity)
    best = brute(x)
    found = least_gpu_time(searching(x), None)
    if not best:
        assert found is None
        return
    assert found is not None
    assert found.ticks * gpus_of(found.choice) == min(n * ticks for n, ticks in best.items())
    assert found.least == found.ticks * gpus_of(found.choice)
    assert found.bound_ticks == found.ticks == ticks_of(x, found.choice)


@given(seed=seeds, capacity=capacities, credit=st.floats(0.9, 2.5))
@settings(max_examples=draws(10), deadline=None)
def test_the_fewest_gpus_within_a_target_are_those_of_brute_force(seed: int, capacity: int, credit: float) -> None:
    x = toy(seed, capacity)
    best = brute(x)
    target = int(min(best.values()) * credit) if best else 100
    found = fewest_gpus_within(searching(x), target, None)
    enough = [n for n, ticks in best.items() if ticks <= target]
    if not enough:
        assert found is None
        return
    assert found is not None
    assert gpus_of(found.choice) == found.least == min(enough)
    assert found.ticks == found.bound_ticks == best[min(enough)]


def test_budgets_are_the_sums_of_pools() -> None:
    assert budgets_of(toy(0, 24, gpus=6)) == [1, 2, 3, 4, 5, 6]
    x = toy_instance("ppo", ROLES, 0, num_gpus=24, sizes=(8, 16))
    assert budgets_of(x) == [8, 16, 24]


def test_when_time_is_up_what_is_known_is_said_to_be_unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest budget is always looked at; a search that proves nothing leaves every point open."""
    x = toy(3, 60)
    steps, none_below = trace(Search(x, 0, Deadline(0.0)), [1, 2, 4, 8], lambda done, total: None)
    assert len(steps) == 1
    assert not none_below
    facts = tiny_facts("ppo", 8, 24.0)

    def unproven(instance: Instance, *args: object, **options: object) -> tuple[object, Solution]:
        choice, ticks = greedy(instance)
        if choice is None:
            raise TimeUpError
        return choice, Solution("feasible", choice, ticks, 0, 0.0)

    proven = frontier(SearchRequest(facts))
    monkeypatch.setattr("mapper.search.budgets.best_choice", unproven)
    points = frontier(SearchRequest(facts, time_limit_s=2.0))
    assert points
    assert not any(point.proven for point in points)
    for point in points:
        assert (point.bound_s, point.gap) == (0.0, 1.0)
        assert point.iteration_s >= min(p.iteration_s for p in proven if p.num_gpus <= point.num_gpus) * (1 - 1e-9)


def test_points_are_monotone_priced_and_reported() -> None:
    facts, reports = tiny_facts("ppo", 8, 24.0), []
    priced = SearchRequest(facts, objective=Objective("cost", ((facts.group.device, 3.6),)))
    points = frontier(priced, lambda done, total: reports.append((done, total)))
    assert len(points) > 1
    assert all(point.proven for point in points)
    for few, many in pairwise(points):
        assert few.num_gpus <= few.up_to_gpus < many.num_gpus
        assert few.iteration_s > many.iteration_s
    assert points[-1].iteration_s == find_plan(SearchRequest(facts, runners_up=False)).iteration_s
    assert points[0].cost_per_iteration == pytest.approx(points[0].iteration_s * points[0].num_gpus * 1e-3)
    assert reports[-1] == (4, 4)
    assert reports == sorted(reports)


def test_objectives_of_a_job_agree_with_its_frontier() -> None:
    facts = tiny_facts("ppo", 8, 24.0)
    points = frontier(SearchRequest(facts))
    dense = find_plan(SearchRequest(facts, objective=Objective("throughput_per_gpu"), runners_up=False))
    assert dense.status == "optimal"
    assert dense.value <= min(p.iteration_s * p.num_gpus for p in points) * (1 + 1e-6)
    assert dense.value_bound <= dense.value == dense.iteration_s * dense.plan.num_gpus
    cheap = find_plan(SearchRequest(facts, objective=Objective("cost", ((facts.group.device, 3.6),)), runners_up=False))
    assert cheap.value == pytest.approx(dense.value * 1e-3)
    wanted = Objective("gpus", target_iteration_s=points[1].iteration_s * 1.001)
    fewest = find_plan(SearchRequest(facts, objective=wanted))
    assert fewest.iteration_s <= points[1].iteration_s * 1.001
    assert points[0].num_gpus < fewest.plan.num_gpus <= points[1].num_gpus
    assert all(other.plan.num_gpus <= fewest.plan.num_gpus for other in fewest.runners_up)


def test_a_target_that_nothing_reaches_names_the_fastest() -> None:
    with pytest.raises(InfeasibleError, match=r"no plan ends an iteration within 0.001 s: the fastest on all 2 GPUs"):
        find_plan(SearchRequest(tiny_facts(memory_gib=64.0), objective=Objective("gpus", target_iteration_s=0.001)))


def test_bounds_cover_the_degrees_that_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coarse from 4 ranks on: a point's bound is below every plan of all degrees, and that of a search on as many."""
    work = workload(96, 512, 512, minibatches=2)
    facts = make_facts("grpo", nodes=6, roles={"actor": TINY, "reference": TINY}, work=work, reserve_bytes=1e9)
    every = frontier(SearchRequest(facts, placement="colocate"))
    monkeypatch.setattr(layouts, "EVERY", 4)
    assert make_instance(make_problem(facts)).relaxed() is not None
    coarse = frontier(SearchRequest(facts, placement="colocate"))
    for point in coarse:
        fastest = min(p.iteration_s for p in every if p.num_gpus <= point.up_to_gpus)
        assert point.bound_s <= fastest * (1 + 1e-9)
        assert point.proven == (point.gap <= OPTIMAL_GAP)
    whole = find_plan(SearchRequest(facts, placement="colocate", runners_up=False))
    assert coarse[-1].bound_s == pytest.approx(whole.bound_s, rel=1e-9)


def test_a_bound_of_what_is_left_out_is_taken_over_by_every_smaller_budget() -> None:
    """An instance whose rows could all be a fifth faster: each bound is that of brute force over those."""
    x = toy(3, 60)
    faster = replace(x, ticks={r: {k: t * 4 // 5 for k, t in calls.items()} for r, calls in x.ticks.items()})
    steps, none_below = trace(searching(x), [1, 2, 4, 8], lambda done, total: None)
    granted, still_none = with_left_out(searching(faster), steps, [1, 2, 4, 8], none_below)
    best = brute(faster)
    assert still_none == none_below
    for before, after in zip(steps, granted, strict=True):
        assert after.bound_ticks == best[before.last_budget] <= before.bound_ticks
        assert after.choice == before.choice


def test_what_is_left_open_is_told_apart_from_time_that_was_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap that only unlisted degrees keep open is said to be one, in the lines and by the bounds."""
    roles = {"actor": TINY, "reference": TINY}
    facts = make_facts("grpo", nodes=7, roles=roles, work=workload(80, 512, 512, minibatches=1), reserve_bytes=1e9)
    pins = (Pin("actor", training={"tp": 1, "pp": 1}, generation={"tp": 8, "pp": 2}),)
    monkeypatch.setattr(layouts, "EVERY", 4)
    points = frontier(SearchRequest(facts, placement="colocate", pins=pins))
    last = points[-1]
    assert last.bound_s < last.listed_bound_s == pytest.approx(last.iteration_s)
    assert not last.proven
    (line,) = [line for line in proof_lines(points) if line.startswith("left out")]
    assert f"{last.num_gpus} GPUs: on up to 56 no plan beats {last.bound_s:.2f} s" in line
    assert not any("time was up" in line for line in proof_lines(points))
    late = [replace(point, listed_bound_s=point.bound_s) for point in points]
    assert "time was up" in proof_lines(late)[-1]
