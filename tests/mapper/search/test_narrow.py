"""Protects what a search leaves out before it compares: no placement's best plan, and nothing of the proof, is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mapper.candidates import listing
from mapper.deadline import NEVER
from mapper.execution_mode import SYNC, ExecutionMode
from mapper.model.instance import Instance, make_instance
from mapper.problem import make_problem
from mapper.request import SearchRequest
from mapper.search import incumbent, narrow
from mapper.search.best import best_choice
from mapper.search.find_plan import find_plan
from mapper.search.incumbent import greedy, thinned
from mapper.search_options import SearchOptions
from tests.builders import make_facts, tiny_facts
from tests.work import HANGS_S


def least_of_each(x: Instance) -> dict[frozenset[object], float]:
    """Seconds of the fastest iteration of every placement."""
    found = {}
    for placement in x.partitions:
        sizes = {group: x.sizes[group] for group in placement}
        choice, solution = best_choice(replace(x, partitions=(placement,), sizes=sizes), 0, HANGS_S)
        found[frozenset(placement)] = solution.objective_ticks * x.tick_s if choice is not None else float("inf")
    return found


@pytest.mark.parametrize(
    ("facts", "mode"),
    [
        (tiny_facts("ppo", 4), SYNC),
        pytest.param(make_facts("ppo", nodes=2), SYNC, marks=pytest.mark.long),
        (tiny_facts("remax", 4), SYNC),
        (make_facts("grpo", nodes=3), ExecutionMode("one-step-off", dedicated_rollout=True)),
    ],
    ids=["tiny", "16 GPUs", "two generations", "a pool of engines"],
)
def test_the_best_of_every_placement_is_that_of_everything(facts, mode, monkeypatch):
    monkeypatch.setattr(narrow, "FEW_ROWS", 0)
    monkeypatch.setattr(listing, "MANY_STEPS", 0)
    problem = make_problem(facts, mode=mode)
    whole, few = make_instance(problem), narrow.fastest_instance(problem, NEVER)
    assert sum(map(len, few.tables.values())) < sum(map(len, whole.tables.values()))
    if not mode.dedicated_rollout:  # an engine on a pool of its own pairs with nothing
        assert few.tables["actor"].num_priced < whole.tables["actor"].num_priced
    least = least_of_each(few)
    for placement, seconds in least_of_each(whole).items():
        assert least[placement] == pytest.approx(seconds, abs=whole.rounding_s + few.rounding_s)


def test_the_best_plain_plan_is_that_of_everything(monkeypatch):
    """Which pipelines are as short as can be is a question to all layouts, those of slow plans too."""
    request = SearchRequest(make_facts("ppo", nodes=2), options=SearchOptions(prefer_plain=0.0), runners_up=False)
    whole = find_plan(request)
    monkeypatch.setattr(narrow, "FEW_ROWS", 0)
    monkeypatch.setattr(listing, "MANY_STEPS", 0)
    few = find_plan(request)
    assert few.plain is not None
    assert whole.plain is not None
    assert (few.plan, few.plain.plan) == (whole.plan, whole.plain.plan)


def test_a_first_look_at_few_sizes_is_a_choice_of_the_whole(monkeypatch):
    x = make_instance(make_problem(make_facts("ppo", nodes=4)))
    whole = greedy(x)
    monkeypatch.setattr(incumbent, "FEW_SIZES", 3)
    few, rows = thinned(x)
    assert all(set(few.sizes[group]) < set(sizes) for group, sizes in x.sizes.items())
    choice, ticks = greedy(few)
    assert choice is not None
    assert ticks >= whole[1]
    assert all(x.tables[role].num_gpus[rows[role][row]] <= 32 for role, row in choice.rows.items())
    assert best_choice(x, 0, HANGS_S)[1].objective_ticks <= ticks
