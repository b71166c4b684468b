"""Protects what rows say of ranks that share a host: how much one neighbour slows a call, and a crowd."""

import numpy as np
import pytest

from executor.profiling.engine_step import Probe
from executor.profiling.statistics import summarise
from hybridmap.profiling.neighbour_facts import FAR, neighbour_slowdowns
from profiles.models.probe_models import tiny_config
from simulator.play.event_queue import Task, run_events
from simulator.play.host_contention import SharedHost, settle
from simulator.play.stragglers import with_stragglers

PROBE = Probe(tiny_config(layers=2, hidden=32), 32, 4, 3, 16, 2)


def row(call: str, neighbours: int, latency_s: float, samples: int = 32) -> dict[str, object]:
    timed = {"latency_s": latency_s, "low_s": 0.9 * latency_s, "high_s": 1.1 * latency_s, "repeats": 40}
    return {**PROBE.key("fp32", call), "samples": samples, "neighbours": neighbours, **timed}


def test_the_slowdown_is_that_of_a_probes_calls_together() -> None:
    times = {"update_actor": (3.0, 3.6), "compute_values": (1.0, 1.6)}
    rows = [row(call, n, seconds) for call, pair in times.items() for n, seconds in enumerate(pair)]
    assert neighbour_slowdowns(rows, 2)["neighbour_slowdown"] == (pytest.approx(1.3), 1)
    generation = row("generate_sequences", 0, 50.0)
    assert neighbour_slowdowns([*rows, generation], 2)["neighbour_slowdown"] == (pytest.approx(1.3), 1)
    half = row("update_actor", 1, 9.0, samples=64)
    assert neighbour_slowdowns([*rows, half], 2)["neighbour_slowdown"] == (pytest.approx(1.3), 1), (
        "its other half failed"
    )
    assert set(neighbour_slowdowns([], 2).values()) == {(1.0, 0), (0.0, 0)}


def test_the_spread_of_a_call_is_what_the_interval_of_its_median_says() -> None:
    """Normal times of a standard deviation of a tenth, forty a row; calls alone do not count."""
    drawn = np.random.default_rng(0)
    rows = []
    for i in range(50):
        found = summarise(drawn.normal(1.0, 0.1, 40))
        timed = {"latency_s": found.median_s, "low_s": found.low_s, "high_s": found.high_s, "repeats": found.repeats}
        rows.append({**row("update_actor", 1, 1.0, samples=i), **timed})
    alone = [row("update_actor", 0, 1.0, samples=i) for i in range(50)]
    spread, probes = neighbour_slowdowns([*rows, *alone], 2)["neighbour_spread"]
    assert (spread, probes) == (pytest.approx(0.1, rel=0.1), 50)


@pytest.mark.parametrize(("measured_s", "ratio"), [(2.5, 1.0), (3.0, 1.2), (2.0, 1.0)])
def test_a_crowd_costs_what_its_longest_call_takes_beyond_fair_turns(measured_s: float, ratio: float) -> None:
    """Three calls of 2, 2 and 1 s on two cores take 2.5 s by turns."""
    alone = {"compute_values": 2.0, "compute_ref_log_prob": 2.0, "compute_reward": 1.0}
    crowd = {"compute_values": measured_s, "compute_ref_log_prob": 2.0, "compute_reward": 1.5}
    rows = [row(call, n, s) for n, times in ((0, alone), (FAR, crowd)) for call, s in times.items()]
    assert neighbour_slowdowns(rows, 2)["crowded_slowdown"] == (pytest.approx(ratio, rel=0.02), 1)
    assert neighbour_slowdowns(rows, 4)["crowded_slowdown"] == (1.0, 0), "each has a core"


def test_a_crowd_that_varies_is_priced_to_end_when_it_did() -> None:
    """Of calls that each vary by a tenth one ends late by chance: that is in the measured end and not added to it."""
    alone = {"compute_values": 2.0, "compute_ref_log_prob": 2.0, "compute_reward": 1.0}
    crowd = {"compute_values": 3.0, "compute_ref_log_prob": 2.6, "compute_reward": 1.5}
    beside = {call: s for call, s in alone.items() if call != "compute_reward"}
    rows = [row(call, n, s) for n, times in ((0, alone), (1, beside), (FAR, crowd)) for call, s in times.items()]
    found = {name: value for name, (value, _) in neighbour_slowdowns(rows, 2).items()}
    host = SharedHost(2, found["neighbour_slowdown"], 0.0, found["crowded_slowdown"], found["neighbour_spread"])
    assert host.spread > 0.1
    longer = settle(host, alone, dict.fromkeys(alone, 1), lambda s: run_events([Task(c, c, s[c], ()) for c in alone]))
    tasks = with_stragglers([Task(c, c, longer[c], ()) for c in alone], [host.spread] * len(alone))
    assert max(record.end_s for record in run_events(tasks)) == pytest.approx(3.0, rel=0.01)
