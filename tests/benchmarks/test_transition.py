"""Protects what the transition benchmark concludes from its rows: where it claims, and how sure it is."""

import pytest

from benchmarks.transition import NUM_RANKS, measure, reductions, table, tried, verdicts
from benchmarks.transition_cases import Outcome


def row(method, time_ms, spread_ms, moved_mb):
    return {
        "model": "11M",
        "layout": "t4 -> tg2",
        "method": method,
        "time_ms": time_ms,
        "received_mb": moved_mb,
        "quartile_1_ms": time_ms - spread_ms,
        "quartile_3_ms": time_ms + spread_ms,
        "table_2_mb": moved_mb,
    }


def test_times_whose_quartiles_meet_are_level():
    ours, v, chat = row("hybridflow", 10.0, 1.0, 3.0), row("hybridflow-v", 11.5, 1.0, 4.0), row("ds-chat", 20, 1, 4.0)
    level, faster = verdicts([ours, v, chat])
    assert (level.against, level.time, level.fewer_bytes) == ("hybridflow-v", "level", True)
    assert (faster.against, faster.time) == ("ds-chat", "faster")
    assert reductions([ours, v, chat]) == [0.5]
    assert [one.time for one in verdicts([row("hybridflow", 30, 1, 3.0), v, chat])] == ["slower", "slower"]


def test_nothing_is_claimed_where_the_formula_says_equal():
    assert verdicts([row("hybridflow", 10, 1, 4.0), row("hybridflow-v", 9, 1, 4.0), row("ds-chat", 9, 1, 4.0)]) == []


def test_random_cases_are_counted_by_how_they_ended():
    good, bad, refused = Outcome(4, by_cause={"x": 4}), Outcome(4, by_cause={"x": 3}), Outcome(refused="why")
    assert tried([{0: good, 1: bad, 2: refused}, {0: good, 1: good, 2: refused}]) == {
        "moved": 1,
        "refused": 1,
        "wrong": 1,
    }


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_the_strided_method_moves_what_table_2_says():
    from benchmarks.rank_pool import run_on_ranks

    rows = table(run_on_ranks(NUM_RANKS, measure, ["11M"], [1], 3, [], False))
    assert [one.fewer_bytes for one in verdicts(rows)] == [True, True]
    by = {found["method"]: found for found in rows}
    assert by["hybridflow"]["received_mb"] == pytest.approx(by["hybridflow"]["table_2_mb"], rel=0.02)
    assert all(found["quartile_1_ms"] <= found["time_ms"] <= found["quartile_3_ms"] for found in rows)
