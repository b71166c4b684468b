"""Protects what measured seconds make of the factors: hidden ones are found, and nothing moves that was not seen."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.calibration import FACTORS, UNCALIBRATED
from simulator.calibration.factors import (
    Belief,
    calibrated,
    calibration_of,
    combined,
    contradictions,
    prior,
    uncalibrated,
)
from simulator.calibration.fit import Case, Prices, fit, planned_s
from simulator.calibration.posterior import SINGLE_STEP_ERROR, WHOLE, Observation, fit_to
from simulator.play.left_open import PLAN_ERROR
from simulator.play.simulate import simulate
from tests.builders import TINY, make_facts, make_plan, workload

NOISE = 0.03
LENGTHS = (256, 1024)
MODELS = {"actor": "llama-2-7b", "reference": "llama-2-7b"}
START = prior()


def cases(lengths=LENGTHS):
    out = []
    for length in lengths:
        facts = make_facts("grpo", roles=MODELS, work=workload(64, 512, length))
        out.append(Case(make_plan(facts, (("actor", "reference"),), (8,)), facts))
    return out


def observations(some, log_factors, rng, error=NOISE):
    prices, found = Prices(some, {}), []
    for i, case in enumerate(some):
        for call in case.facts.dataflow.calls:
            if call.role != "controller":
                blank = Observation(i, (call.key,), 1.0)
                seconds = prices.seconds(blank, log_factors) * float(np.exp(rng.normal(0.0, error)))
                found.append(replace(blank, seconds=seconds, error=error))
    return [one for one in found if one.seconds > 0]


def test_calls_that_were_timed_together_take_turns_in_a_pool_and_run_at_once_in_two():
    """OpenRLHF times the critic's and the actor's training as one, whether they share GPUs or not."""
    facts = make_facts("ppo", roles=dict.fromkeys(("actor", "critic", "reference", "reward"), "llama-2-7b"))
    roles, keys = ("actor", "critic", "reference", "reward"), ("update_actor", "update_critic")
    for sets, sizes in (((roles,), (8,)), ((("actor", "reference"), ("critic", "reward")), (8, 8))):
        prices = Prices([Case(make_plan(facts, sets, sizes), facts)], {})
        alone = prices.calls_s(0, np.zeros(len(FACTORS)), keys)
        together_s = prices.seconds(Observation(0, keys, 1.0), np.zeros(len(FACTORS)))
        assert together_s == pytest.approx(sum(alone.values()) if len(sets) == 1 else max(alone.values()))


def test_calls_that_slowed_each_other_down_teach_no_slower_prices():
    """Two pools on one host: what a call measures has its neighbour in it, and so has its price."""
    facts = make_facts("ppo", TINY, work=workload(32, 128, 128))
    training = replace(facts.training, neighbour_slowdown=1.3, neighbour_spread=0.1)
    host = replace(facts, device=replace(facts.device, spec=replace(facts.device.spec, kind="cpu")), training=training)
    plan = make_plan(host, (("actor", "reference"), ("critic", "reward")), (1, 1))
    calls = [call.key for call in host.dataflow.calls if call.role != "controller"]
    seen = [Observation(0, (key,), s, NOISE) for key, s in planned_s(plan, host).items() if key in calls and s]
    belief, _ = fit([Case(plan, host)], seen)
    assert belief.log_factors == pytest.approx(0.0, abs=1e-6)


def test_seconds_at_any_length_are_told_from_a_factor_and_stay_where_lengths_change():
    """Of a call whose time falls less than its price: a copy of parameters that no length changes."""
    some, copied_s = cases((256, 512, 1024)), 0.2
    right, key = np.zeros(len(FACTORS)), ("compute_ref_log_prob",)
    seen = [o for o in observations(some, right, np.random.default_rng(0), 0.0) if o.calls == key]
    belief, seconds = fit(some, [replace(o, seconds=o.seconds + copied_s) for o in seen])
    assert seconds[key[0]] * 64 == pytest.approx(copied_s, rel=0.5)
    (short,) = cases((64,))
    facts = calibrated(short.facts, calibration_of(belief, seconds))
    alone_s = Prices([short], {}).calls_s(0, right)[key[0]]
    with_copy = {span.call: span.duration_s for span in simulate(short.plan, facts).spans}[key[0]]
    assert with_copy == pytest.approx(alone_s + copied_s, rel=0.1)
    assert with_copy == pytest.approx(Prices([short], seconds).calls_s(0, belief.log_factors)[key[0]], rel=1e-3)


def test_what_is_priced_at_nothing_moves_nothing():
    """Weights that stay where they are, and a log in which that took a millisecond."""
    facts = make_facts("ppo", TINY, work=workload(32, 128, 128))
    facts = replace(facts, generation=replace(facts.generation, transition_fixed_s=0.0, shares_weights=True))
    plan = make_plan(facts, (("actor", "critic", "reference", "reward"),), (1,))
    prices, right = Prices([Case(plan, facts)], {}), np.zeros(len(FACTORS))
    blanks = [Observation(0, (c.key,), 1.0, NOISE) for c in facts.dataflow.calls if c.role != "controller"]
    seen = [replace(o, seconds=prices.seconds(o, right) or 1e-3) for o in blanks]
    assert prices.seconds(blanks[0], right) == 0.0, "the transition"
    belief, _ = fit(prices.cases, seen)
    assert belief.log_factors == pytest.approx(0.0, abs=1e-6) and belief.scale <= 1.0


def test_a_function_in_a_models_place_says_nothing_of_models():
    """It was timed by itself; a busy minute of that is no price of a forward pass."""
    facts = make_facts("ppo", TINY, work=workload(32, 128, 128))
    timed = replace(facts, roles={**facts.roles, "reward": replace(facts.roles["reward"], function_s_per_sample=1e-2)})
    case = Case(make_plan(timed, (("actor", "critic", "reference", "reward"),), (1,)), timed)
    right = observations([case], np.zeros(len(FACTORS)), np.random.default_rng(0), 0.0)
    seen = [replace(o, seconds=o.seconds * (0.1 if o.calls == ("compute_reward",) else 1.0)) for o in right]
    belief, _ = fit([case], seen)
    assert belief.log_factors == pytest.approx(0.0, abs=1e-6)
    slower = calibrated(timed, calibration_of(Belief(np.full(len(FACTORS), 0.5), np.eye(len(FACTORS))), {}))
    before, after = ({s.call: s.duration_s for s in simulate(case.plan, f).spans} for f in (timed, slower))
    assert after["compute_reward"] == pytest.approx(before["compute_reward"])
    assert after["compute_values"] > before["compute_values"]


def test_one_stage_moves_nothing_else():
    some = cases((512,))
    doubled = observations(some, np.zeros(len(FACTORS)), np.random.default_rng(0), 0.0)
    seen = [replace(o, seconds=2 * o.seconds) for o in doubled if o.calls == ("update_actor",)]
    found = fit(some, seen)[0]
    for name, log in zip(FACTORS, found.log_factors, strict=True):
        assert (abs(log) > 1e-3) == (name == "training"), name  # this engine has no host time
    moved = Prices(some, {}).seconds(seen[0], found.log_factors)
    assert moved == pytest.approx(seen[0].seconds, rel=0.05)


def test_a_whole_step_moves_all_that_it_may_rest_on():
    some = cases((512,))
    whole = Observation(0, (WHOLE,), 1.0)
    now = Prices(some, {}).seconds(whole, np.zeros(len(FACTORS)))
    found = fit(some, [replace(whole, seconds=1.3 * now)])[0]
    assert Prices(some, {}).seconds(whole, found.log_factors) == pytest.approx(1.3 * now, rel=0.05)
    assert found.factors["generation"] > 1 < found.factors["training"]


def test_without_a_measurement_belief_stays():
    assert fit(cases((512,)), [])[0].log_factors.tolist() == [0.0] * len(FACTORS)


def test_two_runs_say_what_they_say_together():
    some, rng = cases(), np.random.default_rng(1)
    hidden = np.full(len(FACTORS), 0.1)
    seen = observations(some, hidden, rng)
    prices = Prices(some, {})
    first, second = (fit_to(prices, half).belief for half in (seen[::2], seen[1::2]))
    together = combined([first, second])
    assert together.log_factors == pytest.approx(fit_to(prices, seen).belief.log_factors, abs=0.02)
    assert (np.diag(together.covariance) <= np.diag(first.covariance) + 1e-12).all()


def test_two_runs_far_from_the_prices_say_together_what_both_say():
    """A run that widened its prior knows less of what it did not see than the prior of another."""
    some = cases((512,))
    doubled = observations(some, np.zeros(len(FACTORS)), np.random.default_rng(0), 0.0)
    seen = [replace(o, seconds=3 * o.seconds) for o in doubled if o.calls == ("update_actor",)]
    one = fit(some, seen)[0]
    assert one.scale > 1.0
    together = combined([one, one])
    assert (np.linalg.eigvalsh(together.covariance) > 0).all()
    assert together.factors["training"] == pytest.approx(3.0, rel=0.05)


def test_a_single_step_is_as_uncertain_as_what_it_corrects():
    """A published step a tenth off moves prices by part of it; the mean of many steps moves them nearly all the way."""
    some = cases((512,))
    whole = Observation(0, (WHOLE,), 1.0, SINGLE_STEP_ERROR)
    training = replace(whole, calls=("update_actor",))
    prices, right = Prices(some, {}), np.zeros(len(FACTORS))
    moved = []
    for blank in (whole, training, replace(training, error=0.0)):
        now = prices.seconds(blank, right)
        found = fit(some, [replace(blank, seconds=1.1 * now)])[0]
        moved.append(np.log(prices.seconds(blank, found.log_factors) / now) / np.log(1.1))
    assert min(moved[:2]) > 0.2 and max(moved[:2]) < 0.75 < moved[2]


def test_a_lone_number_of_one_step_moves_prices_by_the_same_share_however_far_off_it_is():
    """Far off may be the prices or the step; two stages of it that agree, or a mean of many steps, say which."""
    some = cases((512,))
    whole = Observation(0, (WHOLE,), 1.0, SINGLE_STEP_ERROR)
    prices, right = Prices(some, {}), np.zeros(len(FACTORS))
    now, shares = prices.seconds(whole, right), []
    for times in (1.1, 1.5, 2.0):
        found = fit(some, [replace(whole, seconds=times * now)])[0]
        assert found.scale == 1.0
        shares.append(np.log(prices.seconds(whole, found.log_factors) / now) / np.log(times))
    assert shares == pytest.approx([shares[0]] * 3, abs=0.05)
    assert fit(some, [replace(whole, seconds=2.0 * now, error=NOISE)])[0].scale > 1.0
    stages = observations(some, right, np.random.default_rng(0), 0.0)
    assert fit(some, [replace(o, seconds=1.5 * o.seconds, error=SINGLE_STEP_ERROR) for o in stages])[0].scale > 1.0


def test_runs_that_contradict_each_other_are_named():
    small = 0.01 * np.eye(len(FACTORS))
    here, there = Belief(np.zeros(len(FACTORS)), small), Belief(np.eye(len(FACTORS))[2], small)
    assert contradictions(here, there) == [FACTORS[2]]
    assert contradictions(here, here) == []


def test_simulate_prices_with_the_factors_that_were_fitted():
    (case,) = cases((512,))
    hidden = np.linspace(-0.2, 0.3, len(FACTORS))
    facts = calibrated(case.facts, calibration_of(Belief(hidden, START.covariance), {"compute_advantage": 0.01}))
    spans = {span.call: span.duration_s for span in simulate(case.plan, facts).spans}
    predicted = Prices([case], {"compute_advantage": 0.01}).calls_s(0, hidden)
    assert spans == pytest.approx(predicted, rel=1e-3)  # host factors lie between points
    assert spans["compute_advantage"] == pytest.approx(0.01 * case.facts.workload.num_samples)
    assert case.facts.calibration is UNCALIBRATED
    assert simulate(case.plan, uncalibrated(facts)).iteration_s == pytest.approx(
        simulate(case.plan, case.facts).iteration_s
    )


def test_what_was_measured_narrows_what_is_open():
    (case,) = cases((512,))
    seen = observations([case], np.zeros(len(FACTORS)), np.random.default_rng(0))
    wide, narrow = (
        simulate(case.plan, calibrated(case.facts, calibration_of(belief, {}))).log_deviation
        for belief in (prior(2.0), fit([case], seen)[0])
    )
    assert PLAN_ERROR < narrow < 0.6 * wide
    assert simulate(case.plan, case.facts).log_deviation is None
