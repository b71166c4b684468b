"""Protects what sharing a host costs: a neighbour that really computes, gone afterwards, and rows that make a ratio."""

import multiprocessing

import pytest

from executor.measure.beside import measure_beside
from executor.measure.engine_step import CALLS, Probe
from executor.measure.probes import tiny_config
from hybridmap.profiling.engine_files import _beside_another


@pytest.mark.slow
def test_calls_are_timed_alone_and_beside_another_process():
    probe = Probe(tiny_config(layers=2, hidden=32), 32, 4, 2, 16, 2)
    found = list(measure_beside(probe, "fp32", 1, 3))
    assert [(key["call"], key["neighbours"]) for key, _ in found] == [(call, n) for call in CALLS for n in (0, 1)]
    assert all(summary.median_s > 0 and summary.repeats == 6 for _, summary in found)
    assert not multiprocessing.active_children(), "the neighbour ends with the measurement"
    rows = [{**key, "latency_s": summary.median_s} for key, summary in found]
    assert _beside_another(rows)["value"] >= 1.0


def row(call: str, neighbours: int, latency_s: float) -> dict[str, object]:
    return {**Probe(tiny_config(layers=2, hidden=32), 32, 4, 2, 16, 2).key("fp32", call), "neighbours": neighbours,
            "latency_s": latency_s}  # fmt: skip


def test_the_slowdown_is_the_middle_ratio_of_pairs():
    times = {"update_actor": (1.0, 1.2), "update_critic": (2.0, 2.2), "compute_values": (4.0, 8.0)}
    rows = [row(call, n, seconds) for call, pair in times.items() for n, seconds in enumerate(pair)]
    fact = _beside_another([*rows, row("generate_sequences", 1, 9.0)])
    assert fact["value"] == pytest.approx(1.2)
    assert "3 pairs" in fact["source"]
    assert _beside_another([])["value"] == 1.0
