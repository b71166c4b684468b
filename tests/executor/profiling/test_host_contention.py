"""Protects what is run to see what sharing a host costs: calls alone, beside another rank, and in a crowd."""

import pytest

from executor.profiling import host_contention
from executor.profiling.engine_step import Probe
from executor.profiling.host_contention import (
    ROWS,
    TOGETHER,
    calls_with,
    measure_host_contention,
    neighbours_of,
    plans_of,
)
from hybridmap.profiling.neighbour_facts import neighbour_slowdowns
from profiles.models.probe_models import tiny_config
from profiles.tables.write import PARTS

PROBE = Probe(tiny_config(layers=2, hidden=32), 32, 4, 3, 16, 2)


@pytest.mark.long
@pytest.mark.parametrize("crowded", [False, True])
def test_calls_are_timed_alone_and_beside_ranks_of_other_pools(crowded, monkeypatch):
    monkeypatch.setattr(host_contention, "ROUNDS", 1)  # a start takes ten seconds
    measured = list(measure_host_contention(PROBE, "fp32", 3, 0.01, crowded=crowded))
    found = [(key, summary) for table, key, summary in measured if table == ROWS]
    wanted = {(call, n) for n in neighbours_of(crowded=crowded) for call in calls_with(n)}
    assert {(key["call"], key["neighbours"]) for key, _ in found} == wanted and len(found) == len(wanted)
    assert all(summary.median_s > 0 and summary.repeats <= 3 for _, _, summary in measured)
    rows = [
        {**key, "latency_s": s.median_s, "low_s": s.low_s, "high_s": s.high_s, "repeats": s.repeats} for key, s in found
    ]
    ratios = neighbour_slowdowns(rows, 2)
    assert {name: probes for name, (_, probes) in ratios.items()} == {
        "neighbour_slowdown": 1,
        "crowded_slowdown": int(crowded),
        "neighbour_spread": 1,
    }
    together = [(key["call"], key["ranks"]) for table, key, _ in measured if table == "parallel_step"]
    assert together == [(call, 2) for call in TOGETHER]
    between = [(key["ranks"], key["pools"], key["part"]) for table, key, _ in measured if table == "dispatch"]
    sizes = [(1, 1), (2, 2), (2, 1), *([(4, 4)] if crowded else [])]
    assert between == [(ranks, pools, part) for ranks, pools in sizes for part in PARTS]


def test_plans_of_a_rank_a_pool_differ_in_their_pools_alone():
    alone, beside, together, apart = plans_of(PROBE, crowded=True)
    sizes = [(plan.num_gpus, len(plan.pools)) for plan in (alone, beside, together, apart)]
    assert sizes == [(1, 1), (2, 2), (2, 1), (4, 4)]
    layouts = [{e.role: (e.training, e.inference, e.generation) for e in p.roles} for p in (alone, beside, apart)]
    assert layouts[0] == layouts[1] == layouts[2]
    assert len(plans_of(PROBE)) == 3, "each of four ranks has a core"
