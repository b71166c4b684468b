"""Protects the worth of a calibration as it is measured: families by row, errors before and after, files by name."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import calibration

PUBLISHED = Path(__file__).parents[2] / "benchmarks" / "published"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibration")
    words = {"--rl": "rl_steps.csv", "--training": "training.csv"}
    few = {}
    for option, name in words.items():
        table = pd.read_csv(PUBLISHED / name, dtype=str, keep_default_na=False)
        kept = table[table["model"].str.contains("Llama-3.1-8B|Llama 3.1 8B|Qwen3-4B|Qwen3-32B", regex=True)]
        few[option] = folder / name
        kept.to_csv(few[option], index=False)
    old = sys.argv
    sys.argv = ["x", *(str(word) for pair in few.items() for word in pair), "--out", str(folder / "out")]
    try:
        calibration.main()
    finally:
        sys.argv = old
    return folder / "out"


def test_every_row_but_the_one_that_was_calibrated_on_is_predicted(out):
    rows = pd.read_csv(out / "rows.csv")
    assert set(rows["table"]) == {"rl", "training"}
    first = rows[rows["first"]]
    assert not set(first["id"]) & set(first["calibrated_on"])
    assert first["id"].is_unique
    assert rows[["before", "after"]].notna().all(axis=None)
    for _, family in rows.groupby(["table", "family"]):
        members = set(family["id"])
        assert len(family) == len(members) * (len(members) - 1)  # each by each other


def test_the_summary_is_the_mean_of_the_rows(out):
    rows, found = pd.read_csv(out / "rows.csv"), json.loads((out / "summary.json").read_text())
    for kind, own in rows.groupby("table"):
        first = own[own["first"]]
        assert found[kind]["rows"] == len(first)
        assert found[kind]["after"] == pytest.approx(first["after"].abs().mean())
        assert found["every row in turn"][kind]["rows"] == own["id"].nunique()
    assert pd.read_csv(out / "families.csv")["rows"].sum() == rows["first"].sum()


def test_a_calibration_on_a_published_row_makes_no_family_much_worse(out):
    """One row is as uncertain as what it is to correct: belief moves by part of it."""
    rows = pd.read_csv(out / "rows.csv")
    errors = rows[rows["first"]][["before", "after"]].abs()
    assert (errors["after"] - errors["before"]).mean() < 0.02


def test_a_table_without_families_has_no_errors():
    assert calibration.summary(pd.DataFrame()) == {"rows": 0, "before": None, "after": None}
