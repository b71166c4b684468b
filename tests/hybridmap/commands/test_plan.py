"""Protects what ``hybridmap plan`` says: to people, to programs, and to a pipe."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_json_is_one_document_with_the_promised_keys(planned):
    promised = {"status", "iteration_s", "bound_s", "gap", "seconds", "tokens_per_s", "num_gpus", "plan", "runners_up"}
    assert promised | {"stages", "memory", "basis", "seed", "interval_s"} <= set(planned.answer)
    assert planned.answer["status"] == "optimal"
    assert 0 <= planned.answer["bound_s"] <= planned.answer["iteration_s"]
    assert planned.answer["gap"] <= 1e-4
    interval = planned.answer["interval_s"]
    assert interval["low"] < planned.answer["iteration_s"] < interval["high"] and interval["coverage"] == 0.9
    assert planned.answer["written"] == [str(planned.out / "plan.json"), str(planned.out / "timeline.json")]


def test_a_person_reads_who_is_where_and_how_good_it_is(planned, run, tmp_path):
    result = run("plan", planned.job, "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].startswith("about ") and " s an iteration (" in lines[0] and "90 % interval" in lines[0]
    assert "priced configurations under this model, proven" in " ".join(lines[1:3])
    assert "PPO, 4 x llama-3.2-1b, 64 prompts of 256 + 256 tokens, on 8 x h100-80gb-sxm (1 node)" in lines
    assert next(line for line in lines if line.startswith("pool ")).split() == [
        "pool",
        "role",
        "training",
        "generation",
        "scoring",
    ]
    for phrase in (
        ", KV ",
        "peak in ",
        "tokens/s",
        "notation    actor trains ",
        "in 9 of 10 runs",
        "provenance  ",
        "proof       optimal: no plan beats ",
        "gap 0.00 %",
        "runner-up",
    ):
        assert phrase in result.stdout
    assert f"wrote       {tmp_path / 'out' / 'plan.json'}" in result.stdout
    assert "\x1b" not in result.stdout


def test_only_stages_that_take_time_are_named(planned, run, tmp_path):
    result = run("plan", planned.job, "--out", tmp_path / "out")
    line = next(line for line in result.stdout.splitlines() if line.startswith("stages      "))[12:]
    named = {part.rsplit(" ", 2)[0].replace(" ", "_") for part in line.split(" | ")}
    assert named == {name for name, seconds in planned.answer["stages"].items() if round(seconds, 1) > 0}


@pytest.mark.parametrize("placement", ["colocate", "split", "standalone"])
def test_one_placement_alone(planned, run, tmp_path, placement):
    result = run("plan", planned.job, "--out", tmp_path / "out", "--placement", placement, "--json")
    answer = json.loads(result.stdout)
    assert len(answer["plan"]["pools"]) == {"colocate": 1, "split": 2, "standalone": 4}[placement]
    assert answer["iteration_s"] >= planned.answer["bound_s"]
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["searched"]["placement"] == placement


def test_even_halves(planned, run, tmp_path):
    result = run("plan", planned.job, "--out", tmp_path / "out", "--placement", "split", "--even", "--json")
    first, second = json.loads(result.stdout)["plan"]["pools"]
    assert first["num_gpus"] == second["num_gpus"]


def test_many_samples_are_worked_off_a_few_at_a_time(write_job, small_job, run, tmp_path):
    small_job |= {"algorithm": "grpo", "models": {"actor": "llama-2-7b"}}
    small_job["workload"] |= {"prompts": 2048, "samples_per_prompt": 32, "response_length": 3072}
    result = run("plan", write_job(small_job), "--out", tmp_path / "out", "--json")
    assert json.loads(result.stdout)["status"] == "optimal"  # a KV cache for 1,024 sequences would not fit


def test_notes_say_what_was_probably_not_meant(write_job, small_job, run, tmp_path):
    small_job["models"] = dict.fromkeys(small_job["models"], "tinyllama-1.1b")
    small_job["workload"] |= {"response_length": 2048, "reward_s_per_sample": 1}
    result = run("plan", write_job(small_job), "--out", tmp_path / "out", "--placement", "colocate")
    notes = [line for line in result.stdout.splitlines() if line.startswith("note: ")]
    assert len(notes) == 2
    assert "reach 2,304 tokens, tinyllama-1.1b was published for 2,048" in notes[0]
    assert "reward_s_per_sample = 1 is not used" in notes[1]


def test_the_real_command_in_a_pipe(planned, tmp_path):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-m", "hybridmap", "plan", str(planned.job), "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert json.loads(done.stdout)["iteration_s"] == planned.answer["iteration_s"]
    assert (tmp_path / "hybridmap-out" / "plan.json").read_bytes() == planned.plan.read_bytes()


def test_the_real_command_fails_in_one_line(tmp_path):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "hybridmap", "plan", "nowhere.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "Error: nowhere.yaml: cannot be read (No such file or directory)\n"
    assert list(tmp_path.iterdir()) == []


def test_the_listed_values_and_the_plain_plan_stand_beside_the_proof(planned, run, tmp_path):
    shown = run("plan", planned.job, "--out", tmp_path / "out").stdout
    assert "mb 1 2 4 8 16 32" in " ".join(shown.split()) and "\nplain       " in shown
    assert planned.answer["listed"]["mb"] == "1 2 4 8 16 32"
    assert planned.answer["plain"]["iteration_s"] >= planned.answer["bound_s"]
    assert "top" not in planned.answer


def test_the_best_plans_are_a_table_that_holds_at_80_columns(planned, run, tmp_path):
    answer = json.loads(run("plan", planned.job, "--out", tmp_path / "out", "--top", "4", "--json").stdout)
    assert len(answer["top"]) == 3
    for other in answer["top"]:
        assert other["differs"] and other["memory_bytes"] > 0 <= other["free_bytes"]
        assert other["iteration_s"] == pytest.approx((1 + other["slower"]) * answer["iteration_s"])
    lines = run("plan", planned.job, "--out", tmp_path / "out", "--top", "4", columns=80).stdout.splitlines()
    begin = next(i for i, line in enumerate(lines) if "what differs" in line)
    end = next(i for i, line in enumerate(lines) if line.startswith("(memory in use"))
    assert all(len(line) <= 80 for line in lines[begin:end])
    numbered = [line.split()[0] for line in lines[begin + 2 : end] if line[:4].strip().isdigit()]
    assert numbered == ["1", "2", "3", "4"]
