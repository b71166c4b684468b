"""Protects ``hybridmap calibrate``: a log and what ran become a layer that the job beside it is priced with."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from hybridmap.exports.systems import export_plan
from hybridmap.files.plan import write_records
from tests.hybridmap.conftest import invoke
from tests.hybridmap.exports.plans import JOBS, plan_file

LOGS = Path(__file__).parents[3] / "examples" / "logs"
TINY = LOGS.parent / "run" / "tiny-config.json"
LOG, SCRIPT = LOGS / "verl-qwen2-7b-8xh100.jsonl", LOGS / "verl-qwen2-7b-8xh100.sh"


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learned")
    words = ("calibrate", LOG, "--script", SCRIPT, "--device", "h100-80gb-sxm", "--out", folder, "--steps", "1:40")
    done = invoke(*words)
    assert done.exit_code == 0, done.stderr
    return folder, done.stdout


@pytest.fixture
def learned(once, tmp_path):
    """What was printed; the files are in a folder of the test's own."""
    shutil.copytree(once[0], tmp_path, dirs_exist_ok=True)
    return once[1]


def test_stages_lengths_and_what_is_left_out_are_shown(learned, tmp_path):
    answer, what, *_ = learned.splitlines()
    found = re.fullmatch(
        r"stages are priced (\S+) % off on steps that nothing was learned from \((\S+) % before\)", answer
    )
    assert found is not None, answer
    assert float(found[1]) < 2 < 10 < float(found[2])
    assert what == "verl: 39 of 40 steps (left out: warm-up 1), 8 x h100-80gb-sxm"
    assert "responses mean 249 tokens, p99 1,251 if none were cut, 1.9 % at the limit" in learned  # that is 1,024
    assert re.search(r"between calls 1\.11 s \(1\.\d\d to 1\.\d\d\) an iteration", learned)
    assert all(len(line) <= 80 for line in learned.splitlines() if "│" in line or "──" in line)
    assert {path.name for path in tmp_path.iterdir()} == {"calibration.yaml", "job.yaml"}


def test_a_job_beside_a_layer_is_priced_with_it_and_says_so(learned, run, tmp_path):
    job = tmp_path / "job.yaml"
    beside = run("plan", job, "--out", tmp_path / "a")
    assert "note: prices are calibrated by 39 steps of" in beside.stdout
    note = " ".join(beside.stdout.partition("note: prices")[2].split())
    assert "training, scoring" in note.partition(";")[0]
    assert "training host" in note.partition(";")[2].partition("as tables and engine files have them")[0]
    plan = json.loads((tmp_path / "a" / "plan.json").read_text())
    again = json.loads(run("simulate", tmp_path / "a" / "plan.json", "--json").stdout)
    assert again["iteration_s"] == plan["iteration_s"]  # the plan has the layer in it
    (tmp_path / "calibration.yaml").rename(tmp_path / "mine.yaml")
    without = json.loads(run("plan", job, "--out", tmp_path / "b", "--json").stdout)
    given = json.loads(
        run("plan", job, "--out", tmp_path / "c", "--json", "--calibration", tmp_path / "mine.yaml").stdout
    )
    assert without["iteration_s"] != plan["iteration_s"] == given["iteration_s"]
    again = run("simulate", tmp_path / "b" / "plan.json", "--json", "--calibration", tmp_path / "mine.yaml")
    assert again.exit_code == 2
    assert "this plan cannot run" in again.stdout  # the run's passes needed more memory than it was chosen for
    layer = yaml.safe_load((tmp_path / "mine.yaml").read_text())
    (tmp_path / "times.yaml").write_text(yaml.safe_dump(layer | {"peak": None, "digest": ""}))
    again = run("simulate", tmp_path / "b" / "plan.json", "--json", "--calibration", tmp_path / "times.yaml")
    assert json.loads(again.stdout)["iteration_s"] > without["iteration_s"]
    job.write_text(job.read_text() + "calibration: [mine.yaml]\n")
    named = json.loads(run("plan", job, "--out", tmp_path / "d", "--json").stdout)
    assert named["iteration_s"] == plan["iteration_s"]


def test_two_layers_say_what_they_say_together(learned, run, tmp_path):
    layer = yaml.safe_load((tmp_path / "calibration.yaml").read_text())
    layer["log_factors"] = [value + 1.0 for value in layer["log_factors"]]
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(layer | {"digest": ""}))
    job = tmp_path / "job.yaml"
    job.write_text(job.read_text() + "calibration: [calibration.yaml, other.yaml]\n")
    done = run("plan", job, "--out", tmp_path / "a")
    assert "they contradict each other in" in " ".join(done.stdout.split())


def test_the_answer_as_json(run, tmp_path):
    words = ("--script", SCRIPT, "--device", "h100-80gb-sxm", "--out", tmp_path, "--json")
    found = json.loads(run("calibrate", LOG, *words).stdout)
    assert found["steps"] == 130
    assert found["left_out"] == {"warm-up": [1, 2]}
    assert set(found["factors"]) == set(found["deviations"])
    assert found["lacks"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "say what was run, once: --plan plan.json, --job JOB.yaml, or --script run.sh --device GPU"),
        (("--script", SCRIPT, "--job", SCRIPT), "say what was run, once"),
        (("--script", SCRIPT), "--script needs --device"),
        (("--script", SCRIPT, "--device", "h100-80gb-sxm", "--steps", "500:600"), "the log has steps 1 to 132"),
        (("--script", SCRIPT, "--device", "h100-80gb-sxm", "--steps", "x"), "expected FROM:TO"),
    ],
)
def test_what_is_missing_is_said(run, tmp_path, words, message):
    done = run("calibrate", LOG, *words, "--out", tmp_path)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_device_without_tables_is_one_once_a_log_has_calibrated_it(run, tmp_path):
    """An H100's run, priced by an A100's tables at the H100's rates: the interval shrinks to what the log leaves."""
    numbers = ("--memory", "80GB", "--bandwidth", "3.35e12", "--flops", "989e12", "--links", "450e9")
    made = run("devices", "new", "mine", "--like", "A100", *numbers, "--out", tmp_path)
    assert made.exit_code == 0, made.stderr
    device = tmp_path / "mine"
    words = ("--script", SCRIPT, "--device", device, "--out", device, "--steps", "1:20")
    found = json.loads(run("calibrate", LOG, *words, "--json").stdout)
    for stage in found["stages"]:
        assert abs(stage["error_after"]) < 0.05, stage["calls"]
    assert max(abs(stage["error_before"]) for stage in found["stages"]) > 0.3
    planned = run("plan", device / "job.yaml", "--out", tmp_path / "a", "--json")
    plan = json.loads(planned.stdout)
    low, high = plan["interval_s"]["low"], plan["interval_s"]["high"]
    assert high / low < 1.5
    (device / "calibration.yaml").unlink()
    without = json.loads(run("plan", device / "job.yaml", "--out", tmp_path / "b", "--json").stdout)["interval_s"]
    assert without["high"] / without["low"] > 1.5 * high / low


def in_words_of(system, step, parts):
    """One step of 80 s as a system prints it."""
    generation_s, scores_s, training_s, weights_s = parts
    if system == "openrlhf":
        status = {
            "timing/make_experience": scores_s,
            "timing/ppo_train": training_s,
            "timing/broadcast": weights_s,
            "rollout/response_length_mean": 310.0,
            "timing/generation": generation_s,
            "timing/step_total": sum(parts),
        }
        return f"(PPOTrainer pid=7) ✨ Global step {step}: {status}\n"
    if system == "slime":
        times = {
            "perf/rollout_time": generation_s,
            "perf/log_probs_time": scores_s / 2,
            "perf/ref_log_probs_time": scores_s / 2,
            "perf/actor_train_time": training_s,
            "perf/update_weights_time": weights_s,
            "perf/step_time": sum(parts) + 2.0,
        }
        return f"perf {step}: {times}\n"
    lines = [f"===== Step {step}/9 =====", f"  • Total step time: {sum(parts) + 2.0}s"]
    names = ("generation", "policy_and_reference_logprobs", "policy_training", "prepare_for_generation/total")
    lines += [f"  • {name}: {seconds}s (9%)" for name, seconds in zip(names, parts, strict=True)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("system", ["openrlhf", "slime", "nemo-rl"])
def test_a_script_is_read_as_one_of_the_system_that_wrote_the_log(run, tmp_path, system):
    export = export_plan(plan_file("grpo"), "x", system)
    for name, text in export.files.items():
        (tmp_path / name).write_text(text)
    log = tmp_path / "train.log"
    log.write_text("".join(in_words_of(system, i, (4.0 + i / 50, 1.0, 3.0 + i / 90, 0.5)) for i in range(1, 9)))
    script = tmp_path / ("recipe.yaml" if system == "nemo-rl" else export.script)
    words = ("--script", script, "--device", "h100-80gb-sxm", "--env", "HF_CHECKPOINT=Qwen/Qwen2.5-1.5B")
    done = run("calibrate", log, *words, "--out", tmp_path, "--json")
    assert done.exit_code == 0, done.stdout
    found = json.loads(done.stdout)
    assert (found["system"], found["steps"]) == (system, 8)
    assert {call for stage in found["stages"] for call in stage["calls"]} >= {"generate_sequences", "update_actor"}
    assert max(abs(stage["error_after"]) for stage in found["stages"]) < 0.1
    assert max(abs(stage["error_before"]) for stage in found["stages"]) > 0.1
    assert any("sum of its stages" in text for text in found["lacks"]) is (system == "openrlhf")


def test_a_job_stands_for_what_is_planned_for_it_and_the_layer_lies_beside(run, tmp_path):
    file = plan_file("grpo")
    job = tmp_path / "mine" / "job.yaml"
    job.parent.mkdir()
    job.write_text(yaml.safe_dump(JOBS["grpo"][0]))
    log = tmp_path / "train.log"
    log.write_text("".join(in_words_of("slime", i, (4.0 + i / 50, 1.0, 3.0, 0.5)) for i in range(1, 9)))
    by_job = json.loads(run("calibrate", log, "--job", job, "--json").stdout)
    assert by_job["written"] == [str(job.parent / "calibration.yaml")]
    assert file.plan.placement in by_job["notes"][0] and "--plan" in by_job["notes"][0]
    write_records(tmp_path, {"plan.json": file})
    by_plan = json.loads(run("calibrate", log, "--plan", tmp_path / "plan.json", "--out", tmp_path, "--json").stdout)
    assert by_job["log_factors"] == pytest.approx(by_plan["log_factors"], abs=1e-9)


def test_what_if_and_import_are_priced_with_a_layer_too(learned, run, tmp_path):
    job = tmp_path / "job.yaml"
    asked = ("what-if", job, "--set", "workload.minibatches=4", "--out", tmp_path / "o", "--json")
    beside = json.loads(run(*asked).stdout)["base"]["iteration_s"]
    (tmp_path / "calibration.yaml").rename(tmp_path / "mine.yaml")
    layer = ("--calibration", tmp_path / "mine.yaml")
    assert json.loads(run(*asked, *layer).stdout)["base"]["iteration_s"] == beside
    words = ("import", SCRIPT, "--device", "h100-80gb-sxm", "--log", LOG, "--out", tmp_path / "i")
    assert "from what the calibration leaves open" in run(*words, *layer).stdout


def test_one_step_has_no_other_to_be_checked_on(run, tmp_path):
    words = ("--script", SCRIPT, "--device", "h100-80gb-sxm", "--steps", "5:5", "--out", tmp_path)
    first = run("calibrate", LOG, *words).stdout.splitlines()[0]
    assert "off on the one step; none is left to check it on" in first


def test_a_layer_of_another_device_and_trainer_moves_nothing_and_says_so(learned, run, tmp_path):
    """Factors of FSDP on H100 once shrank the interval of Megatron on A100."""
    job = Path(__file__).parents[3] / "examples" / "ppo-7b-16xa100.yaml"
    plain = json.loads(run("plan", job, "--json", "--out", tmp_path / "a").stdout)
    layer = ("--calibration", tmp_path / "calibration.yaml")
    given = run("plan", job, *layer, "--json", "--out", tmp_path / "b")
    assert json.loads(given.stdout)["iteration_s"] == plain["iteration_s"]
    assert json.loads(given.stdout)["interval_s"] == plain["interval_s"]
    said = " ".join(run("simulate", tmp_path / "b" / "plan.json").stdout.split())
    assert "verl on h100-80gb-sxm with fsdp@" in said and "nothing; generation, generation host, training" in said


def test_an_import_takes_lengths_from_the_layer_that_prices_it(learned, run, tmp_path):
    """A layer knows how long responses are: priced at the limit, a run of 88 s would seem to take 450."""
    script = shutil.copy(SCRIPT, tmp_path / "run.sh")
    words = ("--device", "h100-80gb-sxm", "--out", tmp_path / "i")
    beside = run("import", script, *words)
    assert "from what the calibration leaves open" in beside.stdout
    assert "reach the limit" not in beside.stdout
    assert int(re.search(r"your run takes about (\d+) s", beside.stdout)[1]) == pytest.approx(88, abs=4)
    given = run("import", SCRIPT, *words, "--calibration", tmp_path / "calibration.yaml")
    assert given.stdout.splitlines()[0] == beside.stdout.splitlines()[0]


def test_a_script_of_another_model_than_the_log_s_is_refused(tmp_path, monkeypatch):
    """verl prints its configuration, the actor's model first; a name that nobody knows says nothing, nor does none,
    whatever model lies in this folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(TINY, tmp_path / "config.json")
    steps = "".join(
        f"step:{i} - timing_s/gen:20.5 - timing_s/update_actor:30.5 - timing_s/step:60.5 - response_length/mean:250.5\n"
        for i in range(1, 9)
    )
    words = ("--script", SCRIPT, "--device", "h100-80gb-sxm", "--out", tmp_path)
    for path, code in (("Qwen/Qwen2-7B-Instruct", 0), ("Qwen/Qwen3-32B", 2), ("/data/ours", 0), ("", 0)):
        printed = f" 'model': {{'path': None,\n 'path': '{path}',\n 'reward_model': {{'path': 'Qwen/Qwen3-8B'}}\n"
        (tmp_path / "run.log").write_text(printed * bool(path) + steps)
        done = invoke("calibrate", tmp_path / "run.log", *words)
        assert done.exit_code == code, done.stderr
        told = "is of a run of Qwen/Qwen3-32B (64 layers of width 5,120)" in " ".join(done.stderr.split())
        assert told == bool(code)
