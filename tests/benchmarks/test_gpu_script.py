"""Protects the single-GPU script: at toy size on a CPU it measures, runs, predicts and leaves small files."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu import h200
from benchmarks.gpu.compare_tables import compare_with_catalogue
from benchmarks.placements import swapped
from executor.profiling import run_profile
from profiles.tables.write import write_table
from tests.work import Clock

pytestmark = pytest.mark.thorough


@pytest.mark.long
def test_the_whole_script_at_toy_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time passes when it looks at its clock, once for each row that it measures."""
    clock = Clock(asked_s=0.25)
    for module in (h200, run_profile):
        monkeypatch.setattr(module, "time", clock.module)
    given = ["--out", str(tmp_path), "--device", "cpu", "--toy", "--budget-minutes", "1.2"]
    assert h200.main(given) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    # At the least the corners of the grid: how fast the machine is decides which sizes are worth measuring.
    assert summary["tables"]["rows"]["gemm"] >= 8 and summary["tables"]["rows"]["engine_step"] >= 5
    assert [(r["model"], r["algorithm"]) for r in summary["runs"]] == [("tiny", "grpo"), ("tiny", "ppo")]
    for run in summary["runs"]:
        assert "error" not in run, run
        stages = {line["name"]: line for line in run["stages"]}
        assert stages["training"]["measured_s"] > 0 and stages["training"]["predicted_s"] > 0
    assert sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file()) < 5 << 20
    # the journal alone is enough to make the tables again, elsewhere
    assert h200.main([*given, "--from-journal"]) == 0
    assert json.loads((tmp_path / "summary.json").read_text())["tables"]["rows"] == summary["tables"]["rows"]


def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(h200, "PROFILE_NEEDS", ("torch", "no_such_package"))
    assert h200.main(["--out", str(tmp_path)]) == 2
    assert "this needs no_such_package" in capsys.readouterr().err


def test_our_rows_are_set_beside_the_catalogues(tmp_path: Path) -> None:
    row = {"dtype": "bf16", "m": 1024, "n": 4096, "k": 4096, "latency_s": 1e-3, "error": ""}
    write_table(tmp_path, "gemm", [row, {**row, "m": 2048}], {})
    found = compare_with_catalogue(tmp_path, "NVIDIA H200")
    assert found["device"] == "h200-sxm" and found["tables"]["gemm"]["rows"] == 2
    assert found["tables"]["gemm"]["furthest"][0]["ratio"] > 10
    assert compare_with_catalogue(tmp_path, "no such part") == {}


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
