"""Protects the scalings: exactly nothing at one, times by their factor, memory and samples untouched."""

import pytest

from mapper.price_families import FAMILIES, RESOURCES, default_errors, scaled, with_response
from profiles.workload import LengthDistribution
from simulator.play.simulate import simulate
from tests.builders import make_facts, make_plan, tiny_facts, workload

ROLES = ("actor", "critic", "reference", "reward")


def test_a_factor_of_one_changes_nothing():
    facts = tiny_facts()
    assert scaled(facts, dict.fromkeys(FAMILIES, 1.0)) is facts


def test_all_resources_together_stretch_all_but_the_launches():
    facts = make_facts(nodes=2, gpus_per_node=4)
    plan = make_plan(facts, (ROLES,), (8,), tp=4)
    before, after = (simulate(plan, f).iteration_s for f in (facts, scaled(facts, dict.fromkeys(RESOURCES, 2.0))))
    assert 1.9 * before < after <= 2 * before


def test_default_errors_follow_the_evidence():
    fixed = default_errors(tiny_facts())
    assert fixed["network"] > fixed["host"] > fixed["compute"] > 0
    assert fixed["response"] == 0  # a setting
    spread = make_facts(work=workload(response=LengthDistribution("lognormal", 500.0, 4096, 2000.0)))
    assert default_errors(spread)["response"] == 0.15


def test_response_lengths_keep_their_limit():
    assert with_response(workload(response=1000), 1.5).response.maximum == 1500
    spread = with_response(workload(response=LengthDistribution("lognormal", 500.0, 4096, 2000.0)), 2.0).response
    assert (spread.mean, spread.maximum, spread.p99) == (1000.0, 4096, 4000.0)
    most = with_response(workload(response=LengthDistribution("lognormal", 500.0, 4096)), 100.0).response
    assert most.mean == pytest.approx(0.95 * 4096)
    counted = LengthDistribution.histogram((10, 100), (0.5, 0.5))
    assert with_response(workload(response=counted), 4.0).response.lengths == (40, 100)
