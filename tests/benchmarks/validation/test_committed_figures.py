"""Holds the accuracy that the page prints: nothing may become worse by more than two points without saying so."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from benchmarks.validation.ablation import predicted
from benchmarks.validation.accuracy import figures
from benchmarks.validation.calibrate import coverage
from benchmarks.validation.committed import FILE, family_errors, moved, worse
from benchmarks.validation.leave_out import fit_errors, left_out
from tests.benchmarks.validation.conftest import PLACEMENTS, PUBLISHED

COMMITTED = Path(__file__).parents[3] / "docs" / "accuracy.json"
POINTS = 0.02
COMMAND = "python -m benchmarks.validation.committed"


def require_committed(report: pd.DataFrame, *, placements: bool) -> None:
    """The report of the published tables, of that figure alone or of all but it, has the committed prices."""
    found, committed = family_errors(report), pd.read_csv(FILE)
    committed = committed[committed["family"].str.startswith(f"{PLACEMENTS} ") == placements]
    assert len(committed) >= (3 if placements else 200)
    assert worse(found, committed) == [], "worse than committed"
    lines = moved(found, committed)
    what = f"prices of {len(lines)} families moved: look at what changed, then commit `{COMMAND}`"
    assert not lines, "\n".join([what, *lines])


def test_prices_of_published_rows_are_the_committed_ones(published: SimpleNamespace) -> None:
    require_committed(published.report, placements=False)


@pytest.mark.long
def test_prices_of_the_paper_s_placements_are_the_committed_ones(tmp_path: Path) -> None:
    for file in PUBLISHED.glob(f"*{PLACEMENTS}*.csv"):
        shutil.copy(file, tmp_path / file.name)
    require_committed(predicted(tmp_path), placements=True)


def test_families_left_out_are_predicted_as_well_as_the_page_says(published: SimpleNamespace, tmp_path: Path) -> None:
    for name in ("rl_steps.csv", "training.csv"):
        shutil.copy(PUBLISHED / name, tmp_path / name)
    whole = published.report[published.report["table"].isin(["rl", "training"])].reset_index(drop=True)
    frame = left_out(whole, tmp_path, fit_errors(whole, tmp_path))
    committed, found = json.loads(COMMITTED.read_text()), figures(frame)
    worse = {name: (committed.get(name), value) for name, value in found.items() if value > committed[name] + POINTS}
    assert worse == {}, "run `make accuracy` and look at what became worse"
    narrow = {line["cluster"]: line["inside"] for line in coverage(frame) if line["inside"] < 0.85}
    assert narrow == {}, "intervals hold too few of their rows"
