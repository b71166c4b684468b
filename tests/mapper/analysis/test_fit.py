"""Protects the leanest plan and the remedies: what is said to fit passes the feasibility check."""

from dataclasses import replace

import pytest

from mapper.analysis.fit import leanest_plan, over_bytes, remedies
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from profiles.errors import InfeasibleError
from simulator.feasibility import check_plan
from tests.builders import make_facts, replace_role


def with_memory(facts, num_bytes):
    return replace(facts, device=facts.device.with_spec(replace(facts.device.spec, memory_bytes=int(num_bytes))))


@pytest.fixture(scope="module")
def crowded():
    """Four 13B models on four GPUs of 80 GiB."""
    return make_facts("ppo", "llama-2-13b", gpus_per_node=4)


@pytest.fixture(scope="module")
def leanest(crowded):
    return leanest_plan(SearchRequest(crowded))


def test_the_leanest_plan_fits_in_what_it_says_and_no_search_finds_one_in_less(crowded, leanest):
    plan, needs = leanest
    assert needs > crowded.memory_capacity_bytes
    assert check_plan(plan, with_memory(crowded, needs)) == []
    with pytest.raises(InfeasibleError):
        find_plan(SearchRequest(with_memory(crowded, 0.95 * needs), runners_up=False))


def test_remedies_that_fit_do(crowded, leanest):
    plan, _ = leanest
    now = over_bytes(plan, crowded)
    assert now > 0
    found = remedies(plan, crowded)
    assert found
    for remedy in found:
        assert remedy.over_bytes < now
        assert remedy.fits == (check_plan(remedy.plan, remedy.facts) == [])


def test_a_cache_that_is_too_large_is_named(crowded):
    facts = make_facts("ppo", "llama-3.2-1b", gpus_per_node=8)
    plan = find_plan(SearchRequest(facts, runners_up=False)).plan
    engine = plan.role("actor").generation
    large = engine.model_copy(update={"kv_cache_bytes": 85 * 2**30})
    found = remedies(replace_role(plan, "actor", generation=large), facts)
    assert any(r.fits and "sequences in flight" in r.what for r in found)
