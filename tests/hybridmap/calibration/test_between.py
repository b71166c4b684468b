"""Protects what lies between calls: our own runs say when calls began, logs of other systems what has no name."""

from dataclasses import replace

import numpy as np
import pytest

from hybridmap.calibration.between import DISPATCH, before_calls
from hybridmap.calibration.learn import learn, observed, timed_together
from hybridmap.runlogs.read import log_of
from profiles.calibration import digest_of
from profiles.records import Basis
from simulator.calibration.factors import calibrated, layer_of, uncalibrated, without_dispatch
from simulator.calibration.fit import Case
from simulator.play.simulate import simulate
from tests.builders import make_facts, make_plan, workload

ROLES = ("actor", "critic", "reference", "reward")
DISPATCH_S = {
    "dispatch_s": 0.2,
    "dispatch_iteration_s": 1.0,
    "dispatch_iteration_s_per_sample": 1e-2,
    "dispatch_pool_rank_s": 0.05,
}


@pytest.fixture(scope="module")
def ran():
    """Facts of a job whose time between calls is known, and a plan of one pool."""
    facts = make_facts("ppo", work=workload(64, 512, 256))
    facts = replace(facts, training=replace(facts.training, **DISPATCH_S))
    return facts, make_plan(facts, (ROLES,), (8,), tp=8)


def measured(facts, plan, factor):
    """An iteration whose calls take what they are priced at and what lies between them ``factor`` times its price."""
    alone, whole = simulate(plan, without_dispatch(facts)), simulate(plan, facts)
    between_s = factor * (whole.iteration_s - alone.iteration_s)
    return alone.model_copy(update={"source": "measured", "iteration_s": alone.iteration_s + between_s})


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.3])
def test_our_own_runs_say_what_lies_between_calls(ran, factor):
    facts, plan = ran
    log = log_of([measured(facts, plan, factor)] * 10, "own")
    assert before_calls(log.steps, plan, facts) == pytest.approx(factor, rel=0.01)
    file = learn(log, plan, facts).file
    assert file.dispatch == pytest.approx(factor, rel=0.01)
    assert max(map(abs, file.log_factors)) < 0.01, "no factor of a call takes what lies before it"
    learned = calibrated(facts, layer_of([file]))
    assert simulate(plan, learned).iteration_s == pytest.approx(measured(facts, plan, factor).iteration_s, rel=0.01)
    assert uncalibrated(learned).training.dispatch_s == pytest.approx(facts.training.dispatch_s)


@pytest.mark.parametrize(
    ("factor", "least", "most"), [(0.85, 0.92, 0.95), (1.0, 1.0, 1.0), (1.15, 1.05, 1.08), (2.0, 1.8, 2.0)]
)
def test_what_a_profile_measured_is_moved_by_more_than_starts_differ_alone(ran, factor, least, most):
    """Starts of one run differ by 6 %: with full weight of one start all other placements inherit its luck."""
    facts, plan = ran
    measured_here = {**facts.training.bases, "dispatch_s": Basis.MEASURED}
    facts = replace(facts, training=replace(facts.training, bases=measured_here))
    log = log_of([measured(facts, plan, factor)] * 10, "own")
    assert least - 1e-6 <= before_calls(log.steps, plan, facts) <= most + 1e-6


def test_calls_that_are_held_up_in_turn_add_up_to_the_usual_step(ran):
    """In every step one of three calls is held up by half of itself; the middles of each call are of steps without."""
    facts, plan = ran
    one = measured(facts, plan, 1.0)

    def held_up(call):
        extra_s = next(span.duration_s for span in one.spans if span.call == call) / 2.0
        spans = [s.model_copy(update={"end_s": s.end_s + extra_s * (s.call == call)}) for s in one.spans]
        return one.model_copy(update={"spans": tuple(spans), "iteration_s": one.iteration_s + extra_s})

    steps = log_of([held_up(call) for call in ("compute_values", "update_critic", "update_actor")] * 4, "own").steps
    found = observed([(Case(plan, facts), list(steps))], timed_together(steps, facts, plan))
    between_s = one.iteration_s - simulate(plan, without_dispatch(facts)).iteration_s
    usual_s = float(np.median([step.iteration_s for step in steps]))
    assert usual_s > one.iteration_s
    assert sum(call.seconds for call in found) + between_s == pytest.approx(usual_s, rel=0.01)


def test_what_is_no_time_of_a_controller_is_bounded_and_nothing_is_learned_from_nothing(ran):
    facts, plan = ran
    log = log_of([measured(facts, plan, 1e6)], "own")
    assert before_calls(log.steps, plan, facts) == DISPATCH[1]
    assert before_calls(log.steps, plan, without_dispatch(facts)) is None
    no_time = [replace(step, between_s=0.0) for step in log.steps]
    assert before_calls(no_time, plan, facts) == pytest.approx(DISPATCH[0], rel=0.02)
    assert before_calls([replace(step, between_s=None) for step in log.steps], plan, facts) is None


def test_a_layer_from_before_it_was_learned_keeps_its_digest(ran):
    facts, plan = ran
    file = learn(log_of([measured(facts, plan, 1.3)], "own"), plan, facts).file
    assert digest_of(file) != digest_of(file.model_copy(update={"dispatch": 1.0}))
    assert layer_of([file, file.model_copy(update={"dispatch": 1.0})]).dispatch == pytest.approx(file.dispatch)
