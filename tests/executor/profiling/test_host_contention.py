"""Protects what sharing a host costs: real runs with and without a neighbour, and rows that make a ratio."""

import pytest

from executor.profiling.engine_step import Probe
from executor.profiling.host_contention import ROWS, TOGETHER, calls_with, measure_host_contention, plans_of
from hybridmap.profiling.engine_files import _beside_another
from profiles.models.probe_models import tiny_config
from profiles.tables.write import PARTS

PROBE = Probe(tiny_config(layers=2, hidden=32), 32, 4, 3, 16, 2)


@pytest.mark.long
def test_calls_are_timed_alone_and_beside_a_rank_of_another_pool():
    measured = list(measure_host_contention(PROBE, "fp32", 3))
    found = [(key, summary) for table, key, summary in measured if table == ROWS]
    assert [(key["call"], key["neighbours"]) for key, _ in found] == [(c, n) for n in (0, 1) for c in calls_with(n)]
    assert all(summary.median_s > 0 and summary.repeats == 3 for _, _, summary in measured)
    rows = [{**key, "latency_s": summary.median_s} for key, summary in found]
    assert _beside_another(rows)["value"] >= 1.0
    together = [(key["call"], key["ranks"]) for table, key, _ in measured if table == "parallel_step"]
    assert together == [(call, 2) for call in TOGETHER]
    between = [(key["ranks"], key["pools"], key["part"]) for table, key, _ in measured if table == "dispatch"]
    assert between == [(ranks, pools, part) for ranks, pools in ((1, 1), (2, 2), (2, 1)) for part in PARTS]


def test_the_first_two_plans_differ_in_their_pools_alone():
    alone, beside, together = plans_of(PROBE)
    assert [(plan.num_gpus, len(plan.pools)) for plan in (alone, beside, together)] == [(1, 1), (2, 2), (2, 1)]
    assert {e.role: (e.training, e.inference, e.generation) for e in alone.roles} == {
        e.role: (e.training, e.inference, e.generation) for e in beside.roles
    }


def row(call: str, neighbours: int, latency_s: float, samples: int = 32) -> dict[str, object]:
    return {**PROBE.key("fp32", call), "samples": samples, "neighbours": neighbours, "latency_s": latency_s}


def test_the_slowdown_is_that_of_a_probes_calls_together():
    times = {"update_actor": (3.0, 3.6), "compute_values": (1.0, 1.6)}
    rows = [row(call, n, seconds) for call, pair in times.items() for n, seconds in enumerate(pair)]
    assert _beside_another(rows)["value"] == pytest.approx(1.3)
    generation = row("generate_sequences", 0, 50.0)
    assert _beside_another([*rows, generation])["value"] == pytest.approx(1.3), "it has no neighbour"
    half = [row("update_actor", 1, 9.0, samples=64)]
    fact = _beside_another([*rows, *half])
    assert fact["value"] == pytest.approx(1.3), "a probe whose other half failed says nothing"
    assert "1 pairs" in fact["source"]
    assert _beside_another([])["value"] == 1.0
