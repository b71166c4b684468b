"""Protects the proven bound: of all plans of a small job, simulated one by one, none is faster; the best is found."""

from functools import cache

import pytest

from mapper.execution_mode import SYNC, ExecutionMode
from mapper.model.instance import make_instance
from mapper.objective import Objective
from mapper.pins import Pin
from mapper.problem import make_problem
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from mapper.search.place import build_plan
from simulator.facts import Facts
from simulator.feasibility import check_plan
from simulator.play.simulate import simulate
from tests.builders import TINY, tiny_facts
from tests.mapper.enumeration import every_choice

TWO, FOUR = (tiny_facts("grpo", gpus, 4.5, roles={"actor": TINY, "reference": TINY}) for gpus in (2, 4))
MODES = [SYNC, ExecutionMode(dedicated_rollout=True), ExecutionMode("one-step-off", dedicated_rollout=True)]
DEVICE = TWO.group.device


def pins(mode: ExecutionMode) -> tuple[Pin, ...]:
    """So few layouts that every plan can be simulated."""
    if mode.dedicated_rollout:
        train, engine = (
            {"pp": 1, "micro_batch": (1, 4), "recompute": "full", "tp": 1},
            {"pp": 1, "max_num_seqs": 4},
        )
        return (
            Pin("actor", train),
            Pin("generator", generation=engine),
            Pin("reference", {}, {"pp": 1, "micro_batch": 8}),
        )
    train, engine = {"pp": 1, "micro_batch": (1, 8), "recompute": "full"}, {"pp": 1, "max_num_seqs": (4, 8)}
    return (Pin("actor", train, {}, engine), Pin("reference", {}, {"pp": 1, "micro_batch": (1, 8)}))


def facts_of(mode: ExecutionMode) -> Facts:
    """Two GPUs, or four where engines have some of their own."""
    return FOUR if mode.dedicated_rollout else TWO


@cache
def every_plan(mode: ExecutionMode) -> list[tuple[float, int]]:
    """Seconds and GPUs of each plan that runs, nothing pruned."""
    facts = facts_of(mode)
    problem = make_problem(facts, mode=mode, pins=pins(mode))
    x = make_instance(problem, prune=False)
    plans = [build_plan(x, choice, problem) for choice in every_choice(x)]
    return [(simulate(p, facts).iteration_s, p.num_gpus) for p in plans if not check_plan(p, facts)]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    "objective",
    [Objective(), Objective("throughput_per_gpu"), Objective("cost", ((DEVICE, 2.5),))],
    ids=lambda o: o.goal,
)
def test_no_plan_is_below_the_bound_and_the_best_is_found(mode: ExecutionMode, objective: Objective) -> None:
    values = [objective.value(seconds, {DEVICE: gpus}) for seconds, gpus in every_plan(mode)]
    assert len(values) > 50
    found = find_plan(
        SearchRequest(facts_of(mode), modes=(mode,), pins=pins(mode), objective=objective, runners_up=False)
    )
    assert found.value_bound <= min(values)
    assert found.value == pytest.approx(min(values), rel=1e-5)
    assert found.value_bound == pytest.approx(min(values), rel=1e-5), "rounding is all that is taken off"
    assert found.status == "optimal"


def test_of_several_modes_the_best_of_all_plans() -> None:
    seconds = [s for mode in MODES[1:] for s, _ in every_plan(mode)]
    found = find_plan(SearchRequest(FOUR, modes=tuple(MODES[1:]), pins=pins(MODES[1]), runners_up=False))
    assert found.bound_s <= min(seconds)
    assert found.iteration_s == pytest.approx(min(seconds), rel=1e-5)


def test_the_fewest_gpus_within_a_target_are_those_of_all_plans() -> None:
    seconds = sorted(s for s, gpus in every_plan(SYNC) if gpus == 1)
    both = min(s for s, _ in every_plan(SYNC))
    assert both < seconds[0]
    for target, gpus, fastest in ((1.01 * seconds[0], 1, seconds[0]), (0.99 * seconds[0], 2, both)):
        objective = Objective("gpus", target_iteration_s=target)
        found = find_plan(SearchRequest(TWO, pins=pins(SYNC), objective=objective, runners_up=False))
        assert (found.plan.num_gpus, found.iteration_s) == (gpus, pytest.approx(fastest, rel=1e-5))
        assert found.bound_s <= fastest
