"""Protects ``hybridmap watch``: a run beside its plan, what explains a difference, and when another plan pays."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hybridmap.calibration.deviation import Switch

LOGS = Path(__file__).parents[3] / "examples" / "logs"
LOG, SCRIPT = LOGS / "verl-qwen2-7b-8xh100.jsonl", LOGS / "verl-qwen2-7b-8xh100.sh"
WORDS = ("--script", SCRIPT, "--device", "h100-80gb-sxm", "--once")


def test_stages_are_set_beside_their_plan(run):
    done = run("watch", LOG, *WORDS)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("step 132: 86.0 s an iteration, planned ")
    assert "responses 226 tokens, -12 % over the run; planned 227" in done.stdout
    assert "a restart of 600 s pays after" in done.stdout
    assert "s in 9 of 10 runs), this plan 86.0 s" in " ".join(done.stdout.split())


def test_at_the_slow_end_of_what_is_predicted_a_restart_pays_later_or_never():
    better = Switch(None, now_s=100.0, then_s=80.0, between_s=(70.0, 95.0))
    assert (better.pays_after(600.0), better.pays_after(600.0, 95.0)) == (30.0, 120.0)
    assert math.isinf(replace(better, between_s=(70.0, 101.0)).pays_after(600.0, 101.0))


def test_the_answer_as_json_says_what_explains_a_difference(run, tmp_path):
    halved = tmp_path / "half.jsonl"
    lines = []
    for line in LOG.read_text().splitlines()[2:40]:
        record = json.loads(line)
        for name in ("timing_s/update_actor", "timing_s/old_log_prob", "timing_s/ref"):
            record["data"][name] *= 0.5
        lines.append(json.dumps(record))
    halved.write_text("\n".join(lines) + "\n")
    found = json.loads(run("watch", halved, *WORDS, "--json", "--restart", "0").stdout)
    update = next(stage for stage in found["stages"] if stage["calls"] == ["update_actor"])
    assert update["off"] < -0.3
    assert update["because_of"] == "prices"
    low_s, high_s = found["better"]["interval_s"]
    assert (
        low_s < found["better"]["iteration_s"] <= found["better"]["this_plan_s"]
        and found["better"]["iteration_s"] < high_s
    )
    reference = next(role for role in found["better"]["plan"]["roles"] if role["role"] == "reference")
    assert reference["offload"] == ["parameters"]  # as verl's FSDP has it, whose script this is


def test_a_few_steps_are_said_to_be_few(run, tmp_path):
    begins, few = tmp_path / "begins.jsonl", "steps: look again after 10"
    begins.write_text("".join(LOG.read_text().splitlines(keepends=True)[:6]))
    assert few in run("watch", begins, *WORDS).stdout
    assert few not in run("watch", LOG, *WORDS).stdout


def test_a_run_as_planned_needs_no_reason(run):
    found = json.loads(run("watch", LOG, *WORDS, "--json").stdout)
    assert found["restart_s"] == 600  # nobody is there to be asked
    assert found["headroom_gib"] > 20
    for stage in found["stages"]:
        assert (stage["because_of"] is None) == (abs(stage["off"]) < 0.1)


@pytest.mark.parametrize("words", [("--plan", "none.json", "--once"), ("--once",)])
def test_what_is_missing_is_said(run, words):
    assert run("watch", LOG, *words).exit_code == 2


def test_a_run_without_a_step_yet_is_waited_for(run, tmp_path, monkeypatch):
    begins, lines = tmp_path / "begins.jsonl", LOG.read_text().splitlines(keepends=True)
    begins.write_text("")

    def nap(_):
        if begins.stat().st_size:
            raise KeyboardInterrupt
        begins.write_text("".join(lines[:3]))

    monkeypatch.setattr("hybridmap.commands.watch.time", SimpleNamespace(sleep=nap))
    done = run("watch", begins, *WORDS[:-1], "--restart", "0")
    said = " ".join(done.stdout.split())
    assert "no times of a run's stages" in said and "looking again every 30 s step 3: " in said
    assert run("watch", begins.with_name("none.jsonl"), *WORDS[:-1]).exit_code == 2
