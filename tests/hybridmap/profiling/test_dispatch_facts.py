"""Protects what lies between calls as facts: what a rank costs in a pool of its own, in the called pool, and once."""

import pytest

from executor.profiling.dispatch import dispatch_key
from hybridmap.profiling.dispatch_facts import dispatch_seconds
from profiles.tables.write import AROUND, BETWEEN, FAKE


def rows(ranks, pools, between_s, around_s=9e-3, samples=32, launcher="ray", engine="torch-native"):
    key = dispatch_key(launcher, samples, ranks, pools, engine)
    return [{**key, "part": BETWEEN, "latency_s": between_s}, {**key, "part": AROUND, "latency_s": around_s}]


def test_each_constant_is_what_its_runs_differ_by():
    measured = [
        *rows(1, 1, 3e-3),
        *rows(4, 4, 6e-3),
        *rows(2, 1, 5.5e-3),
        *rows(1, 1, 1e-3, 2e-3, launcher="local", engine=FAKE),
    ]
    found = {name: value for name, (value, _) in dispatch_seconds(measured).items()}
    assert found == pytest.approx(
        {
            "dispatch_s": 3e-3,
            "dispatch_iteration_s": 6e-3,
            "dispatch_rank_s": 1e-3,
            "dispatch_pool_rank_s": 1.5e-3,
            "dispatch_local_s": 1e-3,
            "dispatch_local_iteration_s": 1e-3,
        }
    )


def test_four_ranks_tell_what_one_adds_better_than_two():
    """A start's luck of 0.3 ms: a third of it where three ranks are further."""
    true = [*rows(1, 1, 3e-3), *rows(2, 2, 3.4e-3), *rows(4, 4, 4.2e-3)]
    unlucky = [*rows(1, 1, 3e-3), *rows(2, 2, 3.7e-3), *rows(4, 4, 4.2e-3)]
    found = [dispatch_seconds(each)["dispatch_rank_s"][0] for each in (true, unlucky)]
    assert found == pytest.approx([4e-4, 4e-4], rel=0.1)


def test_no_rank_makes_calls_come_sooner():
    found = dispatch_seconds([*rows(1, 1, 3e-3, 1e-3), *rows(2, 2, 2e-3), *rows(2, 1, 1e-3)])
    assert [found[name][0] for name in ("dispatch_rank_s", "dispatch_pool_rank_s", "dispatch_iteration_s")] == [0, 0, 0]


def test_runs_of_an_engine_say_more_than_fakes_and_batch_sizes_are_held_apart():
    fakes = [*rows(1, 1, 9.0, engine=FAKE), *rows(4, 4, 99.0, engine=FAKE)]
    real = [*rows(1, 1, 2e-3), *rows(2, 2, 3e-3), *rows(1, 1, 4e-3, samples=64), *rows(2, 2, 7e-3, samples=64)]
    found = dispatch_seconds([*fakes, *real])
    assert found["dispatch_s"] == (pytest.approx(3e-3), 2)
    assert found["dispatch_rank_s"] == (pytest.approx(2e-3), 2)
    assert dispatch_seconds(fakes)["dispatch_s"] == (9.0, 1)


def test_rows_of_a_batch_take_time_once_an_iteration():
    """7 ms and 10 us a sample, by fakes of both launchers; an engine's runs say the 7 ms, at their own batch size."""
    sizes = {n: 1e-3 + 7e-3 + 1e-5 * n for n in (32, 192, 256)}
    fakes = [
        row
        for launcher, faster_s in (("ray", 0.0), ("local", 5e-3))
        for n in (32, 256)
        for row in rows(1, 1, 1e-3, sizes[n] - faster_s, n, launcher, FAKE)
    ]
    found = dispatch_seconds([*fakes, *rows(1, 1, 1e-3, sizes[192], 192)])
    assert found["dispatch_iteration_s_per_sample"] == (pytest.approx(1e-5), 2)
    assert found["dispatch_iteration_s"] == (pytest.approx(7e-3), 1)
    assert found["dispatch_local_iteration_s"] == (pytest.approx(2e-3), 2)
    one_size = dispatch_seconds(rows(1, 1, 1e-3, sizes[192], 192))
    assert "dispatch_iteration_s_per_sample" not in one_size
    assert one_size["dispatch_iteration_s"] == (pytest.approx(7e-3 + 192e-5), 1)


def test_no_row_takes_less_than_no_time():
    shrinking = [*rows(1, 1, 1e-3, 9e-3, 32), *rows(1, 1, 1e-3, 5e-3, 256)]
    assert dispatch_seconds(shrinking)["dispatch_iteration_s_per_sample"][0] == 0.0


def test_what_was_not_measured_is_left_out():
    assert dispatch_seconds([]) == {}
    assert set(dispatch_seconds(rows(1, 1, 1e-3))) == {"dispatch_s", "dispatch_iteration_s"}
