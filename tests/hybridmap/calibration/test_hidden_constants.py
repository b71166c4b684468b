"""Protects what intervals of a calibration say: ten logs of machines whose constants are known, in four formats."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hybridmap.calibration.learn import learn
from hybridmap.exports.imported import Given
from hybridmap.exports.verl.import_run import import_verl
from hybridmap.exports.verl.read import read_verl_config
from hybridmap.runlogs.read import read_log
from profiles.calibration import FACTORS
from profiles.workload import LengthDistribution
from simulator.calibration.factors import WIDTHS, Belief, calibrated, calibration_of
from simulator.calibration.posterior import MODEL_ERROR
from simulator.play.simulate import simulate
from simulator.uncertainty import NINETY

SCRIPT = Path(__file__).parents[3] / "examples" / "logs" / "verl-qwen2-7b-8xh100.sh"
STEPS, NOISE, SIGMA = 15, 0.04, 0.6
KNOTS = np.asarray([180.0, 300.0, 500.0])
"""Mean lengths at which a machine is simulated; seconds of a step are read off between them."""

VERL = {
    "timing_s/gen": "generate_sequences",
    "timing_s/old_log_prob": "compute_log_prob",
    "timing_s/ref": "compute_ref_log_prob",
    "timing_s/update_actor": "update_actor",
    "timing_s/update_weights": "transition",
    "timing_s/step": "step",
    "response_length/mean": "mean",
    "response_length/clip_ratio": "clipped",
}


def verl_console(number, step):
    pairs = " - ".join(f"{metric}:{step[name]!r}" for metric, name in VERL.items())
    return (
        f"\x1b[36m(TaskRunner pid=195)\x1b[0m step:{number} - actor/pg_loss:-0.0131 - {pairs} - perf/mfu/actor:0.33\n"
    )


def verl_json_lines(number, step):
    return json.dumps({"step": number, "data": {metric: step[name] for metric, name in VERL.items()}}) + "\n"


def nemo_rl_console(number, step):
    both = step["compute_log_prob"] + step["compute_ref_log_prob"]
    return f"""========================= Step {number}/100 =========================
  • Mean Generation Length: {step["mean"]:.4f}
  • Total step time: {step["step"]:.2f}s
  • generation: {step["generate_sequences"]:.2f}s (50.0%)
  • policy_training: {step["update_actor"]:.2f}s (25.0%)
  • policy_and_reference_logprobs: {both:.2f}s (12.5%)
  • prepare_for_generation/total: {step["transition"]:.2f}s (5.0%)
"""


def slime_console(number, step):
    named = {
        "perf/rollout_time": "generate_sequences",
        "perf/log_probs_time": "compute_log_prob",
        "perf/ref_log_probs_time": "compute_ref_log_prob",
        "perf/actor_train_time": "update_actor",
        "perf/update_weights_time": "transition",
        "perf/step_time": "step",
        "rollout/response_len/mean": "mean",
        "rollout/truncated_ratio": "clipped",
    }
    return f"[2026-01-01] INFO perf {number}: { {metric: step[name] for metric, name in named.items()} }\n"


FORMATS = [*[("train.log", verl_console)] * 7]
FORMATS += [("metrics.jsonl", verl_json_lines), ("nemo.log", nemo_rl_console), ("slime.log", slime_console)]


@pytest.fixture(scope="module")
def ran():
    return import_verl(read_verl_config(SCRIPT), Given("h100-80gb-sxm", None, 300, 101.5))


def steps_of(ran, facts, log_factors, unnamed_s, rng):
    """Seconds and lengths of steps on a machine with these constants; each call's price is off by a little beside."""
    machine = calibrated(facts, calibration_of(Belief(log_factors, np.eye(len(FACTORS))), {}))
    spans = []
    for mean in KNOTS:
        tail = float(mean * np.exp(2.326 * SIGMA - SIGMA**2 / 2))
        response = LengthDistribution("lognormal", float(mean), facts.workload.response.maximum, tail)
        at = replace(machine, workload=replace(machine.workload, response=response))
        spans.append(
            {span.call: span.duration_s for span in simulate(ran.plan, at).spans if span.call in VERL.values()}
        )
    off = {call: np.exp(rng.normal(0.0, MODEL_ERROR)) for call in spans[0]}
    for wanted in np.linspace(200, 450, STEPS):  # lengths grow as models learn
        drawn = rng.lognormal(np.log(wanted) - SIGMA**2 / 2, SIGMA, facts.workload.num_samples)
        lengths = np.minimum(drawn, facts.workload.response.maximum)
        mean, clipped = float(lengths.mean()), float((lengths < drawn).mean())
        step = {
            call: float(np.exp(np.interp(mean, KNOTS, np.log([s[call] for s in spans])) + rng.normal(0.0, NOISE)))
            * float(off[call])
            for call in spans[0]
        }
        whole = sum(step.values()) + unnamed_s * float(np.exp(rng.normal(0.0, NOISE)))
        yield {**step, "step": whole, "mean": mean, "clipped": clipped}


@pytest.mark.thorough
def test_hidden_constants_of_ten_logs_are_inside_their_intervals_nine_times_in_ten(tmp_path, ran):
    facts, off = ran.job.facts(), []
    for seed, (name, line) in enumerate(FORMATS):
        rng = np.random.default_rng(seed)
        hidden = rng.normal(0.0, [WIDTHS[factor] for factor in FACTORS])
        unnamed_s = rng.uniform(0.5, 4.0)
        steps = steps_of(ran, facts, hidden, unnamed_s, rng)
        (tmp_path / name).write_text("".join(line(number, step) for number, step in enumerate(steps, 1)))
        log = read_log(tmp_path / name)
        assert (len(log.steps), log.damaged) == (STEPS, 0)
        learned = learn(log, ran.plan, facts)
        told = np.asarray([factor in learned.belief.learned for factor in FACTORS])
        deviations = np.asarray(list(learned.belief.deviations.values()))
        off += ((learned.belief.log_factors - hidden) / deviations)[told].tolist()
        seconds, left = learned.file.seconds_per_sample, learned.file.seconds_deviations
        samples = facts.workload.num_samples
        off.append((seconds["compute_advantage"] * samples - unnamed_s) / (left["compute_advantage"] * samples))
    assert len(off) >= 5 * len(FORMATS)  # most constants are told
    assert np.mean(np.abs(off) <= NINETY) >= 0.9
    assert np.std(off) > 0.5  # and intervals are not so wide that anything is inside
