"""Protects the comparison of two runs: longer responses are no slower run, and chance is called chance."""

import random

import pytest

from hybridmap.calibration.two_runs import differences
from hybridmap.runlogs.records import ALL_SCORES, BOTH_UPDATES, STEP, Lengths, LoggedStep, RunLog


def run(seed, generation=1.0, length=200.0, lengths=True):
    draw = random.Random(seed)
    steps = []
    for i in range(30):
        tokens = length * draw.gauss(1.0, 0.03)
        seconds = {"generate_sequences": 0.1 * generation * tokens, "update_actor": 0.2 * (tokens + 100)}
        noisy = {name: s * draw.gauss(1.0, 0.02) for name, s in seconds.items()}
        said = Lengths(response_mean=tokens, prompt_mean=100.0) if lengths else Lengths()
        steps.append(LoggedStep(i, noisy | {STEP: sum(noisy.values()) + 1.0}, said))
    return RunLog("verl", "x", tuple(steps))


def by_stage(first, second):
    return {one.stage: one for one in differences(first, second)[0]}


def test_two_runs_of_one_kind_do_not_differ():
    assert not any(one.is_sure for one in by_stage(run(0), run(1)).values())


def test_a_slower_stage_is_found():
    found = by_stage(run(0), run(1, generation=1.3))
    assert found["generate_sequences"].ratio == pytest.approx(1.3, rel=0.03)
    assert [stage for stage, one in found.items() if one.is_sure] == ["generate_sequences"]
    assert next(iter(found)) == STEP


def test_longer_responses_are_no_slower_run():
    longer, per_token = differences(run(0), run(1, length=300.0))
    assert per_token
    assert not any(one.is_sure for one in longer)
    plain, per_token = differences(run(0, lengths=False), run(1, length=300.0, lengths=False))
    assert not per_token
    assert all(one.is_sure for one in plain)


def test_calls_that_one_system_times_together_are_added_up_in_the_other():
    """OpenRLHF beside verl: what makes an experience is one time there."""
    apart = {"compute_log_prob": 9.0, "compute_ref_log_prob": 10.0, "update_actor": 30.0, STEP: 60.0}
    together = {ALL_SCORES: 38.0, BOTH_UPDATES: 30.0, STEP: 80.0}
    logs = (RunLog("x", "x", tuple(LoggedStep(i, seconds) for i in range(1, 9))) for seconds in (apart, together))
    found = {one.stage: one for one in differences(*logs)[0]}
    assert set(found) == {STEP, ALL_SCORES, BOTH_UPDATES}
    assert (found[ALL_SCORES].first_s, found[ALL_SCORES].ratio) == (19.0, 2.0)
    assert found[BOTH_UPDATES].ratio == 1.0
