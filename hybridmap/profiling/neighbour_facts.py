"""What ranks of one host cost each other, as facts of the trainer's file: from table ``neighbour_step``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmap.profiling.engine_fit import PROBE_KEYS
from simulator.play.event_queue import Task, run_events
from simulator.play.host_contention import SharedHost, settle
from simulator.play.stragglers import with_stragglers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Row = Mapping[str, Any]
    Times = dict[int, dict[str, float]]

MEANINGS = {
    "neighbour_slowdown": "a call beside one of another rank of the host, over the same call alone",
    "crowded_slowdown": "the last of more calls than cores, over its end by fair turns",
    "neighbour_spread": "standard deviation of a call beside one of another rank, over its median",
}
OF_INTERVAL = 2 * 1.96 * math.sqrt(math.pi / 2)
"""A median's 95 % interval in standard deviations of what was timed, times the root of how often: of normal numbers."""
FAR = 3
"""Neighbours of a rank where each of PPO's models has one."""


def neighbour_slowdowns(rows: Sequence[Row], num_cores: int) -> dict[str, tuple[float, int]]:
    """Ratios by constant, and the probes that each rests on; without one 1 and for the spread 0.

    Parameters
    ----------
    rows
        Of table ``neighbour_step``.
    num_cores
        Of the host: with more ranks than that a call waits for its turn.
    """
    probes = _by_probe(rows)
    beside = [r for times in probes if (r := _beside_another(times)) is not None]
    slower = max(float(np.median(beside)), 1.0) if beside else 1.0
    spreads = [_spread_of(row) for row in rows if int(row["neighbours"]) == 1]
    spread = float(np.median(spreads)) if spreads else 0.0
    host = SharedHost(num_cores, slower, spread=spread)
    crowded = [r for times in probes if (r := _in_a_crowd(times, host)) is not None]
    return {
        "neighbour_slowdown": (slower, len(beside)),
        "crowded_slowdown": (max(float(np.median(crowded)), 1.0) if crowded else 1.0, len(crowded)),
        "neighbour_spread": (spread, len(beside)),
    }


def _spread_of(row: Row) -> float:
    """Standard deviation of what was timed over its median, by the interval of that; outliers hardly count."""
    width_s = float(row["high_s"]) - float(row["low_s"])
    return width_s / OF_INTERVAL * math.sqrt(row["repeats"]) / float(row["latency_s"])


def _by_probe(rows: Sequence[Row]) -> list[Times]:
    """Seconds of each probe's calls by number of neighbours."""
    names = sorted(PROBE_KEYS)
    found: dict[tuple[Any, ...], Times] = {}
    for row in rows:
        probe = found.setdefault(tuple(row[n] for n in names), {})
        probe.setdefault(int(row["neighbours"]), {})[str(row["call"])] = float(row["latency_s"])
    return list(found.values())


def _beside_another(times: Times) -> float | None:
    """How much longer the calls of a probe take together while a rank of another pool works."""
    alone, beside = times.get(0, {}), times.get(1, {})
    if not beside or not beside.keys() <= alone.keys():
        return None
    return sum(beside.values()) / sum(alone[call] for call in beside)


def _in_a_crowd(times: Times, host: SharedHost) -> float | None:
    """How much later the last of more calls than cores, started at once, ends than by fair turns.

    Each varies, and so the last of them is late by fair turns, too (``stragglers``).
    """
    crowd = times.get(FAR, {})
    alone = {call: times.get(0, {}).get(call, 0.0) for call in crowd}
    if len(crowd) <= host.num_cores or min(alone.values()) <= 0.0:
        return None

    def tasks(seconds: Mapping[str, float]) -> list[Task]:
        return [Task(key, key, seconds[key], ()) for key in alone]

    fair = settle(host, alone, dict.fromkeys(alone, 1), lambda seconds: run_events(tasks(seconds)))
    played = run_events(with_stragglers(tasks(fair), [host.spread] * len(alone)))
    return max(crowd.values()) / max(record.end_s for record in played)
