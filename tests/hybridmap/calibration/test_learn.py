"""Protects what is learned from a log: a public run's first twenty steps foretell the rest, by stage."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hybridmap.calibration.learn import learn, predicted, timed_together
from hybridmap.calibration.lengths import learn_lengths, percentile_99, with_lengths
from hybridmap.calibration.memory import learn_memory
from hybridmap.exports.imported import Given
from hybridmap.exports.verl.import_run import import_verl
from hybridmap.exports.verl.read import read_verl_config
from hybridmap.runlogs.read import read_log
from hybridmap.runlogs.records import STEP, LoggedStep, RunLog
from profiles.errors import InputError
from profiles.workload import LengthDistribution
from simulator.calibration.factors import calibrated, layer_of

LOGS = Path(__file__).parents[3] / "examples" / "logs"


@pytest.fixture(scope="module")
def public():
    log = read_log(LOGS / "verl-qwen2-7b-8xh100.jsonl")
    lengths = log.mean_lengths()
    given = Given("h100-80gb-sxm", None, round(lengths.response_mean), lengths.prompt_mean)
    return log, import_verl(read_verl_config(LOGS / "verl-qwen2-7b-8xh100.sh"), given)


def test_the_first_steps_of_a_public_run_foretell_each_stage_of_the_rest(public):
    log, ran = public
    facts = ran.job.facts()
    learned = learn(replace(log, steps=log.steps[:20]), ran.plan, facts)
    found = predicted(log.steps[20:], learned, ran.plan, facts)
    assert len(log.steps[20:]) == 112
    assert set(found) == {
        "generate_sequences",
        "compute_log_prob",
        "compute_ref_log_prob",
        "update_actor",
        "transition",
    }
    for stage, bins in found.items():
        measured, foretold = (np.average(bins[:, i], weights=bins[:, 2]) for i in (0, 1))
        assert foretold == pytest.approx(measured, rel=0.05), stage  # lengths fell by a sixth
    assert learned.file.seconds_per_sample["compute_ref_log_prob"] > 0  # its parameters come from the host each time


def test_held_out_steps_show_what_it_was_worth(public):
    log, ran = public
    learned = learn(log, ran.plan, ran.job.facts())
    errors = {stage.calls: (abs(stage.error_before), abs(stage.error_after)) for stage in learned.file.stages}
    assert all(after < 0.04 for _, after in errors.values())
    assert max(before for before, _ in errors.values()) > 0.15
    assert learned.kept.warm_up == (1, 2)
    assert learned.lacks == ()
    assert learned.file.memory_gib == pytest.approx(55.1, abs=0.2)
    assert learned.file.peak.allocated_gib == pytest.approx(41.6, abs=0.1)
    seconds = learned.file.seconds_per_sample
    waiting_s = (seconds["compute_reward"] + seconds["compute_advantage"]) * ran.job.facts().workload.num_samples
    assert 0.3 < waiting_s < 2.0  # advantages, and 0.7 s without a name


def test_what_a_log_lacks_is_said_with_what_it_costs(public):
    log, ran = public
    bare = tuple(LoggedStep(s.number, {STEP: s.seconds[STEP]}) for s in log.steps)
    learned = learn(RunLog("verl", "x", bare), ran.plan, ran.job.facts())
    assert [text.split(":")[0] for text in learned.lacks] == [
        "no time of transition, generate_sequences, compute_log_prob, compute_ref_log_prob, update_actor",
        "no response lengths",
        "no peak of memory",
    ]
    assert learned.file.stages[0].calls == ("step",)
    assert abs(learned.file.stages[0].error_after) < 0.1  # a whole step says little of its calls


def test_one_step_with_one_time_does_not_say_how_far_prices_may_be_off(public):
    """Many such steps do, whose spread was measured."""
    log, ran = public
    facts = ran.job.facts()
    slow = tuple(LoggedStep(s.number, {STEP: 2 * s.seconds[STEP]}) for s in log.steps[:20])
    one, many = (learn(RunLog("verl", "x", steps), ran.plan, facts).file for steps in (slow[5:6], slow))
    assert one.prior_scale == 1.0 < many.prior_scale


def test_a_peak_in_the_log_is_what_the_plan_then_needs(public):
    """The run allocated more than was priced; with its layer the same plan is priced at what it allocated."""
    log, ran = public
    facts = ran.job.facts()
    learned = learn(log, ran.plan, facts)
    peak = learned.file.peak
    assert peak.factor > 1.2
    again = learn_memory(log.steps, ran.plan, calibrated(facts, layer_of([learned.file])))
    assert again.priced_gib == pytest.approx(peak.allocated_gib, rel=0.01)
    assert again.factor == pytest.approx(1.0, abs=0.01)


def test_a_peak_below_the_priced_one_frees_nothing(public):
    log, ran = public
    low = [replace(step, allocated_gib=10.0) for step in log.steps[:3]]
    assert learn_memory(low, ran.plan, ran.job.facts()).factor == 1.0
    assert learn_memory([replace(step, allocated_gib=None) for step in low], ran.plan, ran.job.facts()) is None


@pytest.mark.parametrize("wrong_s", [0.5, 9999.5])
def test_a_time_that_damage_changed_moves_no_factor(public, wrong_s):
    """A digit more or less in one of eight steps; its mean was taken at its word, and the factor moved by a hundred."""
    log, ran = public
    steps = log.steps[2:10]
    changed = replace(steps[3], seconds=steps[3].seconds | {"generate_sequences": wrong_s})
    facts = ran.job.facts()
    right = learn(replace(log, steps=steps), ran.plan, facts)
    found = learn(replace(log, steps=(*steps[:3], changed, *steps[4:])), ran.plan, facts)
    assert found.belief.log_factors == pytest.approx(right.belief.log_factors, abs=0.1)


def test_a_call_of_next_to_no_time_is_none_though_it_once_took_longer(public):
    log, ran = public
    steps = [replace(s, seconds={**s.seconds, "compute_reward": 4e-4}) for s in log.steps[:20]]
    steps[7] = replace(steps[7], seconds={**steps[7].seconds, "compute_reward": 3e-3})
    facts = ran.job.facts()
    assert timed_together(steps, facts, ran.plan) == timed_together(log.steps[:20], facts, ran.plan)


def test_steps_shorter_than_their_calls_say_that_calls_overlap(public):
    log, ran = public
    short = [replace(step, seconds=step.seconds | {STEP: 20.0}) for step in log.steps[:5]]
    with pytest.raises(InputError, match="so they overlap"):
        learn(replace(log, steps=tuple(short)), ran.plan, ran.job.facts())


def test_a_log_without_any_time_of_the_job_is_refused(public):
    _, ran = public
    with pytest.raises(InputError, match="no step says how long a call of grpo took"):
        learn(RunLog("verl", "x", (LoggedStep(1, {"update_critic": 3.0}),)), ran.plan, ran.job.facts())


@pytest.mark.parametrize(("sigma", "limit"), [(0.5, 1024), (0.8, 2048), (1.2, 4096)])
def test_the_tail_comes_from_the_share_at_the_limit(sigma, limit):
    drawn = np.minimum(np.random.default_rng(0).lognormal(np.log(400), sigma, 400_000), limit)
    found = percentile_99(float(drawn.mean()), limit, float((drawn == limit).mean()))
    assert found == pytest.approx(400 * np.exp(2.326 * sigma), rel=0.05)


@pytest.mark.parametrize(("mean", "clipped"), [(100.0, 0.0), (1023.9, 0.5), (100.0, 0.95)])
def test_no_tail_is_made_up(mean, clipped):
    assert percentile_99(mean, 1024, clipped) is None


def test_a_mean_beyond_the_limit_is_damage_and_means_all_beyond_it_another_job(public):
    log, ran = public
    steps, limit = log.steps[2:10], ran.job.facts().workload.response.maximum
    wrong = replace(steps[3], lengths=replace(steps[3].lengths, response_mean=99999.5))
    assert learn_lengths((*steps[:3], wrong), limit).response_mean == learn_lengths(steps[:3], limit).response_mean
    longer = [replace(step, lengths=replace(step.lengths, response_mean=4.0 * limit)) for step in steps]
    found = learn(replace(log, steps=tuple(longer)), ran.plan, ran.job.facts())
    assert found.lacks == ("responses within the job's limit of 1,024 tokens: another job ran",)


def test_lengths_at_the_limit_are_fixed():
    assert with_lengths(LengthDistribution.fixed(64), 64.0, None).kind == "fixed"
    assert with_lengths(LengthDistribution.fixed(64), 20.0, None).mean == 20.0
    assert learn_lengths([LoggedStep(1, {})], 64) is None
