"""Protects the scaling benchmark: its cases, one real child process, and a result file that reads back."""

import csv
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import solver_scaling
from benchmarks.solver_scaling import ROLES, SIZES, Case, cases, facts_of, measured, row_of, write


def test_every_size_and_algorithm_is_there_and_a_mixture_of_experts() -> None:
    every = cases()
    assert {case.num_gpus for case in every} == set(SIZES)
    assert {(case.algorithm, case.num_gpus) for case in every} == {(a, n) for a in ROLES for n in SIZES}
    assert sum("a3b" in case.model for case in every) == len(SIZES)
    assert len(cases(quick=True)) < len(every)
    assert all(facts_of(case).workload.num_samples == 16 * case.num_gpus for case in every)
    (large,) = (case for case in every if case.model == "deepseek-v3")
    assert facts_of(large).workload.response.maximum > 15000
    for case in every[:5]:
        assert facts_of(case).group.num_gpus == case.num_gpus
        assert tuple(facts_of(case).roles) == ROLES[case.algorithm]


@pytest.mark.long
def test_a_case_runs_in_a_process_of_its_own_and_reads_back(tmp_path: Path) -> None:
    row = row_of(Case("grpo", "llama-2-7b", 8), with_paper=True)
    assert row.status == "optimal"
    assert float(row.seconds) > 0.0
    assert float(row.cpu_s) > 0.0
    assert float(row.peak_memory_mib) > 10.0
    assert float(row.gap) < 1e-4
    assert 0.0 < float(row.paper_s) < 60.0
    write(tmp_path / "out" / "x.csv", [row], "a shared machine")
    lines = (tmp_path / "out" / "x.csv").read_text(encoding="utf-8").splitlines()
    assert [line[0] for line in lines[:2]] == ["#", "#"]
    assert next(csv.DictReader(lines[2:])) == {name: str(value) for name, value in asdict(row).items()}


def test_what_does_not_end_or_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(Case("grpo", "llama-2-7b", 8), False, limit_s=0.01) is None
    monkeypatch.setattr(solver_scaling, "measured", lambda case, with_paper, limit_s: None)
    row = row_of(Case("grpo", "llama-2-7b", 8), with_paper=True)
    assert (row.status, row.seconds, row.paper_s) == ("timed out", "", "> 600")


def test_algorithm_1_is_not_tried_beyond_where_it_did_not_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried = []

    def child(case: Case, with_paper: bool, limit_s: float) -> dict[str, str] | None:
        tried.append((case.num_gpus, with_paper))
        return (
            None if with_paper and case.num_gpus >= 512 else {"status": "optimal", "seconds": "11.0", "paper_s": "1.0"}
        )

    monkeypatch.setattr(solver_scaling, "measured", child)
    monkeypatch.setattr(
        solver_scaling, "cases", lambda quick: [Case("ppo", "llama-2-70b", n) for n in (128, 512, 1024)]
    )
    solver_scaling.main(["--out", str(tmp_path)])
    assert tried == [(128, False), (128, True), (512, False), (512, True), (1024, False)]
    lines = next(tmp_path.iterdir()).read_text(encoding="utf-8").splitlines()
    assert [row["paper_s"] for row in csv.DictReader(lines[1:])] == ["1.0", "> 600", "> 600"]
