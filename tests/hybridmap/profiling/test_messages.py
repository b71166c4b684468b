"""Protects the table of collectives from how a host wakes its ranks: times that do not fall, and rows as they were."""

import pytest

from hybridmap.profiling.messages import bound_by_latency, never_falling
from hybridmap.profiling.quality import Wanted, doubts
from tests.hybridmap.made_up_profile import failed, operators

WAITING_S = (4.5e-4, 1.8e-3, 7e-4, 1.1e-3, 1.1e-2)
"""Of reduce_scatter over two ranks on an idle virtual machine, 16 bytes to 16 MiB."""


def collectives(seconds, kind="reduce_scatter"):
    key = {"dtype": "fp32", "kind": kind, "gpus": 2}
    return [{**key, "num_bytes": 16 << 5 * i, "latency_s": s, "error": ""} for i, s in enumerate(seconds)]


def test_times_do_not_fall_with_bytes_and_keep_their_geometric_mean():
    found = [row["latency_s"] for row in never_falling(collectives(WAITING_S))]
    assert found == sorted(found)
    assert (found[0], found[-1]) == pytest.approx((WAITING_S[0], WAITING_S[-1]))
    pooled = (WAITING_S[1] * WAITING_S[2] * WAITING_S[3]) ** (1 / 3)
    assert found[1:4] == pytest.approx([pooled] * 3)


def test_rows_keep_their_order_and_other_operations_and_failures_are_left_alone():
    falling, rising = collectives((2.0, 1.0)), collectives((1.0, 3.0), "all_gather")
    broken = failed({"dtype": "fp32", "kind": "reduce_scatter", "gpus": 2, "num_bytes": 64}, "no gloo")
    found = never_falling([falling[1], broken, *rising, falling[0]])
    assert [row["num_bytes"] for row in found] == [512, 64, 16, 512, 16]
    assert found[1:4] == [broken, *rising]
    assert found[0]["latency_s"] == found[4]["latency_s"] == pytest.approx(2**0.5)


def test_messages_that_wait_for_ranks_are_no_doubt_and_larger_ones_are():
    mine = {"low_s": 0.0, "high_s": 0.0, "repeats": 9, "outliers": 0}
    rows = operators() | {"collective": [{**row, **mine} for row in collectives(WAITING_S)]}
    assert not [text for text in doubts(rows, None, Wanted()) if "times as long" in text and "disturbed" in text]
    rows["collective"][3]["latency_s"] = 0.05
    (found,) = [text for text in doubts(rows, None, Wanted()) if "times as long" in text and "disturbed" in text]
    assert "524,288 bytes took 4.5 times as long as 16,777,216" in found
    assert bound_by_latency(rows["collective"][2], rows["collective"], 2.0)
