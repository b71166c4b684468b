"""Protects warm starts: a plan of the same search is found among its rows, any other is ignored with a reason."""

import pytest

from mapper.model.choices import fits, ticks_of
from mapper.model.instance import make_instance
from mapper.model.variables import Choice
from mapper.problem import make_problem
from mapper.request import SearchRequest
from mapper.search.best import best_choice
from mapper.search.find_plan import find_plan
from mapper.search.hint import choice_of_plan
from mapper.search.incumbent import greedy
from mapper.search.place import build_plan
from tests.builders import make_plan, replace_role, tiny_facts, toy_instance
from tests.work import HANGS_S

FACTS = tiny_facts("ppo", 4, 24.0)
PROBLEM = make_problem(FACTS)
X = make_instance(PROBLEM)


@pytest.mark.parametrize("placement", ["colocate", "split", "standalone"])
def test_a_plan_comes_back_as_the_choice_that_builds_it(placement: str) -> None:
    plan = find_plan(SearchRequest(FACTS, placement=placement, runners_up=False)).plan
    choice = choice_of_plan(X, plan)
    assert isinstance(choice, Choice)
    assert fits(X, choice)
    assert build_plan(X, choice, PROBLEM) == plan


def test_a_hint_changes_nothing_of_a_finished_search() -> None:
    free = find_plan(SearchRequest(FACTS))
    hinted = find_plan(SearchRequest(FACTS, hint=free.runners_up[0].plan))
    assert (hinted.plan, hinted.notes) == (free.plan, ())


def test_what_is_better_than_the_quick_choice_is_where_the_search_starts() -> None:
    x = toy_instance("ppo", ("actor", "critic", "reference", "reward"), 5, num_gpus=8)
    best, solution = best_choice(x, 0, HANGS_S)
    assert best is not None
    assert greedy(x)[1] >= solution.objective_ticks
    again, proof = best_choice(x, 0, 1e-3, known=best)  # no time to find anything
    assert again is not None
    assert ticks_of(x, again) == solution.objective_ticks
    assert proof.bound_ticks <= solution.objective_ticks


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        (make_plan(tiny_facts("remax", 4), (("actor", "reference", "reward"),), (4,)), "it has the roles actor, refer"),
        (make_plan(FACTS, (FACTS.dataflow.roles,), (4,), slots=7), "the layouts of its actor are not among"),
    ],
)
def test_a_plan_of_another_search_is_left_aside_with_a_note(hint, reason) -> None:  # type: ignore[no-untyped-def]
    result = find_plan(SearchRequest(FACTS, hint=hint, runners_up=False))
    assert result.notes == (next(iter(result.notes)),)
    assert result.notes[0].startswith(f"the hint is ignored: {reason}")
    assert result.plan == find_plan(SearchRequest(FACTS, runners_up=False)).plan


def test_pools_that_are_not_searched_are_said() -> None:
    plan = find_plan(SearchRequest(FACTS, placement="standalone", runners_up=False)).plan
    found = choice_of_plan(make_instance(make_problem(FACTS, "colocate")), plan)
    assert isinstance(found, str)
    assert "its pools" in found
    apart = replace_role(plan, "actor", generation_pool="G")
    assert choice_of_plan(X, apart) == "it generates on a dedicated pool, or this search does and it does not"
