"""Protects ``hybridmap run``: what it writes and says, what it refuses and with which next step, and Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hybridmap.commands import run as command
from hybridmap.files.plan import read_plan
from hybridmap.job.load import load_job
from simulator.plan.timeline import Timeline
from tests.work import HANGS_S, wait_until

EXAMPLES = Path(__file__).parents[3] / "examples" / "run"
ROOT = Path(__file__).parents[3]
needs_torch = pytest.mark.skipif(
    bool([name for name in command.NEEDED if not command.importlib.util.find_spec(name)]), reason="needs the run extra"
)
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def run_job(tmp_path):
    """Write a copy of a shipped example with changes to its run section (``...`` takes a key out); its path."""

    def write(name="ppo-tiny", **changes):
        document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
        document["models"] = dict.fromkeys(document["models"], str(EXAMPLES / "tiny-config.json"))
        section = document["run"] | {"weights": {"actor": str(EXAMPLES / "tiny-config.json")}, "launcher": "local"}
        section["plan"] = str(EXAMPLES / section["plan"])
        document["run"] = {k: v for k, v in (section | changes).items() if v is not ...}
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    return write


def changed_plan(tmp_path, name="ppo-tiny", **layout):
    """A shipped plan with every layout changed and every pool as large as that needs; its path."""
    plan = json.loads((EXAMPLES / f"{name}-plan.json").read_text())
    size = layout.get("dp", 1) * layout.get("tp", 1)
    for i, pool in enumerate(plan["pools"]):
        pool |= {"num_gpus": size, "first_gpu": i * size}
    for role in plan["roles"]:
        for kind in ("training", "inference", "generation"):
            role[kind] = role[kind] and role[kind] | layout
    path = tmp_path / "large.json"
    path.write_text(json.dumps(plan))
    return path


@needs_torch
@quiet
def test_a_run_writes_metrics_and_timelines(run, run_job, tmp_path):
    result = run("run", run_job(), "--iterations", 3, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 1, 2]
    timeline = Timeline.model_validate_json((tmp_path / "out" / "timeline.json").read_text())
    assert timeline.source == "measured"
    assert lines[-1]["seconds/training"] == pytest.approx(timeline.stages["training"])
    assert Timeline.model_validate_json((tmp_path / "out" / "timeline-ranks.json").read_text()).num_gpus == 2
    assert "3/3  reward" in result.stdout
    assert "training" in result.stdout


@needs_torch
@quiet
def test_json_is_one_document(run, run_job, tmp_path):
    result = run("run", run_job(), "--iterations", 2, "--out", tmp_path / "out", "--json")
    answer = json.loads(result.stdout)
    assert answer["iterations"] == 2
    assert answer["num_devices"] == 2
    assert answer["conversion_bucket_bytes"] == 0  # one engine trains and generates
    assert all(Path(path).is_file() for path in answer["written"])


@needs_torch
@quiet
def test_a_run_goes_on_by_itself_and_not_beside_itself(run, run_job, tmp_path):
    job, out = run_job(checkpoint={"every": 1, "dir": "saved"}), ("--out", tmp_path / "out")
    assert run("run", job, *out, "--iterations", 2).exit_code == 0
    again = run("run", job, *out, "--iterations", 3)
    assert again.exit_code == 2
    assert "has checkpoints up to iteration 2, this run begins at 0: --resume continues" in again.stderr
    assert run("run", job, *out, "--iterations", 3, "--resume").exit_code == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 1, 2]
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["iteration-00000002", "iteration-00000003"]
    branch = run("run", job, "--out", tmp_path / "branch", "--resume-from", tmp_path / "saved" / "iteration-00000002")
    assert branch.exit_code == 2
    assert "has checkpoints up to iteration 3, this run begins at 2" in branch.stderr
    both = run("run", job, "--resume", "--resume-from", tmp_path)
    assert both.exit_code == 2
    assert "give one of them" in both.stderr


@needs_torch
@pytest.mark.parametrize(
    ("drafts", "reason"),
    [
        ({}, "drafts cannot run yet on torch-native; vllm drafts (run.engines.generation), or run a plan of 0"),
        ({"draft_tokens": 1}, "the plan drafts 2 tokens a step, and speculation.acceptance says what is kept of 1"),
    ],
)
def test_drafts_that_cannot_run_are_refused_with_what_can(drafts, reason, run, run_job, tmp_path):
    job, config = run_job(), tmp_path / "config.json"
    config.write_text(json.dumps(json.loads((EXAMPLES / "tiny-config.json").read_text()) | {"vocab_size": 151936}))
    known = {"draft": "qwen2.5-0.5b", "draft_tokens": 2, "acceptance": 0.5} | drafts
    document = yaml.safe_load(job.read_text()) | {"speculation": known}
    document["models"] = dict.fromkeys(document["models"], str(config))
    job.write_text(yaml.safe_dump(document))
    plan = json.loads((EXAMPLES / "ppo-tiny-plan.json").read_text()) | {"draft_tokens": 2}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    result = run("run", job, "--plan", tmp_path / "plan.json", "--out", tmp_path / "out")
    assert result.exit_code == 2 and not list((tmp_path / "out").glob("*"))
    assert reason in " ".join(result.stderr.split())


@needs_torch
@quiet
def test_a_damaged_checkpoint_is_skipped_with_a_warning(run, run_job, tmp_path):
    """And where none is whole, one message says so."""
    job, out = run_job(checkpoint={"every": 1, "dir": "saved"}), ("--out", tmp_path / "out")
    assert run("run", job, *out, "--iterations", 2).exit_code == 0
    shard = next((tmp_path / "saved" / "iteration-00000002" / "actor").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    again = run("run", job, *out, "--iterations", 3, "--resume")
    assert again.exit_code == 0, again.output
    assert f"warning: {shard} is damaged: SHA-256" in again.stderr
    assert "resuming from" in again.stderr and "iteration-00000001" in again.stderr
    for manifest in (tmp_path / "saved").glob("*/manifest.json"):
        manifest.write_text("{")
    last = run("run", job, *out, "--iterations", 4, "--resume")
    assert last.exit_code == 2
    assert last.stderr.startswith(f"Error: {tmp_path / 'saved'} has no complete checkpoint ({tmp_path}")
    assert last.stderr.count("\n") == 1


@needs_torch
@quiet
def test_the_plan_that_the_mapper_found_runs(run, run_job, tmp_path):
    """From the same file: plan, then run what was planned."""
    job = run_job("remax-tiny", plan=...)
    assert run("plan", job, "--out", tmp_path / "planned", "--placement", "colocate").exit_code == 0
    options = ("--iterations", 1, "--out", tmp_path / "out", "--scale-down")
    result = run("run", job, "--plan", tmp_path / "planned" / "plan.json", *options)
    assert result.exit_code == 0, result.output
    assert "scaled down from" in result.stderr


@needs_torch
def test_too_few_devices_are_said_before_anything_starts_and_scale_down_runs(run, run_job, tmp_path, monkeypatch):
    monkeypatch.setattr("executor.run.choose_launcher", lambda *_: pytest.fail("something was started"))
    pytest.importorskip("ray")
    large = changed_plan(tmp_path, dp=4)
    job = run_job(launcher="ray", cpu_ranks=4)
    result = run("run", job, "--plan", large, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "the plan asks for 8 devices, there are 4; --scale-down" in result.stderr
    assert not (tmp_path / "out").exists()


@needs_torch
@quiet
def test_scale_down_keeps_the_placement(run, run_job, tmp_path):
    large = changed_plan(tmp_path, dp=4)
    result = run("run", run_job(), "--plan", large, "--iterations", 1, "--out", tmp_path / "out", "--scale-down")
    assert result.exit_code == 0, result.output
    assert "scaled down from 8 devices to 2 (A 1, B 1)" in result.stderr


@needs_torch
@quiet
def test_a_worker_that_cannot_load_its_model_ends_the_run_with_the_reason(run, run_job, tmp_path):
    result = run("run", run_job(weights={"actor": "nowhere"}), "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "actor.init_model, rank 0 of pool A" in result.stderr
    assert "nowhere" in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_without_torch_the_extra_is_named(run, run_job, tmp_path, monkeypatch):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    result = run("run", run_job(), "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "running a plan needs torch, tensordict, safetensors: pip install 'hybridmap[run]'" in result.stderr


def test_without_a_plan_the_way_to_one_is_said(run, run_job):
    result = run("run", run_job(plan=...))
    assert result.exit_code == 2
    assert "names no plan: 'hybridmap plan" in result.stderr
    assert "--plan hybridmap-out/plan.json" in result.stderr


def test_a_job_without_a_run_section_is_refused(run, write_job, small_job):
    result = run("run", write_job(small_job))
    assert result.exit_code == 2
    assert "has no run: section" in result.stderr


def test_a_plan_of_another_algorithm_is_refused(run, run_job):
    result = run("run", run_job(), "--plan", EXAMPLES / "grpo-tiny-plan.json")
    assert result.exit_code == 2
    assert "grpo-tiny-plan.json places actor of grpo" in result.stderr


@needs_torch
@pytest.mark.skipif(command.importlib.util.find_spec("megatron") is None, reason="needs megatron-core")
def test_adapters_on_a_trainer_without_them_are_refused_with_the_trainers_that_have_them(run, run_job, tmp_path):
    path = run_job(engines={"training": "megatron-core"})
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"implementation": {"lora_rank": 8}}))
    result = run("run", path, "--out", tmp_path / "out")
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert (
        "actor: adapters (implementation.lora_rank) cannot run yet on megatron-core; name torch-native or fsdp2" in said
    )
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "not JSON at line 1"), ('{"pools": []}', "algorithm: is missing"), ("[1]", "not a plan file")],
)
def test_a_broken_plan_file_is_named(run, run_job, tmp_path, text, said):
    (tmp_path / "broken.json").write_text(text)
    result = run("run", run_job(), "--plan", tmp_path / "broken.json")
    assert result.exit_code == 2
    assert "broken.json" in result.stderr
    assert said in result.stderr


def test_mistakes_in_the_run_section_are_named(run, run_job):
    result = run("run", run_job(dtype="fp8", iteration=3))
    assert result.exit_code == 2
    assert "run.yaml: run: " in result.stderr
    assert "dtype" in result.stderr
    assert "iteration: Extra inputs are not permitted" in result.stderr


def test_planning_reads_past_the_run_section(run, tmp_path):
    job = EXAMPLES / "remax-tiny.yaml"
    assert "run" not in load_job(job).document
    result = run("simulate", job, "--placement", "colocate", "--json")
    assert result.exit_code == 0, result.output


def test_both_kinds_of_plan_file_load(planned):
    found, embedded = read_plan(planned.plan)
    assert found.algorithm == "ppo"
    assert embedded is not None
    bare, none = read_plan(EXAMPLES / "ppo-tiny-plan.json")
    assert (bare.algorithm, none) == ("ppo", None)


@needs_torch
@pytest.mark.slow
def test_ctrl_c_ends_with_130_and_whole_files(run_job, tmp_path):
    arguments = [str(run_job(iterations=100_000)), "--out", str(tmp_path / "out")]
    child = subprocess.Popen(
        [sys.executable, "-m", "hybridmap", "run", *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # however these tests were started
    )
    metrics = tmp_path / "out" / "metrics.jsonl"
    try:
        wait_until(lambda: metrics.exists() or child.poll() is not None, "its first iteration")
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=HANGS_S)
    finally:
        child.kill()
    assert child.returncode == 130
    assert "stopped after" in said
    assert "Traceback" not in said
    assert not (tmp_path / "out" / "timeline.json").exists()
    lines = [json.loads(line)["iteration"] for line in metrics.read_text().splitlines()]
    assert lines == list(range(len(lines)))


@needs_torch
@quiet
def test_a_run_goes_on_after_a_failure_and_tells_of_it(run, run_job, tmp_path):
    fault = {"kind": "nan", "role": "critic", "api": "compute_values", "call": 1}
    survives = {"on_failure": "replan", "checkpoint": {"every": 1}}
    result = run("run", run_job(faults=[fault], **survives), "--iterations", 3, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    told = " ".join(result.stderr.split())
    assert "critic.compute_values failed on rank 0 of pool B: NotANumberError: values is NaN in" in told
    assert "the run resumes with iteration 2 on 2 devices" in told
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 1, 2]
    assert "the last of 3" in " ".join(result.stdout.split())


@needs_torch
@quiet
def test_without_a_way_to_go_on_a_failure_ends_a_run(run, run_job, tmp_path):
    fault = {"kind": "error", "role": "actor", "api": "update_actor"}
    assert run("run", run_job(faults=[fault]), "--iterations", 2, "--out", tmp_path / "out").exit_code == 1
    result = run("run", run_job(on_failure="restart"), "--out", tmp_path / "refused")
    assert result.exit_code == 2
    assert "resumes from checkpoints: add checkpoint" in " ".join(result.stderr.split())


@needs_torch
@pytest.mark.slow
def test_a_run_whose_lines_nobody_reads_any_more_stops_without_a_word(run_job, tmp_path):
    """As Ctrl-C it ends in the middle, so its status is not 0; a shell says 141 of programs that a broken pipe ends."""
    command = [sys.executable, "-m", "hybridmap", "run", str(run_job()), "--iterations", "2", "--out", tmp_path / "out"]
    reader, writer = os.pipe()
    os.close(reader)
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141
    assert (tmp_path / "out" / "metrics.jsonl").read_text()
    assert not (tmp_path / "out" / "timeline.json").exists()
