"""Protects the search for scoring layouts: rows priced as ``simulate`` does, the optimum of brute force over plans, a
permission that is refused where it is of no use, and a bound that covers what is not listed.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from mapper.candidates import scoring
from mapper.model.instance import make_instance
from mapper.pins import Pin
from mapper.problem import make_problem
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from mapper.search_options import USUAL, SearchOptions
from profiles.errors import InputError
from simulator.cost import scoring_copy
from simulator.cost.pricing import role_costs
from simulator.cost.role_layouts import layouts_of
from simulator.cost.role_memory import role_memory
from simulator.facts import Facts
from simulator.feasibility import check_plan
from simulator.plan.layouts import Layouts
from simulator.plan.plan import ParallelLayout, RolePlan
from simulator.play.simulate import simulate
from tests.builders import TINY, make_facts, replace_role, tiny_facts, workload
from tests.mapper.exhaustive import exhaustive
from tests.mapper.tables import role_table

COPIES = SearchOptions(scoring_layouts=True)


def tiny(memory_gib: float, gpus: int = 4) -> Facts:
    """A tiny job whose trainer copies weights at no fixed cost, so that copies are worth having."""
    facts = tiny_facts("ppo", gpus, memory_gib)
    return replace(facts, training=replace(facts.training, scoring_layouts=True))


def test_rows_with_a_copy_are_priced_as_simulate_does() -> None:
    facts = make_facts("ppo", "llama-2-7b", nodes=2, training="megatron-core@0.16")
    table = role_table(make_problem(facts, options=COPIES), "critic", prune=False)
    x = table.layouts
    assert x.training is not None
    assert x.inference is not None
    own = np.flatnonzero(scoring_copy.apart(x.training, x.inference))
    assert 0 < len(own) < len(table)
    for row in np.random.default_rng(0).permutation(own)[:25].tolist():
        one = x.take(np.asarray([row]))
        for key, cost in role_costs(facts, "critic", one).items():
            assert table.durations_s[key][row] == pytest.approx(float(cost.time.s[0]), rel=1e-12), key
        needs = role_memory(facts, "critic", one)
        assert table.transient_bytes[row] == pytest.approx(needs.transient_bytes[0], rel=1e-12)
        assert table.resident_bytes[row] == pytest.approx(needs.resident_bytes[0], rel=1e-12)


def every_layout(gpus: int, micro_batches: tuple[int, ...]) -> list[ParallelLayout]:
    degrees = [(d, t, p) for d, t, p in product((1, 2, 3, 4), repeat=3) if d * t * p <= gpus and t != 3]
    return [
        ParallelLayout(dp=d, tp=t, pp=p, micro_batch=mb, zero_stage=0)
        for (d, t, p), mb in product(degrees, micro_batches)
    ]


@pytest.mark.parametrize("memory_gib", [4.6, 8.0])
def test_no_scoring_layout_of_the_critic_beats_the_search(memory_gib: float) -> None:
    """The rest of the plan as found, every layout of the critic's scoring, judged by the checker and ``simulate``."""
    facts = tiny(memory_gib)
    found = find_plan(SearchRequest(facts, runners_up=False, options=COPIES))
    assert found.iteration_s <= find_plan(SearchRequest(facts, runners_up=False)).iteration_s
    tried = 0
    for layout in every_layout(4, (1, 2, 4, 8, 16)):
        plan = replace_role(found.plan, "critic", inference=layout)
        if not check_plan(plan, facts):
            tried += 1
            assert simulate(plan, facts).iteration_s >= found.iteration_s - 1e-9
    assert tried > 3


@pytest.mark.parametrize(("memory_gib", "gpus"), [(4.2, 2), (8.0, 4)])
def test_pruning_keeps_the_optimum(memory_gib: float, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against every pair of spread and copy that fits: nothing is dropped but by memory."""
    problem = make_problem(tiny(memory_gib, gpus), pins=(Pin("critic", training={"tp": gpus}),), options=COPIES)
    pruned = make_instance(problem)
    monkeypatch.setattr(scoring, "non_dominated_by_group", lambda key, values: np.arange(len(key)))
    monkeypatch.setattr(scoring, "non_dominated", lambda values: np.arange(len(values)))
    whole = make_instance(problem)
    monkeypatch.undo()
    assert exhaustive(pruned)[1] == exhaustive(whole)[1] > 0


def test_a_copy_wins_where_training_must_be_spread_and_scoring_need_not() -> None:
    """Training is pinned to tensor parallelism over all four GPUs; scoring needs none."""
    facts = tiny(30.0)
    pins = (Pin("critic", training={"tp": 4, "pp": 1}),)
    plain, copied = (find_plan(SearchRequest(facts, runners_up=False, options=s, pins=pins)) for s in (USUAL, COPIES))
    critic = copied.plan.role("critic")
    assert critic.inference is not None
    assert critic.inference.tp == 1
    assert copied.iteration_s < plain.iteration_s
    assert check_plan(copied.plan, facts) == []
    x = make_instance(make_problem(facts, pins=pins, options=COPIES))
    assert copied.iteration_s == pytest.approx(exhaustive(x)[1] * x.tick_s, abs=x.rounding_s)


def test_the_permission_is_refused_where_it_is_of_no_use() -> None:
    with pytest.raises(InputError, match=r"megatron-core@0.6 scores in the training layout only"):
        make_problem(make_facts(), options=COPIES)
    with pytest.raises(InputError, match="no trained role scores"):
        make_problem(make_facts("grpo", training="megatron-core@0.16"), options=COPIES)


@pytest.mark.slow
def test_what_copies_gain_in_degrees_that_are_not_listed_is_granted() -> None:
    """Above 128 ranks: no unlisted degree's scoring, on any copy, is faster than its row says it could be."""
    facts = make_facts("ppo", TINY, nodes=64, training="megatron-core@0.16", work=workload(1024, minibatches=2))
    problem = make_problem(facts, options=COPIES)
    granted = role_table(problem, "critic").relaxed()
    x = granted.layouts
    assert x.training is not None
    listed = set(x.training.dp.tolist())
    unlisted = [dp for dp in range(130, 500, 37) if dp not in listed]
    assert unlisted
    for dp in unlisted:
        trained = ParallelLayout(dp=dp, micro_batch=1)
        for scores in (ParallelLayout(dp=n, zero_stage=0, micro_batch=mb) for n in (dp - 1, dp // 2) for mb in (1, 4)):
            one = layouts_of(plan_entry(trained, scores))
            costs, needs = role_costs(facts, "critic", one), role_memory(facts, "critic", one)
            better = granted.num_gpus <= -(-dp // 8) * 8
            better &= granted.resident_bytes <= needs.resident_bytes[0] + 1
            for key, cost in costs.items():
                better &= granted.durations_s[key] <= float(cost.time.s[0]) * (1 + 1e-9)
            assert np.any(better), (dp, scores)


def plan_entry(trained: ParallelLayout, scores: ParallelLayout) -> RolePlan:
    return RolePlan(role="critic", pool="A", training=trained, inference=scores)


def test_a_spread_keeps_the_number_of_its_degrees() -> None:
    spreads = scoring.Spreads.of([(4, 2, 1, 1, 1), (2, 2, 2, 1, 1)], np.asarray([1, 7]), np.asarray([4, 3]))
    assert isinstance(spreads.layouts, Layouts)
    assert spreads.layouts.zero_stage.tolist() == [1, 3]
    assert spreads.layouts.pp.tolist() == [1, 2]
    assert spreads.last_dp.tolist() == [4, 3]
