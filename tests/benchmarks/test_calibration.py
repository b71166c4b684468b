"""Protects the worth of a calibration as it is measured: families by row, errors before and after, files by name."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import calibration
from profiles.errors import InputError

PUBLISHED = Path(__file__).parents[2] / "benchmarks" / "published"
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
ASKED = {"rl": 0.08, "training": 0.06}
"""Mean errors after a calibration on one row of a family."""
ROWS = {"rl": 11, "training": 32}
"""Rows that are predicted so: a mean of fewer would be another one."""
MOVED = 0.005
"""How far a row's error may be from the committed one: what moves it more is a price or a fit, to be looked at."""


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibration")
    words = {"--rl": "rl_steps.csv", "--training": "training.csv"}
    few = {}
    for option, name in words.items():
        table = pd.read_csv(PUBLISHED / name, dtype=str, keep_default_na=False)
        families = "Llama-3.1-8B-Instruct|Qwen3-4B|deepseek-llm-7b|OPT-13B"
        kept = table[table["model"].str.contains(families, regex=True)]
        few[option] = folder / name
        kept.to_csv(few[option], index=False)
    assert calibration.main([*(str(word) for pair in few.items() for word in pair), "--out", str(folder / "out")]) == 0
    return folder / "out"


def committed():
    """The newest committed table, by the rows that are compared."""
    table = pd.read_csv(max(RESULTS.glob("calibration_*.csv")))
    return table.set_index(["table", "family", "calibrated_on", "id"]).sort_index()


def require_committed(found):
    """Rows come out as the committed table has them."""
    found = found.set_index(["table", "family", "calibrated_on", "id"]).sort_index()
    apart = (found[["before", "after"]] - committed()[["before", "after"]].loc[found.index]).abs().max(axis=1)
    moved = apart[apart > MOVED]
    assert moved.empty, f"look at what moved, then commit rows.csv of `python -m benchmarks.calibration`:\n{moved}"


def test_the_committed_errors_are_what_is_asked():
    first = committed()[lambda table: table["first"]]
    for kind, most in ASKED.items():
        own = first.loc[kind]
        assert len(own) == ROWS[kind]
        assert own["after"].abs().mean() <= most, kind


def test_families_come_out_as_committed(out):
    rows = pd.read_csv(out / "rows.csv")
    assert rows["first"].sum() >= 10
    require_committed(rows)


@pytest.mark.thorough
def test_every_family_comes_out_as_committed_and_as_asked(tmp_path):
    """What a price or a fit elsewhere moves counts, too."""
    assert calibration.main(["--first", "--out", str(tmp_path)]) == 0
    found, rows = json.loads((tmp_path / "summary.json").read_text()), pd.read_csv(tmp_path / "rows.csv")
    assert rows["first"].all() and "every row in turn" not in found
    require_committed(rows)
    for kind, most in ASKED.items():
        assert found[kind]["rows"] == ROWS[kind]
        assert found[kind]["after"] <= min(most, found[kind]["before"]), kind


def test_a_job_s_total_moves_others_by_part_of_what_it_is_off(out):
    """Hours of a whole job on 8 GPUs are a third off: a lone number, which does not widen what is believed."""
    rows = pd.read_csv(out / "rows.csv").set_index("calibrated_on")
    row, other = rows.loc["dschat-opt-13b-8x80GB"], rows.loc["dschat-opt-13b-64x80GB"]
    moved = np.log1p(row["after"]) - np.log1p(row["before"])
    assert other["before"] < -0.2 and 0 < moved < -0.5 * np.log1p(other["before"])


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


def test_a_published_row_moves_others_by_less_than_it_is_off_itself(out):
    """One row is as uncertain as what it is to correct, so belief follows it in part."""
    rows = pd.read_csv(out / "rows.csv")
    training = rows[rows["table"] == "training"]
    own = training.drop_duplicates("id").set_index("id")["before"]
    moved = np.log1p(training["after"]) - np.log1p(training["before"])
    off = np.log1p(training["calibrated_on"].map(own))
    assert (np.abs(moved) <= np.abs(off) + 1e-3).all()
    assert np.abs(moved).mean() < 0.8 * np.abs(off).mean()


def test_a_device_without_tables_is_calibrated_by_one_log(out):
    """One run's stages on MI300X, whose tables are another maker's, keep another algorithm's run near."""
    found = json.loads((out / "summary.json").read_text())["rl without tables"]
    assert found["rows"] == 1
    assert found["after"] < 0.1


def test_a_table_without_families_has_no_errors():
    assert calibration.summary(pd.DataFrame()) == {"rows": 0, "before": None, "after": None}


def test_tables_in_which_no_family_has_two_rows_give_files_without_rows(tmp_path):
    published = pd.read_csv(PUBLISHED / "training.csv", dtype=str, keep_default_na=False)
    published.iloc[:1].to_csv(tmp_path / "one.csv", index=False)
    assert calibration.main(["--training", str(tmp_path / "one.csv"), "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert found["training"] == {"rows": 0, "before": None, "after": None}
    assert pd.read_csv(tmp_path / "out" / "rows.csv").empty


def test_a_row_that_nothing_can_be_learned_from_moves_none_and_one_without_time_is_left_out(tmp_path, monkeypatch):
    published = pd.read_csv(PUBLISHED / "rl_steps.csv", dtype=str, keep_default_na=False)
    family = published[published["model"].str.contains("deepseek-llm-7b")]
    idle = family.iloc[:1].assign(id="idle", step_time_s="0")
    pd.concat([family, idle]).to_csv(tmp_path / "rl.csv", index=False)

    def refused(*_):
        raise InputError("no step is left")

    monkeypatch.setattr(calibration, "learn", refused)
    assert calibration.main(["--rl", str(tmp_path / "rl.csv"), "--out", str(tmp_path / "out")]) == 0
    rows = pd.read_csv(tmp_path / "out" / "rows.csv")
    assert len(rows) > 1 and (rows["before"] == rows["after"]).all() and "idle" not in set(rows["id"])


def test_a_file_that_is_no_table_is_one_line(tmp_path, capsys):
    (tmp_path / "no.csv").write_text("a,b\n1,2\n")
    assert calibration.main(["--training", str(tmp_path / "no.csv"), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_without_a_table_the_published_ones_are_compared():
    given = calibration.tables_of([], [])
    assert [path.name for path in (*given["rl"], *given["training"])] == ["rl_steps.csv", "training.csv"]
    assert calibration.tables_of([], [Path("t.csv")]) == {"rl": [], "training": [Path("t.csv")]}
