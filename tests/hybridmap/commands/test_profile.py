"""Protects `hybridmap profile` and `hybridmap validate`: profile, plan, validate and calibrate work for real."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from executor.profiling.plans import ppo_plan
from hybridmap.commands.run_prices import local_facts
from hybridmap.job.load import load_job
from simulator.plan.plan import Plan
from simulator.play.simulate import simulate
from tests.work import wait_until

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "run"
CONFIG = EXAMPLES / "tiny-config.json"


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile of this machine, quickly and roughly: a few sizes of everything but Ray."""
    from executor.profiling.environment import describe, pick_device
    from executor.profiling.journal import Journal
    from executor.profiling.request import Request
    from executor.profiling.run_profile import Profiler
    from executor.profiling.timing import Precision
    from hybridmap.profiling.folder import write_profile
    from hybridmap.profiling.quality import Wanted
    from profiles.models.catalogue import load_model
    from profiles.tables.write import KEYS

    out = tmp_path_factory.mktemp("profile")
    request = Request(
        device="cpu",
        dtype="fp32",
        models=(load_model(str(CONFIG)),),
        configs=(json.loads(CONFIG.read_text()),),
        budget_s=15.0,
        target=0.5,
        parts=("memory", "copy", "gemm", "attention", "collective", "dispatch", "engine"),
        launchers=("local",),
        precision=Precision(0.2, 3, 9, 0.0, 0.3),
    )
    device = pick_device("cpu")
    with Journal(out / "journal.jsonl", {}) as journal:
        Profiler(request, journal, lambda part, what: None).run()
    measured = {t: journal.of(t) for t in KEYS}
    write_profile(out, measured, describe(device, 1), "cpu", Wanted(ray=False, neighbours=False))
    return out


def taken(profile: Path) -> tuple[object, ...]:
    """However rough it is, and whatever else the machine did: neither is what these tests are about."""
    return "--profile", profile, "--force-profile"


@pytest.mark.slow
def test_a_plan_for_this_machine(run, profile: Path, tmp_path: Path) -> None:
    done = run("plan", EXAMPLES / "remax-tiny.yaml", *taken(profile), "--out", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["iteration_s"] > 0
    again = run("simulate", "--plan", tmp_path / "plan.json", "--json")
    assert again.exit_code == 0, again.stderr


@pytest.mark.slow
def test_a_run_without_a_plan_plans_for_the_measured_machine_first(run, profile: Path, tmp_path: Path) -> None:
    document = yaml.safe_load((EXAMPLES / "remax-tiny.yaml").read_text())
    del document["run"]["plan"]
    job = shutil.copytree(EXAMPLES, tmp_path / "run") / "without-plan.yaml"  # its paths start from its folder
    job.write_text(yaml.safe_dump(document))
    refused = run("run", job)
    done = run("run", job, *taken(profile), "--iterations", "1", "--out", tmp_path / "out", "--json")
    both = run("run", job, *taken(profile), "--plan", EXAMPLES / "ppo-tiny.yaml")
    assert refused.exit_code == both.exit_code == 2
    assert "--profile hybridmap-profile plans for it" in refused.stderr
    assert "give one of them" in both.stderr
    assert done.exit_code == 0, done.output
    assert "planned for this machine: " in done.stderr
    assert (tmp_path / "out" / "timeline.json").is_file()


@pytest.mark.slow
def test_validate_compares_and_calibrates(run, profile: Path, tmp_path: Path) -> None:
    job = EXAMPLES / "remax-tiny.yaml"
    options = [*taken(profile), "--iterations", "8", "--json"]
    done = run("validate", job, *options, "--out", tmp_path / "a", "--calibrate")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    lines = {line["name"]: line for line in found["timings"]}
    for name in ("generation", "training", "preparation", "iteration"):
        assert lines[name]["predicted_s"] > 0 and lines[name]["measured_s"] > 0  # how near: benchmarks.loop
    assert {a["kind"] for a in found["amounts"]} == {"memory", "transfer"}
    prompts = next(a for a in found["amounts"] if a["name"] == "generate_sequences")
    assert prompts["predicted_bytes"] == prompts["measured_bytes"]
    assert {Path(f).name for f in found["written"]} == {
        "validation.json",
        "predicted.json",
        "measured.json",
        "timeline.html",
    }
    built = {line["what"]: line for line in found["implementation"]}
    assert {name for name, line in built.items() if not line["same"]} == set()  # priced by its own profile
    assert built["kernels"]["seen"] == "aten::rsqrt" and "aten::mm" in found["kernels"]["update_actor"]
    update = next(line for line in found["timings"] if line["name"] == "update_actor")
    assert update["device_s"] == pytest.approx(update["measured_s"], rel=0.05)  # one clock on a CPU
    layer = yaml.safe_load((profile / "calibration.yaml").read_text())
    assert layer["provenance"] == "measured here"
    update = next(stage for stage in layer["stages"] if stage["calls"] == ["update_actor"])
    assert abs(update["error_after"]) <= abs(update["error_before"]) + 0.1
    assert not found["calibrated"]
    calibrated = json.loads(run("validate", job, *options, "--out", tmp_path / "b").stdout)
    assert calibrated["calibrated"]
    before_s, after_s = (
        next(line["predicted_s"] for line in answer["timings"] if line["name"] == "update_actor")
        for answer in (found, calibrated)
    )
    assert after_s != before_s  # by the factors; benchmarks.loop says how near
    (profile / "calibration.yaml").unlink()


@pytest.mark.slow
def test_validate_as_planned_predicts_what_the_plan_was_planned_by(run, tmp_path: Path) -> None:
    """The job's own device and engines: nothing that was measured here is asked for."""
    job = EXAMPLES / "remax-tiny.yaml"
    plan = Plan.model_validate_json((EXAMPLES / "remax-tiny-plan.json").read_text())
    planned = simulate(plan, load_job(job).facts())
    options = ["--iterations", "2", "--as-planned", "--json"]
    done = run("validate", job, *options, "--out", tmp_path / "a")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    lines = {line["name"]: line for line in found["timings"] if line["level"] == "stage"}
    for name in ("generation", "training"):
        assert lines[name]["predicted_s"] == pytest.approx(planned.stages[name], rel=1e-6)
        assert lines[name]["measured_s"] > 0
    assert found["priced_as"][0] == "a100-80gb-sxm" and found["ran_on"] not in ("", "a100-80gb-sxm")
    both = run("validate", job, *options, "--profile", tmp_path)
    assert both.exit_code == 2 and "predict by one of them" in both.output + both.stderr


def test_validate_without_a_profile_says_how_to_make_one(run, tmp_path: Path) -> None:
    done = run("validate", EXAMPLES / "remax-tiny.yaml", "--profile", tmp_path / "none")
    assert done.exit_code == 2 and "hybridmap profile --quick" in done.stderr


def test_profile_refuses_a_gpu_that_is_not_there(run, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = run("profile", "--device", "cuda", "--out", tmp_path / "p")
    assert done.exit_code == 2 and "--device cpu" in done.stderr


@pytest.mark.slow
def test_ctrl_c_keeps_rows_and_the_command_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hybridmap", "profile", "--quick", "--models", str(CONFIG), "--out", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # however these tests were started
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(command, env=env, cwd=ROOT, **pipes, **heard) as process:
        journal = tmp_path / "journal.jsonl"
        wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 10, "ten rows")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.read().decode()
        assert process.wait() == 130
    assert "keeps" in said and "the same command resumes" in said
    assert journal.read_bytes().count(b"\n") >= 10


def test_a_function_behind_a_controller_takes_what_it_takes_alone(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that waited reads weights and operators anew (`wake_s`); a function has none."""
    slow = tmp_path / "profile"
    shutil.copytree(profile, slow)
    engine = next((slow / "engines").glob("torch-native@*.yaml"))
    woken = yaml.safe_load(engine.read_text())
    woken["facts"]["wake_s"]["value"] = 3e-3
    engine.write_text(yaml.safe_dump(woken, sort_keys=False))
    monkeypatch.setattr("executor.profiling.functions.time_function", lambda *_: 2e-5)
    job = load_job(EXAMPLES / "ppo-tiny.yaml", slow, 2)
    assert job.run is not None and job.facts().training.wake_s == 3e-3
    plan = ppo_plan((("actor", "critic", "reference", "reward"),), 128, 64)
    behind = local_facts(job, job.run.model_copy(update={"launcher": "ray"}), plan)
    assert behind.training.call_s == pytest.approx(job.facts().training.call_s + 3e-3), "a model's calls wake"
    assert behind.roles["reward"].function_s_per_sample == 2e-5
