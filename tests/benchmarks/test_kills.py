"""Protects the benchmark of kills: its checks see what is lost or repeated, its kills cover every rank and call, and a
short version of it survives.
"""

import json
import random

import pytest

from benchmarks.disturbed import (
    NARROW,
    TOLERANCE,
    WIDE,
    job_of,
    largest_difference,
    num_steps_wrong,
    plan_of,
    random_kill,
)
from benchmarks.kills import main, summary_of
from executor.worker.inject_faults import LOADING
from simulator.plan.dataflow import build_dataflow

LINES = [
    {"iteration": i, "actor/optimizer_steps": 2.0 * (i + 1), "actor/loss": 0.1 * i, "iteration_s": 1.0}
    for i in range(4)
]


def test_a_lost_a_repeated_and_an_extra_step_are_seen():
    assert num_steps_wrong(LINES, ["actor"], 2) == 0
    lost = [line | {"actor/optimizer_steps": line["actor/optimizer_steps"] - 1} for line in LINES[2:]]
    assert num_steps_wrong([*LINES[:2], *lost], ["actor"], 2) == 2
    assert num_steps_wrong([LINES[0], *LINES[2:]], ["actor"], 2) == 2  # a line is missing
    assert num_steps_wrong([LINES[0], *LINES], ["actor"], 2) == 4  # one is there twice


def test_curves_are_compared_value_by_value_without_clocks():
    other = [dict(line) for line in LINES]
    other[3]["iteration_s"] = 9.0
    assert largest_difference(other, LINES) == 0.0
    other[2]["actor/loss"] *= 1.001
    assert largest_difference(other, LINES) == pytest.approx(1e-3, rel=1e-2)
    with pytest.raises(ValueError, match="zip"):
        largest_difference(other[:3], LINES)


def row(**changes):
    found = {"kills": 2, "recoveries": 2, "wrong_steps": 0, "lost_iterations": 1, "largest_difference": 0.0}
    return found | {"down_s": [3.0, 5.0]} | changes


def test_the_verdict_needs_every_kill_survived_and_nothing_lost():
    assert summary_of([row(), row()])["all_survived"]
    assert summary_of([row()])["down_s"] == {"least": 3.0, "p50": 4.0, "p90": 4.8, "p95": 4.9, "most": 5.0}
    for wrong in ({"recoveries": 1}, {"wrong_steps": 1}, {"largest_difference": 1e-3}):
        assert not summary_of([row(), row(**wrong)])["all_survived"]


def test_kills_hit_every_rank_of_every_pool_and_every_kind_of_call():
    plan, draw = plan_of("ppo", WIDE["ppo split"]), random.Random(1)
    flow = build_dataflow("ppo", tuple(entry.role for entry in plan.roles))
    durations_s = {(call.role, call.api): 0.1 for call in flow.calls}
    kills = [random_kill(plan, durations_s, attempt, range(2), draw) for attempt in range(300)]
    assert {fault.attempt for fault in kills} == set(range(300))
    assert {(fault.role, fault.rank) for fault in kills} >= {
        ("actor", 0),
        ("actor", 1),
        ("reference", 0),
        ("reference", 1),
        ("critic", 0),
        ("controller", 0),
    }
    assert {fault.api for fault in kills} >= {"transition", "generate_sequences", "update_actor", LOADING, "begin_save"}
    assert all(fault.rank < 2 and fault.kind == "kill" for fault in kills)


@pytest.mark.parametrize("cases", [NARROW, WIDE], ids=["narrow", "wide"])
def test_plans_of_all_algorithms_place_what_their_dataflow_has(cases):
    assert {name.split()[0] for name in cases} == {"ppo", "remax", "grpo", "safe-rlhf"}
    assert {name.split()[1] for name in cases} == {"colocate", "split"}
    for name, sets in cases.items():
        plan = plan_of(name.split()[0], sets)
        roles = tuple(entry.role for entry in plan.roles)
        assert set(build_dataflow(plan.algorithm, roles).roles) == set(roles)
        assert job_of(plan.algorithm).workload.num_samples == 8


def test_kills_of_later_calls_are_none_of_loading():
    """That is a start's first call: it restores what has learned nothing."""
    plan, draw = plan_of("ppo", NARROW["ppo colocate"]), random.Random(1)
    found = [random_kill(plan, {("actor", "update_actor"): 0.1}, 0, range(2, 3), draw) for _ in range(50)]
    assert {fault.api for fault in found} == {"update_actor", "begin_save"}
    assert {fault.call for fault in found} == {2}


def load_nothing(models, controller, checkpoint):
    """What a broken loader does: weights and moments stay those that the run began with; all else goes on."""
    controller.count_on_from(checkpoint.manifest.next_call)
    models.groups["actor"].resume(
        checkpoint.manifest.iteration, checkpoint.manifest.iteration, checkpoint.manifest.iteration, {}
    )


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_loader_that_restores_nothing_fails_every_case(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("executor.recovery.load.load", load_nothing)
    assert main(["--quick", "--out", str(tmp_path / "found.json")]) == 1
    for case in json.loads((tmp_path / "found.json").read_text())["cases"]:
        assert case["recoveries"] == 1
        assert case["lost_iterations"] < 2  # a checkpoint was there
        assert case["wrong_steps"]
        assert case["largest_difference"] > TOLERANCE


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_four_random_kills_are_survived(capsys):
    assert main(["--quick"]) == 0
    assert "4 of 4 kills survived, 0 optimizer steps lost or repeated" in capsys.readouterr().out
