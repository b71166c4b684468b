"""Protects the answer of several searches together: the best plan, and only what all of them prove about it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapper.objective import Objective
from mapper.result import OPTIMAL_GAP, Result, RunnerUp, best_of
from simulator.play.simulate import simulate
from tests.builders import make_plan, tiny_facts

FACTS = tiny_facts("grpo", 8, 60.0)
PLANS = {n: make_plan(FACTS, (FACTS.dataflow.roles,), (n,)) for n in (1, 2, 4, 8)}
TIMELINE = simulate(PLANS[1], FACTS)
GPU_TIME = Objective("throughput_per_gpu")


def result(
    iteration_s: float, bound_s: float, gpus: int = 1, objective: Objective | None = None, **changes: object
) -> Result:
    """A search that found a plan of so many GPUs and seconds, and proved ``bound_s`` for as many."""
    objective, plan = objective or Objective(), PLANS[gpus]
    value, least = (objective.value(s, plan.gpus) for s in (iteration_s, bound_s))
    gap = max((value - least) / value, (iteration_s - bound_s) / iteration_s if objective.goal == "gpus" else 0.0)
    found = Result(
        status="optimal" if gap <= OPTIMAL_GAP else "feasible",
        plan=plan,
        timeline=TIMELINE.model_copy(update={"iteration_s": iteration_s}),
        bound_s=bound_s,
        gap=gap,
        seed=0,
        seconds=1.0,
        num_priced=10,
        num_candidates=3,
        runners_up=(),
        objective=objective,
        value_bound=least,
    )
    return replace(found, **changes)


@pytest.mark.parametrize(
    ("objective", "value"),
    [
        (Objective(), 30.0),
        (GPU_TIME, 120.0),
        (Objective("cost", ((FACTS.group.device, 3.6),)), 0.12),
        (Objective("gpus", target_iteration_s=40.0), 4.0),
    ],
)
def test_what_a_result_is_worth(objective: Objective, value: float) -> None:
    found = result(30.0, 30.0, gpus=4, objective=objective)
    assert (found.iteration_s, found.value) == (30.0, pytest.approx(value))


def test_one_search_is_its_own_answer() -> None:
    found = result(30.0, 20.0)
    assert best_of((found,)) is found


def test_by_hand() -> None:
    """The second search has the best plan; the first could still hide one of 24 s."""
    rival = RunnerUp("{actor} {reward}", 31.0, PLANS[2])
    first = result(32.0, 24.0, notes=("a", "b"), open_because=("x",), runners_up=(rival,))
    second = result(30.0, 30.0, notes=("b", "c"), num_priced=5)
    both = best_of((first, second))
    assert (both.plan, both.iteration_s) == (second.plan, 30.0)
    assert (both.bound_s, both.value_bound, both.gap, both.status) == (24.0, 24.0, pytest.approx(0.2), "feasible")
    assert (both.seconds, both.num_priced, both.num_candidates) == (2.0, 15, 6)
    assert [r.iteration_s for r in both.runners_up] == [31.0, 32.0]
    assert both.runners_up[1] == RunnerUp(first.plan.placement, 32.0, first.plan)
    assert both.notes == ("a", "b", "c")
    assert both.open_because == ("x",)


def test_proven_together_where_all_others_are_proven_to_be_slower() -> None:
    assert best_of((result(30.0, 30.0), result(32.0, 31.0), result(99.0, 30.5))).status == "optimal"


def test_gpu_time_decides_over_time_where_it_is_the_objective() -> None:
    fast, lean = result(10.0, 10.0, 8, GPU_TIME), result(60.0, 60.0, 1, GPU_TIME)
    both = best_of((fast, lean))
    assert (both.plan, both.value_bound, both.gap) == (lean.plan, 60.0, 0.0)
    assert both.bound_s <= 10.0, "some plan takes 10 s"


def test_of_plans_on_as_few_gpus_the_fastest() -> None:
    fewest = Objective("gpus", target_iteration_s=40.0)
    slow, fast, more = result(39.0, 39.0, 2, fewest), result(35.0, 35.0, 2, fewest), result(20.0, 20.0, 4, fewest)
    assert best_of((slow, more, fast)).iteration_s == 35.0


def test_the_fewest_gpus_are_not_proven_the_fastest_while_another_search_is_open() -> None:
    """Both need two GPUs; the second search may still find a plan of 25 s on them."""
    fewest = Objective("gpus", target_iteration_s=40.0)
    both = best_of((result(30.0, 30.0, 2, fewest), result(35.0, 25.0, 2, fewest)))
    assert (both.iteration_s, both.bound_s) == (30.0, 25.0)
    assert (both.gap, both.status) == (pytest.approx(5 / 30), "feasible")


times = st.lists(
    st.tuples(st.integers(1, 100), st.floats(0.5, 1.0), st.sampled_from([1, 2, 4, 8])), min_size=1, max_size=4
)


@given(times, st.sampled_from([Objective(), GPU_TIME]))
def test_no_search_has_a_better_plan_or_a_lower_bound(
    found: list[tuple[int, float, int]], objective: Objective
) -> None:
    results = tuple(result(s, s * share, gpus, objective) for s, share, gpus in found)
    best = best_of(results)
    assert best.value == min(r.value for r in results)
    assert best.value_bound == min(r.value_bound for r in results)
    assert best.bound_s == min(r.bound_s for r in results) <= best.iteration_s
    assert best.gap == pytest.approx((best.value - best.value_bound) / best.value)
    assert best.status == ("optimal" if best.gap <= OPTIMAL_GAP else "feasible")
    rivals = [r.iteration_s for r in best.runners_up]
    assert sorted([*rivals, best.iteration_s]) == sorted(float(s) for s, _, _ in found)
    assert rivals == sorted(rivals)
