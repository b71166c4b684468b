"""Protects the command that strangers' tables are given to: no row lost, no crash, nothing half-written."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.validation.__main__ import main
from benchmarks.validation.guard import INTERNAL
from benchmarks.validation.rows import COLUMNS


def run(*arguments):
    return main([str(argument) for argument in arguments])


def rows_of(out):
    return pd.read_csv(out / "rows.csv", keep_default_na=False, na_values={"predicted": "", "relative_error": ""})


@pytest.fixture
def no_pictures(monkeypatch):
    """A picture takes longer than the rest of a report; one test has it drawn."""
    monkeypatch.setattr("benchmarks.validation.__main__.write_plots", lambda frame, folder: [])


def test_every_quantity_of_every_row_is_there_with_exact_columns(write, ten_percent_slow, tmp_path):
    out = tmp_path / "out"
    args = [f"--{kind}={write(kind)}" for kind in ("rl", "training", "generation")]
    assert run(*args, "--out", out) == 0
    rows = rows_of(out)
    assert tuple(rows.columns) == COLUMNS
    found = set(zip(rows.table, rows.id, rows.quantity, strict=True))
    wanted = {("rl", "r1", "step_time_s"), ("rl", "r1", "gen_time_s"), ("generation", "g1", "tpot_ms")}
    assert found == wanted | {("training", "t1", "step_time_s")}
    assert np.allclose(rows.relative_error, 0.1)
    files = {"rows.csv", "summary.json", "summary.md", "parity.png", "parity.html"}
    assert {path.name for path in out.iterdir()} == files


def test_summary_is_what_pandas_computes(write, ten_percent_slow, no_pictures, tmp_path):
    head = "id,system,gpu_kind,num_gpus,model,seq_len,step_time_s,spec_level\n"
    write("training", head + "a,x,H100,8,m,1,10,A\nb,x,H100,8,m,1,20,A\nc,y,H100,8,m,1,,A\nd,y,H100,8,m,1,5,B\n")
    assert run("--training", tmp_path / "training.csv", "--out", tmp_path / "out") == 0
    found, rows = json.loads((tmp_path / "out" / "summary.json").read_text()), rows_of(tmp_path / "out")
    (line,) = [r for r in found["by_quantity"] if r["quantity"] == "step_time_s"]
    errors = (rows.predicted / rows.measured.replace("", np.nan).astype(float) - 1).dropna()
    assert (line["rows"], line["predicted"]) == (3, 3)
    assert line["mean"] == pytest.approx(errors.abs().mean()) and line["bias"] == pytest.approx(errors.mean())
    assert line["median"] == pytest.approx(errors.abs().median()) and line["worst"] == pytest.approx(errors.abs().max())
    assert found["level_a"] == [{"table": "training", "rows": 3, "predicted": 2, "coverage": 2 / 3}]
    assert (found["rows"], found["published_rows"], found["unpredicted"]) == (4, 4, 1)


def test_dirty_cells_extra_columns_and_missing_ids(write, ten_percent_slow, no_pictures, tmp_path):
    text = (
        "\ufeffid, system ,gpu_kind,num_gpus,model,seq_len,step_time_s,surprise\n"
        ' t1 , x ,H100," 1,024 ",m,auto," 1,000.5 ",!\n'
        ",x,H100,,m,,20,\n"
        "t1,x,H100,8,m,1,n/a,\n"
    )
    path = write("training", text)
    assert run("--training", path, "--out", tmp_path / "out") == 0
    rows = rows_of(tmp_path / "out")
    assert list(rows.id) == ["t1", "row-2", "t1#2"]
    assert rows.predicted[0] == pytest.approx(1.1 * 1000.5) and pd.isna(rows.predicted[2])
    assert rows.reason[2] == "the row publishes no quantity that is predicted"


def test_an_unexpected_failure_of_one_row_is_written_and_exits_1(write, ten_percent_slow, no_pictures, tmp_path):
    text = "id,system,gpu_kind,num_gpus,model,seq_len,step_time_s\na,x,H100,8,m,1,10\nb,x,H100,8,m,1,20\n"
    ten_percent_slow.fails.add("a")
    assert run("--training", write("training", text), "--out", tmp_path / "out") == 1
    rows = rows_of(tmp_path / "out").set_index("id")
    assert rows.reason["a"].startswith(INTERNAL) and rows.predicted["b"] == pytest.approx(22)


def test_a_row_that_the_predictor_loses_is_an_internal_error(write, ten_percent_slow, no_pictures, tmp_path):
    ten_percent_slow.loses.add("r1")
    assert run("--rl", write("rl"), "--out", tmp_path / "out") == 1
    assert rows_of(tmp_path / "out").reason.str.startswith(INTERNAL).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to predict"),
        (["--rl", "nowhere.csv"], "no such file"),
        (["--paper", "nowhere"], "no such folder"),
        (["--paper", "."], "holds no paper_"),
        (["--training", "rl.csv"], "lacks the columns seq_len"),
        (["--rl", "empty.csv"], "cannot be read"),
        (["--rl", "header.csv"], "no rows"),
        (["--rl", "binary.csv"], "cannot be read"),
        (["--rl", "rl.csv", "--training", "nowhere.csv"], "no such file"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(write, tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    write("rl")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("id,system,gpu_kind,num_gpus,model,step_time_s\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81" * 30)
    assert run(*arguments, "--out", tmp_path / "out") == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ") and words in errors and errors.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_unknown_option_exits_2(capsys):
    with pytest.raises(SystemExit) as caught:
        run("--nonsense")
    assert caught.value.code == 2 and "unrecognized" in capsys.readouterr().err


def test_a_report_that_fails_leaves_the_old_one(write, ten_percent_slow, no_pictures, tmp_path, monkeypatch):
    out = tmp_path / "out"
    assert run("--rl", write("rl"), "--out", out) == 0
    before = (out / "rows.csv").read_bytes()
    write("rl", "id,system,gpu_kind,num_gpus,model,step_time_s\nother,verl,H100,8,m,7\n")
    monkeypatch.setattr("benchmarks.validation.__main__.summary_text", lambda frame: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("--rl", tmp_path / "rl.csv", "--out", out)
    assert (out / "rows.csv").read_bytes() == before
    assert not [path for path in out.iterdir() if path.name.startswith(".writing")]
