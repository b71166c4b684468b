"""Protects the choice of how many tokens engines draft: the best plan of all lengths, one bound, and it says which."""

from dataclasses import replace

import pytest

from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from profiles.errors import InputError
from simulator.play.simulate import simulate
from simulator.speculation import Speculation
from tests.builders import make_facts

PLAIN = make_facts("grpo", "qwen3.5-9b", device="h100-80gb-sxm", generation="vllm@0.12")


def listing(acceptance: float, lengths: tuple[int, ...] = (0, 1, 3)) -> SearchRequest:
    shares = tuple(acceptance**n for n in range(1, max(lengths) + 1))
    drafts = Speculation(shares, lengths=lengths if len(lengths) > 1 else ())
    return SearchRequest(replace(PLAIN, speculation=drafts), runners_up=False)


@pytest.mark.parametrize(("acceptance", "best"), [(0.95, 3), (0.0, 0)])
def test_the_plan_has_the_length_that_is_best(acceptance: float, best: int) -> None:
    """Each length alone gives its own optimum; of all the search returns the least, proven against the others."""
    request = listing(acceptance)
    alone = {n: find_plan(replace(request, facts=request.facts.drafting(n))) for n in (0, 1, 3)}
    found = find_plan(request)
    assert found.plan.draft_tokens == best
    assert found.iteration_s == pytest.approx(min(r.iteration_s for r in alone.values()))
    assert found.bound_s <= min(r.bound_s for r in alone.values()) + 1e-9 and found.status == "optimal"
    assert simulate(found.plan, request.facts).iteration_s == found.iteration_s, "the plan says what it is priced with"
    (note,) = (n for n in found.notes if n.startswith("drafts of"))
    assert note.startswith(f"drafts of {best} tokens a step are the best of those listed") and "1: " in note


def test_a_job_of_one_length_or_none_is_searched_once() -> None:
    assert find_plan(SearchRequest(PLAIN, runners_up=False)).plan.draft_tokens is None
    found = find_plan(listing(0.9, (3,)))
    assert found.plan.draft_tokens == 3 and not [n for n in found.notes if n.startswith("drafts of")]


def test_a_plan_that_drafts_needs_a_job_that_says_what_is_kept() -> None:
    plan = find_plan(SearchRequest(PLAIN, runners_up=False)).plan
    with pytest.raises(InputError, match="says nothing of drafts"):
        simulate(plan.model_copy(update={"draft_tokens": 2}), PLAIN)
    with pytest.raises(InputError, match="drafts 4 tokens a step"):
        simulate(plan.model_copy(update={"draft_tokens": 4}), listing(0.9).facts)
    with pytest.raises(InputError, match="lists 0, 1, 3"):
        _ = listing(0.9).one_length
