"""Protects the comparison of two trees: times never count, everything else does."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import same_results

BEFORE = {"tiny curve": [{"checks/replicas_s": 0.1, "reward": 0.5}], "job plan": {"seconds": 3.0, "iteration_s": 2.0}}
SLOWER = {"tiny curve": [{"checks/replicas_s": 0.2, "reward": 0.5}], "job plan": {"seconds": 4.0, "iteration_s": 2.0}}
LONGER = {"tiny curve": [{"checks/replicas_s": 0.1, "reward": 0.5}], "job plan": {"seconds": 3.0, "iteration_s": 2.5}}


def compared(monkeypatch: pytest.MonkeyPatch, folder: Path, after: dict[str, object]) -> int:
    kept = folder / "before.json"
    kept.write_text(json.dumps(BEFORE))
    monkeypatch.setattr(same_results, "collected", lambda quick: same_results.without_clocks(after))
    monkeypatch.setattr(sys, "argv", ["same_results", "--against", str(kept)])
    with pytest.raises(SystemExit) as ended:
        same_results.main()
    return int(str(ended.value.code))


def test_times_of_checks_and_of_commands_are_no_difference(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compared(monkeypatch, tmp_path, SLOWER) == 0
    assert capsys.readouterr().out == "2 answers are the same to the bit\n"


def test_a_predicted_time_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compared(monkeypatch, tmp_path, LONGER) == 1
    assert capsys.readouterr().out == "/job plan/iteration_s: 2.0 -> 2.5\n"
