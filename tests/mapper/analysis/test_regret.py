"""Protects what is said of drawn prices: regret by hand, the safest plan, and which error costs most.

Of a small job, every plan is played again under every draw: none beats the best known time, and one has it.
"""

from dataclasses import replace

import pytest

from mapper.analysis.regret import Contender, Draw, FamilyEffect, Robustness
from mapper.analysis.robust import robustness
from mapper.price_families import FAMILIES, scaled
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from simulator.facts import Facts
from simulator.play.simulate import simulate
from tests.builders import TINY, make_facts, workload


def job() -> Facts:
    """A job whose best placement depends on the network."""
    return make_facts("ppo", TINY, nodes=2, gpus_per_node=2, work=workload(16, 512, 512, minibatches=2))


def draw(best_s: float | None, chosen_s: float | None) -> Draw:
    return Draw({"network": 2.0}, best_s, chosen_s, "{actor}", True, True)


@pytest.mark.parametrize(
    ("best_s", "chosen_s", "regret"),
    [(8.0, 10.0, 0.25), (8.0, 8.0, 0.0), (8.0, None, None), (None, None, None), (None, 8.0, None)],
)
def test_regret_is_what_the_plan_takes_longer_than_the_best(best_s, chosen_s, regret) -> None:  # type: ignore[no-untyped-def]
    assert draw(best_s, chosen_s).regret == regret


@pytest.mark.parametrize(
    ("faster", "slower", "regret"),
    [
        (draw(8.0, 10.0), draw(10.0, 11.0), (0.25 + 0.1) / 2),
        (draw(8.0, None), draw(8.0, 10.0), 0.25),  # where it does not fit there is no regret to count
        (draw(8.0, None), draw(None, None), 0.0),
    ],
)
def test_a_familys_regret_is_the_mean_of_its_two_ends(faster, slower, regret) -> None:  # type: ignore[no-untyped-def]
    assert FamilyEffect("network", 1.0, faster, slower, 0.0).regret == pytest.approx(regret)


@pytest.fixture(scope="module")
def answer() -> Robustness:
    errors = dict.fromkeys(FAMILIES, 0.0) | {"network": 3.0, "compute": 0.5}
    return robustness(SearchRequest(job(), seed=1), errors=errors, draws=5)


def contender(answer: Robustness, unfit: int, worst: float, mean: float) -> Contender:
    return Contender(answer.chosen.plan, 0, unfit, mean, worst)


def test_the_safest_fits_most_often_and_then_loses_least(answer: Robustness) -> None:
    fits_once_less = contender(answer, 1, 0.0, 0.0)
    loses_much = contender(answer, 0, 0.3, 0.01)
    loses_less, and_less_often = contender(answer, 0, 0.2, 0.15), contender(answer, 0, 0.2, 0.1)
    all_four = (fits_once_less, loses_much, loses_less, and_less_often)
    assert replace(answer, contenders=all_four).safest == and_less_often
    assert replace(answer, contenders=all_four[:3]).safest == loses_less
    assert replace(answer, contenders=all_four[:2]).safest == loses_much


def test_the_error_that_costs_most_is_measured_first(answer: Robustness) -> None:
    """Among those that cost nothing the one that moves the time most."""
    idle = FamilyEffect("host", 0.1, draw(1.0, 1.0), draw(1.0, 1.0), 0.5)
    moves = FamilyEffect("memory", 0.1, draw(1.0, 1.0), draw(1.0, 1.0), 0.9)
    costs = FamilyEffect("network", 0.1, draw(1.0, 1.0), draw(1.0, 1.1), 0.1)
    assert replace(answer, effects=(idle, moves, costs)).measure_first == costs
    assert replace(answer, effects=(idle, moves)).measure_first == moves
    assert replace(answer, effects=()).measure_first is None


def test_draws_in_which_the_plan_does_not_fit_are_counted_apart(answer: Robustness) -> None:
    counted = replace(answer, draws=(draw(8.0, 10.0), draw(8.0, None), draw(None, None), draw(4.0, 4.0)))
    assert counted.regrets == [0.25, 0.0]
    assert counted.unfit == 2


def test_every_contender_played_again_has_the_regret_that_is_said(answer: Robustness) -> None:
    """The responses are as estimated, so every plan runs as it is."""
    facts = job()
    times = [[simulate(c.plan, scaled(facts, d.factors)).iteration_s for c in answer.contenders] for d in answer.draws]
    for drawn, of_draw in zip(answer.draws, times, strict=True):
        assert drawn.best_s == pytest.approx(min(of_draw), rel=1e-12)
    for i, one in enumerate(answer.contenders):
        regrets = [row[i] / min(row) - 1.0 for row in times]
        assert min(regrets) >= 0
        assert one.mean_regret == pytest.approx(sum(regrets) / 5, abs=1e-12)
        assert one.worst_regret == pytest.approx(max(regrets), abs=1e-12)
        assert one.unfit == 0
    assert sum(c.wins for c in answer.contenders) == 5
    assert len(answer.contenders) > 1, "a network this uncertain has more than one winner"


def test_the_best_plan_under_the_drawn_prices_has_no_regret(answer: Robustness) -> None:
    for drawn in answer.draws:
        best = find_plan(SearchRequest(scaled(job(), drawn.factors), runners_up=False))
        assert Draw(drawn.factors, drawn.best_s, best.iteration_s, "", True, True).regret == pytest.approx(0, abs=1e-4)
