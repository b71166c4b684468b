"""Protects what a profile says of cores that were never free: it is written, and whoever made it is told."""

from pathlib import Path

import pytest

from hybridmap.commands.profile import show_profile
from hybridmap.profiling.folder import write_profile
from hybridmap.profiling.quality import Wanted
from tests.hybridmap.made_up_profile import ABOUT, operators


@pytest.mark.parametrize("missed", [0, 2])
def test_runs_that_met_no_free_cores_are_told(missed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pace = {"cores": 2, "latency_s": 0.0101, "low_s": 0.0101, "high_s": 0.0101, "error": ""}
    rows = operators() | {"core_pace": [{**pace, "repeats": 4 - missed, "outliers": missed}]}
    found = write_profile(tmp_path, rows, ABOUT, "cpu", Wanted(ray=False, neighbours=False))
    assert found.on_slowed_cores == missed
    show_profile(found, tmp_path, {})
    told = "never free for 2 kinds of runs" in " ".join(capsys.readouterr().err.split())
    assert told == bool(missed)
