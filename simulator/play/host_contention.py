"""Ranks that share one host's cores: calls that run side by side slow each other down, and so do more processes.

GPUs have their memory and their cores to themselves; the ranks of a CPU share caches, memory bandwidth and clocks, and
take turns where there are more of them than cores. How long a call takes then depends on what runs at the same time,
which only a played iteration knows. So an iteration is played with the times of calls alone, each call is stretched by
what it met, and so on, a few times. What comes before a call is no rank's work and is not stretched: what more ranks
add to it is measured. No call gets faster in company, so an iteration of calls alone bounds the true one: that is what
the mapper searches by (``mapper.search.host_contention``).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from simulator.facts import Facts
    from simulator.play.event_queue import Scheduled

ROUNDS = 4
"""Stretching a call moves those behind it; the times of an iteration settle in two or three rounds."""


@dataclass(frozen=True)
class SharedHost:
    """A host whose ranks share it.

    Parameters
    ----------
    num_cores
        Ranks that can compute at the same time.
    neighbour_slowdown
        A call while another rank runs one, over the same call alone; at least 1.
    further_rank_s
        What each rank beyond the first adds between two calls, also one of another pool: one more process on the host.
    dispatch_s, pool_rank_s
        What comes before a call in its time alone, and what that has for each further rank of its own pool.
    crowded_slowdown
        What a call that has been among more ranks than cores takes beyond fair turns, all of it; at least 1.
    spread
        Standard deviation of a call's seconds from one iteration to the next, relative (``stragglers``).
    """

    num_cores: int
    neighbour_slowdown: float
    further_rank_s: float = 0.0
    crowded_slowdown: float = 1.0
    spread: float = 0.0
    dispatch_s: float = 0.0
    pool_rank_s: float = 0.0

    def stretch(self, ranks: int) -> float:
        """How much longer a call takes while ``ranks`` ranks compute."""
        contention = self.neighbour_slowdown if ranks > 1 else 1.0
        return contention * max(ranks / self.num_cores, 1.0)


def shared_host(facts: Facts) -> SharedHost | None:
    """The host that the job's ranks share; ``None`` on GPUs, which share nothing.

    Parameters
    ----------
    facts
        What is known of job, device and engines.

    Returns
    -------
    SharedHost | None
        The host, or nothing.
    """
    if facts.device.spec.kind != "cpu":
        return None
    engine = facts.training
    slower, crowded = max(engine.neighbour_slowdown, 1.0), max(engine.crowded_slowdown, 1.0)
    return SharedHost(
        facts.device.spec.gpus_per_node,
        slower,
        engine.dispatch_rank_s,
        crowded,
        engine.neighbour_spread,
        engine.dispatch_s,
        engine.dispatch_pool_rank_s,
    )


def stretched(
    host: SharedHost, records: Sequence[Scheduled], alone_s: Sequence[float], ranks: Sequence[int]
) -> list[float]:
    """Seconds of each call given when they run.

    A call's own ranks are in its time already. A call of no ranks (the controller's) neither slows nor is slowed.

    Parameters
    ----------
    host
        That the ranks share.
    records
        When each call runs, in call order.
    alone_s
        Seconds of each call alone.
    ranks
        On how many ranks each runs.

    Returns
    -------
    list[float]
        Seconds of each call in company, in call order.
    """
    return [_one(host, records, alone_s[i], ranks, i) for i in range(len(records))]


def _one(host: SharedHost, records: Sequence[Scheduled], alone_s: float, ranks: Sequence[int], i: int) -> float:
    me = records[i]
    if not ranks[i] or me.end_s <= me.start_s:
        return alone_s
    edges = {me.start_s, me.end_s}
    for record in records:
        edges |= {t for t in (record.start_s, record.end_s) if me.start_s < t < me.end_s}
    times, total, most = sorted(edges), 0.0, ranks[i]
    for start_s, end_s in itertools.pairwise(times):
        busy = sum(n for r, n in zip(records, ranks, strict=True) if r.start_s <= start_s and end_s <= r.end_s)
        total += (end_s - start_s) / host.stretch(busy)
        most = max(most, busy)
    done = total * host.stretch(ranks[i]) / (me.end_s - me.start_s)  # share of a second's work that a second does
    crowded = most > max(host.num_cores, ranks[i])
    before_s = min(host.dispatch_s + host.pool_rank_s * (ranks[i] - 1), alone_s)
    return before_s + (alone_s - before_s) / done * (host.crowded_slowdown if crowded else 1.0)


def settle(
    host: SharedHost,
    durations: Mapping[str, float],
    ranks: Mapping[str, int],
    play: Callable[[Mapping[str, float]], tuple[Scheduled, ...]],
) -> dict[str, float]:
    """Seconds of every call among the calls that it meets.

    Parameters
    ----------
    host
        That the ranks share.
    durations
        Seconds of each call alone, by call key in call order.
    ranks
        On how many ranks each runs, by call key.
    play
        Runs an iteration with given seconds by call key.

    Returns
    -------
    dict[str, float]
        Seconds by call key.

    Notes
    -----
    Stops after ``ROUNDS`` rounds, whether the times still move or not.
    """
    keys, found = list(durations), dict(durations)
    for _ in range(ROUNDS):
        times = stretched(host, play(found), [durations[k] for k in keys], [ranks[k] for k in keys])
        found = dict(zip(keys, times, strict=True))
    return found
