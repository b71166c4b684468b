"""Protects the figure that the page begins with: a left-out family is in no fit, and families count once."""

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from benchmarks.validation import leave_out
from benchmarks.validation.families import family_of
from benchmarks.validation.fit import FitConstant, fit_constants
from benchmarks.validation.leave_out import Errors, Fit, fitted_values, least_absolute
from benchmarks.validation.order import order_and_regret
from benchmarks.validation.overrides import current_value
from benchmarks.validation.report import frame_of
from benchmarks.validation.rows import Row

STEP = next(c for c in fit_constants() if c.constant == "step_fixed_s")


def errors(best, families):
    """Rows that a constant of 0 to 10 predicts exactly at ``best``."""
    values = np.linspace(0.0, 10.0, 11)
    return Errors(
        values, np.stack([values - b for b in best]), tuple(families), tuple(f"r{i}" for i in range(len(best)))
    )


def test_a_family_counts_once_however_many_rows_it_has():
    assert least_absolute(errors([2.0, 8.0, 8.0, 8.0, 2.5], ["a", "b", "b", "b", "c"])) == pytest.approx(2.5, abs=0.1)


def test_rows_that_tell_nothing_leave_a_constant_where_others_of_its_kind_are():
    """A fit on rows that no value changes would take the least value, as if it had been measured."""
    silent = Errors(np.linspace(0.0, 10.0, 11), np.full((2, 11), 0.2), ("a", "b"), ("r0", "r1"))
    assert least_absolute(silent, 4.0) == pytest.approx(4.0, abs=0.1)
    assert least_absolute(errors([2.0, 2.0], "ab"), 4.0) == pytest.approx(2.0, abs=0.1), "rows that tell are believed"
    host = next(c for c in fit_constants() if c.like)
    others = [c for c in fit_constants() if c.constant == host.constant and c.file in host.like]
    scale = float(np.mean([current_value(c) for c in others]))
    assert fitted_values([(Fit(host), Errors(silent.values * scale / 5.0, *_rest(silent)))]) == {
        host: pytest.approx(scale, rel=0.02)
    }
    assert host.file not in host.like


def _rest(found):
    return found.log_ratio, found.families, found.rows


def test_a_left_out_family_has_no_say():
    found = errors([2.0, 8.0, 8.0], ["a", "b", "b"])
    fit = Fit(STEP)
    assert fitted_values([(fit, found)], "b") == {STEP: pytest.approx(2.0, abs=0.1)}
    assert fitted_values([(fit, found)], "elsewhere") == {}, "its constants stay as they are"
    assert fitted_values([(fit, found.without("a"))], "b") == {}, "nothing to fit it on is left"


def test_constants_that_share_rows_share_their_error():
    """Each of two constants alone would make the rows right; refitted in turn they do so together."""
    values = np.linspace(0.0, 10.0, 11)
    rows = tuple(f"r{i}" for i in range(20))
    committed = float(current_value(STEP))
    ratio = np.stack([values - committed - 1.0 for _ in rows])
    other = next(c for c in fit_constants() if c.constant == "adapter_ratio")
    second = np.stack([values - float(current_value(other)) - 1.0 for _ in rows])
    found = [(Fit(c), Errors(values, r, ("a",) * 20, rows)) for c, r in ((STEP, ratio), (other, second))]
    fitted = fitted_values(found)
    moved = [fitted[c] - float(current_value(c)) for c in (STEP, other)]
    assert sum(moved) == pytest.approx(1.0, abs=0.1)


def test_a_family_with_many_rows_gives_some_of_each_part():
    frame = pd.DataFrame({"family": ["a"] * 100 + ["b"] * 3, "id": [f"i{i}" for i in range(103)]})
    kept = leave_out.spread(frame)
    assert kept.groupby("family").size().to_dict() == {"a": leave_out.ROWS_OF_A_FAMILY, "b": 3}
    assert {"i0", "i99"} <= set(kept["id"])


def test_families():
    one = family_of("Qwen/Qwen3-30B-A3B", "gb200", "Megatron-Bridge v0.3.0")
    assert one == family_of("Qwen3_30B_a3B (tokendrop)", "gb200", "Megatron-Bridge v0.3.0")
    assert len({one, family_of("Qwen3-30B-A3B", "b200-sxm", "Megatron-Bridge v0.3.0")}) == 2
    assert len({one, family_of("Qwen3-30B-A3B", "gb200", "Megatron-Bridge v0.3.1")}) == 2


@pytest.mark.parametrize(
    "rows", [{"table": "rl"}, {"table": "rl", "quantities": ["step*"]}, {"table": "rl", "quantities": ["tokens*"]}]
)
def test_a_constant_of_a_whole_step_is_refused(rows):
    entry = {"constant": "c", "file": "f.yaml", "quantity": "refit_time_s", "meaning": "", "neutral": 0}
    with pytest.raises(ValidationError, match="a total of several stages"):
        FitConstant(rows=[rows], error_without="", **entry)
    stage = {"table": "rl", "quantities": ["refit_time_s"]}
    assert FitConstant(rows=[stage], error_without="", **entry).quantity == "refit_time_s"


def test_totals_of_the_papers_systems_are_refused_as_others_are():
    entry = {"constant": "c", "file": "f.yaml", "meaning": "", "neutral": 0, "error_without": ""}
    with pytest.raises(ValidationError, match="a total of several stages"):
        FitConstant(rows=[{"table": "paper", "figure": "fig9"}], quantity="iteration_s", **entry)
    stage = FitConstant(rows=[{"table": "paper", "figure": "fig15"}], quantity="generation_s", **entry)
    assert stage.quantity == "generation_s"


def test_a_rate_has_the_sign_of_its_time():
    rows = [Row("rl", "a", "step_time_s", 10.0, 20.0), Row("rl", "a", "tokens_per_s_per_gpu", 10.0, 5.0)]
    assert leave_out.log_time_ratio(frame_of(rows)) == pytest.approx([np.log(2.0)] * 2)


def test_order_and_regret():
    def row(name, measured, predicted, quantity="tokens_per_s_per_gpu"):
        return Row("training", name, quantity, measured, predicted, family=f"m | d | {name}")

    good = [row("a", 100.0, 90.0), row("b", 120.0, 95.0), row("c", 60.0, 80.0)]
    (line,) = order_and_regret(frame_of(good))
    assert (line["pairs"], line["in order"], line["choices"], line["regret"]) == (3, 1.0, 1, 0.0)
    (line,) = order_and_regret(frame_of([row("a", 100.0, 99.0), row("b", 120.0, 90.0), row("c", 102.0, 1.0)]))
    assert (line["pairs"], line["in order"]) == (2, 0.5), "2 % apart is a tie"
    assert line["regret"] == pytest.approx(0.2)
    times = [row("a", 10.0, 11.0, "step_time_s"), row("b", 20.0, 19.0, "step_time_s")]
    assert order_and_regret(frame_of(times))[0]["in order"] == 1.0
    assert isinstance(frame_of(times), pd.DataFrame)
