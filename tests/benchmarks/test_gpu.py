"""Protects the command for fresh GPU nodes: every step runs at toy size on a CPU, and failures are on record."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import engines, environment, measure
from benchmarks.gpu.compare_tables import compare_with_catalogue
from benchmarks.placements import plan_of, swapped
from executor.profiling import run_profile
from hybridmap.commands import profile
from hybridmap.job.load import load_job
from profiles.tables.write import write_table
from simulator.play.simulate import simulate
from tests.executor.plans import config_for_all_engines
from tests.work import Clock

pytestmark = pytest.mark.thorough


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    model = config_for_all_engines(tmp_path)
    out = ["--out", str(tmp_path / "node"), "--device", "cpu", "--cpu-ranks", "2"]
    return [*out, "--model", str(model), "--iterations", "2", "--steps"]


@pytest.mark.long
def test_the_whole_command_at_toy_size(given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its profile's time passes when it looks at its clock, once for each row; the rest is counted in iterations.

    The profile leaves out what starts processes, which ``tests/hybridmap/commands/test_profile.py`` and the loop have.
    """
    out = tmp_path / "node"
    parts, whole = ("memory", "copy", "gemm", "attention", "engine", "collective"), profile._request  # noqa: SLF001
    monkeypatch.setattr(run_profile, "time", Clock(asked_s=0.5).module)
    monkeypatch.setattr(profile, "_request", lambda *given: replace(whole(*given), parts=parts, launchers=("local",)))
    for step in command.STEPS:
        assert command.main([*given, step]) == 0, step
    ran = json.loads((out / "smoke.json").read_text())
    assert [(row["training"], row["generation"]) for row in ran] == list(measure.ENGINES)
    for generation in ("torch-native", "vllm"):  # each draws in its own way, and all trainers learn the same from it
        norms = [row["last"]["actor/grad_norm"] for row in ran if row["generation"] == generation and "last" in row]
        assert norms == pytest.approx(norms[:1] * len(norms), rel=1e-3)
    placed = json.loads((out / "placements.json").read_text())
    assert [row["placement"] for row in placed] == ["colocate", "split", "mixed", "colocate-half"]
    for row in placed:
        stages = {line["name"]: line for line in row["timings"] if line["level"] == "stage"}
        assert stages["training"]["measured_s"] > 0 and stages["training"]["predicted_s"] > 0
        assert all(built["same"] for built in row["implementation"])
        assert row["tokens"]["measured"] == row["tokens"]["predicted"]
    priced = json.loads((out / "engines.json").read_text())
    assert [row["training"] for row in priced] == ["fsdp2", "megatron-core"]
    for row in (row for row in priced if "left_out" not in row):
        stages = {line["name"]: line for line in row["timings"] if line["level"] == "stage"}
        assert {"generation", "preparation", "training"} <= stages.keys()
        assert all(line["low_s"] <= line["measured_s"] <= line["high_s"] for line in stages.values())
        assert stages["training"]["low_s"] > 0 and stages["training"]["predicted_s"] > 0
        assert row["priced_as"][0] == measure.CARD and row["ran_on"] and not row["calibrated"]
    page = (out / "report.md").read_text()
    assert "| standalone" not in page and "| mixed | iteration |" in page
    with tarfile.open(out / "report.tar.gz") as archive:
        packed = archive.getnames()
    assert {"report.md", "profile/device.yaml", "mixed/validation.json"} <= set(packed)
    assert (out / "report.tar.gz").stat().st_size < 5 << 20


def test_a_step_that_fails_leaves_the_others_and_is_on_record(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "node"
    monkeypatch.setattr(measure, "hybridmap", lambda *_: {"error": "exit 1: NCCL error\nunhandled system error"})
    assert command.main([*given, "environment"]) == 0
    assert command.main([*given, "smoke"]) == 1
    assert command.main([*given, "placements"]) == 1
    monkeypatch.setattr(engines, "hybridmap", lambda *_: {"error": "exit 1: NCCL error\nunhandled system error"})
    assert command.main([*given, "engines"]) == 1
    assert command.main([*given, "report"]) == 1  # the profile left nothing
    page = (out / "report.md").read_text()
    assert "fsdp2, torch-native: unhandled system error" in page and "| mixed | unhandled system error |" in page
    assert "| fsdp2, vllm on h100-80gb-sxm | unhandled system error |" in page


def test_a_command_that_fails_is_on_record_by_its_message(tmp_path: Path) -> None:
    """With ``--json`` it says so in a document, whose last line is a brace."""
    found = measure.hybridmap("plan", tmp_path / "none.yaml")["error"]
    assert found.startswith("exit 2: ") and "none.yaml" in found.splitlines()[-1]


def test_packages_have_the_version_of_whatever_brings_them(given: list[str], tmp_path: Path) -> None:
    """vLLM for CPUs has a name of its own."""
    assert command.main([*given, "environment"]) == 0
    found = json.loads((tmp_path / "node" / "environment.json").read_text())
    assert all((found["packages"][name] is None) == (name in found["absent"]) for name in environment.OPTIONAL.values())


def test_four_placements_on_any_node_that_has_room() -> None:
    for count in (2, 4, 8, 16):
        found = measure.placements_on(count)
        assert len(found) == 4
        assert all(sum(size for _, size in places) <= count for places in found.values())
    assert list(measure.placements_on(1)) == ["colocate"]


def test_what_is_missing_is_named(
    given: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(environment.NEEDED, "no_such_module", "no-such-package")
    assert command.main([*given, "environment"]) == 2
    assert "every step needs no-such-package" in capsys.readouterr().err


def test_our_rows_are_set_beside_the_catalogues(tmp_path: Path) -> None:
    row = {"dtype": "bf16", "m": 1024, "n": 4096, "k": 4096, "latency_s": 1e-3, "error": ""}
    write_table(tmp_path, "gemm", [row, {**row, "m": 2048}], {})
    found = compare_with_catalogue(tmp_path, "NVIDIA H200")
    assert found["device"] == "h200-sxm" and found["tables"]["gemm"]["rows"] == 2
    assert found["tables"]["gemm"]["furthest"][0]["ratio"] > 10
    assert compare_with_catalogue(tmp_path, "no such part") == {}


H200 = Path(__file__).parents[2] / "benchmarks" / "results" / "h200_2026-11-26"


def test_one_gpu_prices_its_own_run_without_collectives(tmp_path: Path) -> None:
    """The profile that an H200 made of itself, and what torch-native took on another: nobody was there to talk to.

    Scoring keeps the GPU busy; training and generation wait for a host, and the profile's was slower.
    """
    job = tmp_path / "job.yaml"
    prompts, length, response, micro_batch = measure.SIZES["cuda"]
    work = {"prompts": prompts, "prompt_length": length, "response_length": response, "minibatches": 2}
    models = dict.fromkeys(measure.ROLES, "qwen2.5-0.5b")
    cluster = [{"device": "h200-sxm", "nodes": 1}]
    job.write_text(json.dumps({"algorithm": "ppo", "models": models, "workload": work, "cluster": cluster}))
    facts = load_job(job, H200 / "profile", 1, force_profile=True).facts()
    predicted = simulate(plan_of(facts, ((measure.ROLES, 1),), micro_batch, 1 << 30), facts).stages
    (ran,) = json.loads((H200 / "torch-native" / "placements.json").read_text())
    assert ran["tokens"]["measured"] == facts.workload.tokens
    measured = {line["name"]: line["measured_s"] for line in ran["timings"] if line["level"] == "stage"}
    assert predicted["preparation"] == pytest.approx(measured["preparation"], rel=0.1)
    assert predicted["training"] == pytest.approx(measured["training"], rel=0.35)


def test_a_pair_counts_as_swapped_only_beyond_the_spread() -> None:
    def row(name: str, predicted: float, low: float, high: float) -> dict[str, object]:
        return {
            "placement": name,
            "predicted_s": predicted,
            "measured_s": (low + high) / 2,
            "low_s": low,
            "high_s": high,
        }

    near = [row("a", 1.0, 2.0, 2.4), row("b", 1.1, 1.8, 2.2)]
    apart = [row("a", 1.0, 2.0, 2.1), row("b", 1.1, 1.0, 1.1)]
    assert swapped(near) == [] and swapped(apart) == [("a", "b")]
    assert swapped([row("a", 1.0, 1.0, 1.1), row("b", 2.0, 2.0, 2.1)]) == []
