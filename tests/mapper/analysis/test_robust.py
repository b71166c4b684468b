"""Protects regret: none without error, never below zero, of plans priced exactly as ``simulate`` prices them."""

import math
from dataclasses import replace

import pytest

from mapper.analysis.robust import robustness
from mapper.price_families import FAMILIES, scaled
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from mapper.search.replay import layout_key, with_room
from profiles.errors import InfeasibleError, InputError
from profiles.workload import LengthDistribution
from simulator.play.simulate import simulate
from tests.builders import TINY, make_facts, tiny_facts, workload

ROLES = ("actor", "critic", "reference", "reward")
DRAWS = 4


@pytest.fixture(scope="module")
def two_nodes():
    """A job whose best placement depends on the network."""
    return make_facts("ppo", TINY, nodes=2, gpus_per_node=2, work=workload(16, 512, 512, minibatches=2))


@pytest.fixture(scope="module")
def answer(two_nodes):
    return robustness(
        SearchRequest(two_nodes, seed=1), errors=dict.fromkeys(FAMILIES, 0.5) | {"network": 3.0}, draws=DRAWS
    )


def test_without_error_there_is_no_regret(two_nodes):
    none = robustness(SearchRequest(two_nodes), errors=dict.fromkeys(FAMILIES, 0.0), draws=3)
    assert none.regrets == [0.0, 0.0, 0.0]
    assert none.effects == () and none.measure_first is None
    assert all(d.same_layouts for d in none.draws)


def test_regret_is_never_negative_and_the_safest_is_no_worse(answer):
    assert len(answer.regrets) + answer.unfit == DRAWS
    assert min(answer.regrets) >= 0
    assert max(answer.regrets) > 0  # a network this uncertain moves the winner
    chosen = next(c for c in answer.contenders if layout_key(c.plan) == layout_key(answer.chosen.plan))
    assert (answer.safest.unfit, answer.safest.worst_regret) <= (chosen.unfit, chosen.worst_regret)
    assert all(c.worst_regret >= c.mean_regret >= 0 for c in answer.contenders)
    assert sum(c.wins for c in answer.contenders) == DRAWS


def test_times_under_a_draw_are_those_of_simulate(answer, two_nodes):
    for draw in answer.draws:
        drawn = scaled(two_nodes, draw.factors)
        chosen = with_room(answer.chosen.plan, drawn)
        assert layout_key(chosen) == layout_key(answer.chosen.plan)
        if draw.chosen_s is None:
            with pytest.raises(InfeasibleError):
                simulate(chosen, drawn)
            continue
        assert draw.chosen_s == pytest.approx(simulate(chosen, drawn).iteration_s, rel=1e-12)
        assert draw.best_s <= find_plan(SearchRequest(drawn, runners_up=False)).iteration_s * (1 + 1e-12)


def test_the_same_seed_gives_the_same_answer(two_nodes):
    errors = dict.fromkeys(FAMILIES, 0.0) | {"network": 3.0}
    one, again, other = (robustness(SearchRequest(two_nodes, seed=s), errors=errors, draws=2) for s in (1, 1, 2))
    assert again.draws == one.draws
    assert again.contenders == one.contenders
    assert again.effects == one.effects != ()
    assert other.draws[0].factors != one.draws[0].factors


def test_the_family_that_moves_the_winner_is_the_one_to_measure(two_nodes):
    alone = robustness(SearchRequest(two_nodes), errors=dict.fromkeys(FAMILIES, 0.02) | {"network": 3.0}, draws=1)
    assert alone.measure_first.family == "network"
    assert alone.measure_first.regret > 0
    assert not alone.measure_first.slower.same_placement


def test_a_plan_that_does_not_fit_has_no_regret():
    facts = tiny_facts(memory_gib=4.0)
    answer = robustness(SearchRequest(facts), errors=dict.fromkeys(FAMILIES, 0.0) | {"response": 3.0}, draws=6)
    assert answer.unfit > 0
    assert all((d.regret is None) == (d.chosen_s is None) for d in answer.draws if d.best_s is not None)
    assert all(d.factors["response"] > 1 for d in answer.draws if d.chosen_s is None)


def test_progress_and_budget(two_nodes):
    seen = []
    answer = robustness(SearchRequest(two_nodes), draws=5, budget_s=1e-9, progress=lambda *at: seen.append(at))
    assert len(answer.draws) == 1 and answer.asked == 5
    assert "network" in answer.skipped
    assert seen[0] == (1, 5 + 2 * 5)


@pytest.mark.parametrize("errors", [{"network": -0.1}, {"network": math.inf}, {"fabric": 0.1}])
def test_wrong_errors(errors):
    with pytest.raises(InputError):
        robustness(SearchRequest(tiny_facts()), errors=errors, draws=1)


def test_lengths_that_are_a_distribution_are_uncertain_by_default():
    work = replace(workload(16, 64, 64, minibatches=2), response=LengthDistribution("lognormal", 40.0, 128))
    answer = robustness(SearchRequest(make_facts("grpo", TINY, gpus_per_node=2, work=work)), draws=2)
    assert {e.family for e in answer.effects} == set(FAMILIES)
