"""Protects the gate on accuracy itself: it sees a family that became worse, and one that is gone."""

import pandas as pd

from benchmarks.validation.ablation import fitted_rows, predicted
from benchmarks.validation.committed import family_errors, moved, worse
from benchmarks.validation.fit import fit_constants
from benchmarks.validation.moved_constants import moved_value, seen
from benchmarks.validation.overrides import current_value
from benchmarks.validation.report import frame_of
from benchmarks.validation.rows import Row
from tests.benchmarks.validation.conftest import PUBLISHED


def report(*predictions: float | None) -> pd.DataFrame:
    """Rows of one family that took 100 s each."""
    row = Row("training", "a", "step_time_s", 100.0, family="a | b | c")
    rows = [row.with_prediction(p) if p is not None else row.without("refused") for p in predictions]
    return frame_of(rows)


def test_errors_of_a_family_by_hand() -> None:
    (line,) = family_errors(report(110.0, 95.0, None)).to_dict(orient="records")
    assert (line["rows"], line["mean"], line["bias"]) == (2, 0.075, 0.025)


def test_a_rate_counts_where_its_row_has_no_time() -> None:
    def row(name: str, quantity: str, predicted: float) -> Row:
        return Row("generation", name, quantity, 100.0, family="a | b | c").with_prediction(predicted)

    timed = [row("online", "tpot_ms", 110.0), row("online", "throughput_tokens_per_s", 90.0)]
    untimed = [row("offline", "throughput_tokens_per_s", 80.0), row("offline", "tokens_per_s_per_gpu", 80.0)]
    found = family_errors(frame_of([*timed, *untimed])).set_index("quantity")
    assert found["mean"].to_dict() == {"throughput_tokens_per_s": 0.2, "tpot_ms": 0.1}
    assert (
        "throughput"
        in worse(
            family_errors(frame_of([*timed, row("offline", "throughput_tokens_per_s", 70.0)])),
            family_errors(frame_of([*timed, *untimed])),
        )[0]
    )


def test_what_becomes_worse_is_named_and_what_does_not_is_not() -> None:
    committed = family_errors(report(104.0, 96.0))
    assert worse(family_errors(report(105.0, 94.5)), committed) == []  # 1.25 points in mean
    assert "now 6.50%" in worse(family_errors(report(107.0, 94.0)), committed)[0]
    assert "now 4.00% (bias +4.00%)" in worse(family_errors(report(104.0, 104.0)), committed)[0]  # mean is the same
    assert "2 rows, now 1" in worse(family_errors(report(104.0)), committed)[0]
    assert worse(family_errors(report(100.0, 100.0)), committed) == []


def test_prices_that_moved_are_named_whichever_way() -> None:
    committed = family_errors(report(104.0, 96.0))
    assert moved(committed, committed) == []
    assert moved(family_errors(report(104.0 + 1e-6, 96.0)), committed) == []  # another machine's last digits
    better = moved(family_errors(report(103.8, 96.2)), committed)  # 0.2 points, and no bias
    assert better == ["training step_time_s, a | b | c: 4.00% (bias +0.00%), now 3.80% (bias +0.00%)"]
    assert "2 rows, now 1" in moved(family_errors(report(104.0)), committed)[0]
    assert "2 rows, now 3" in moved(family_errors(report(104.0, 96.0, 100.0)), committed)[0]
    assert "0 rows, now 2" in moved(committed, committed.iloc[:0])[0]


def test_a_constant_that_moves_a_fifth_is_seen() -> None:
    (constant,) = (c for c in fit_constants() if c.constant == "launch_s_per_layer" and "vllm@0.3.1" in c.file)
    frame = predicted(
        PUBLISHED, pd.DataFrame({"table": ["paper"], "figure": ["fig15"], "id": "", "system": "hybridflow"})
    )
    assert fitted_rows(frame, constant).any()
    assert moved_value(constant, 1.2) == 1.2 * current_value(constant)
    found = seen(constant, 1.2, frame)
    assert (found.rule, found.families) == ("worse", 1)
