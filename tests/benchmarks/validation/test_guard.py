"""Protects every row from every other: what one prediction raises becomes that row's reason and nothing more."""

import pandas as pd
import pytest

from benchmarks.validation.guard import INTERNAL, each, guarded
from benchmarks.validation.names import NotPredicted
from benchmarks.validation.rows import Row
from profiles.errors import NoBasisError

ROW = Row("rl", "r1", "step_time_s", 10.0)


def raising(error):
    def predict():
        raise error

    return predict


@pytest.mark.parametrize("error", [NotPredicted("no GPU"), NoBasisError("no GPU")])
def test_an_expected_inability_is_a_plain_reason(error):
    assert guarded([ROW], raising(error)) == [ROW.without("no GPU")]


def test_an_unexpected_one_says_so():
    (row,) = guarded([ROW], raising(KeyError("tp")))
    assert row.predicted is None and row.reason == f"{INTERNAL} KeyError: 'tp'"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_an_impossible_prediction_is_no_prediction(value):
    (row,) = guarded([ROW], lambda: [ROW.with_prediction(value)])
    assert row.predicted is None and row.reason.startswith(INTERNAL)


def test_a_quantity_that_is_left_out_comes_back():
    other = Row("rl", "r1", "gen_time_s", 5.0)
    rows = guarded([ROW, other], lambda: [ROW.with_prediction(11.0)])
    assert [row.quantity for row in rows] == ["step_time_s", "gen_time_s"] and rows[1].reason.startswith(INTERNAL)


def test_each_row_of_a_table_stands_alone():
    def rows_of(cells):
        return [Row("rl", cells["id"], "step_time_s", cells["step_time_s"])]

    def predict(cells, rows):
        return [row.with_prediction(10.0 / cells["divisor"]) for row in rows]

    table = pd.DataFrame({"id": ["a", "b", "c"], "step_time_s": [1.0, 2.0, 3.0], "divisor": [1, 0, 2]}, dtype=object)
    rows = each(table, rows_of, predict)
    assert [row.predicted for row in rows] == [10.0, None, 5.0] and "ZeroDivisionError" in rows[1].reason
