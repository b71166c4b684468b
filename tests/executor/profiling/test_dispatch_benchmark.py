"""Protects the dispatch benchmark: its fit finds a line that is there, and it measures real workers."""

import pytest

from benchmarks.dispatch import line, run

pytestmark = pytest.mark.thorough


def test_the_fit_finds_the_line_and_says_how_far_it_is_off():
    workers = [1, 2, 4, 8, 16]
    exact = line(workers, [0.001 + 0.002 * n for n in workers])
    assert (exact["fixed_s"], exact["per_worker_s"]) == pytest.approx((0.001, 0.002))
    assert exact["at_1000_s"] == pytest.approx(2.001)
    assert exact["worst_relative_error"] < 1e-9
    assert line(workers, [0.001, 0.002, 0.004, 0.008, 0.032])["worst_relative_error"] > 0.2


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_more_workers_take_longer_and_one_is_fast():
    pytest.importorskip("ray")
    rows = run(most=4, calls=20, fan_out=4)["rows"]
    assert [row["workers"] for row in rows] == [1, 2, 4]
    assert rows[0]["submit_s"] < rows[2]["round_trip_s"]
    assert rows[0]["round_trip_s"] < 0.2
    assert rows[0]["controller_s"] > 0
