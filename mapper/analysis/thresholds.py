"""The smallest change at which another placement would win: one thing scaled at a time, found by bisection.

At each point the best plan of the winning placement and the best of each rival are searched anew, from the shortlist
of the job (all candidates, where the number of nodes changes). A scaling is tried at both ends of [1/8, 8] first and
bisected, in the logarithm, only where a rival wins at the end; so one that wins in between alone is not seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from mapper.analysis.shortlist import Shortlist, faster_rival
from mapper.price_families import RESOURCES, scaled, with_response
from mapper.problem import make_problem
from mapper.progress import tell
from mapper.search.narrow import fastest_instance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mapper.deadline import Deadline
    from mapper.price_families import Family
    from mapper.problem import Placement, Problem
    from profiles.workload import Workload
    from simulator.facts import Facts

Dimension = Literal["network", "response", "prompts", "compute", "memory", "nvlink", "host", "nodes"]
DIMENSIONS: tuple[Dimension, ...] = ("network", "response", "prompts", "compute", "memory", "nvlink", "host", "nodes")
REACH = 8.0
BISECTIONS = 6
"""Halvings of a factor of ``REACH``: the bracket is 3 % wide."""


@dataclass(frozen=True)
class Flip:
    """Another placement wins between two factors of one dimension.

    Parameters
    ----------
    dimension
        What is scaled: a resource's speed, the response length, the prompts or the nodes.
    holds, wins
        The factor nearest the flip at which the placement still wins, and the one at which ``placement`` does.
    rival
        The placement that wins there.
    """

    dimension: Dimension
    holds: float
    wins: float
    rival: Placement

    @property
    def distance(self) -> float:
        """How large the change is, as ``|ln factor|``."""
        return abs(math.log(self.wins))


@dataclass(frozen=True)
class Scan:
    """Flips by dimension, nearest first; dimensions at which nothing flips; those that the time did not reach."""

    flips: tuple[Flip, ...]
    steady: tuple[Dimension, ...]
    skipped: tuple[Dimension, ...]


def scan(
    shortlist: Shortlist,
    won: Placement,
    rivals: Sequence[Placement],
    deadline: Deadline,
    dimensions: tuple[Dimension, ...] = DIMENSIONS,
) -> Scan:
    """Find where one of ``rivals`` overtakes ``won``, until ``deadline``."""
    facts = shortlist.problem.facts
    others = tuple(rivals)
    flips: list[Flip] = []
    steady: list[Dimension] = []
    skipped: list[Dimension] = []
    for i, dimension in enumerate(dimensions):
        found = None
        tell(f"looking for thresholds: {dimension}", i, len(dimensions))
        if not deadline.is_over() and dimension == "nodes":
            found = _flip_of_nodes(shortlist.problem, won, others, deadline)
        elif not deadline.is_over():

            def faster(factor: float, dimension: Dimension = dimension) -> Placement | None:
                instance = shortlist.instance(changed(facts, dimension, factor), (won, *others))
                return faster_rival(instance, won, others, deadline)

            found = _flip_of(dimension, faster, deadline)
        if found is not None:
            flips.append(found)
        else:
            (steady if not deadline.is_over() else skipped).append(dimension)
    return Scan(tuple(sorted(flips, key=lambda flip: flip.distance)), tuple(steady), tuple(skipped))


def changed(facts: Facts, dimension: Dimension, factor: float) -> Facts:
    """``facts`` with a resource ``factor`` times as fast, responses as long, or prompts or nodes as many."""
    if dimension == "response":
        return replace(facts, workload=with_response(facts.workload, factor))
    if dimension == "prompts":
        return replace(facts, workload=_with_prompts(facts.workload, factor))
    if dimension == "nodes":
        return replace(facts, group=replace(facts.group, nodes=max(1, round(facts.group.nodes * factor))))
    resource: Family = dimension
    assert resource in RESOURCES, f"{dimension} is a resource"
    return scaled(facts, {resource: 1.0 / factor})


def _with_prompts(work: Workload, factor: float) -> Workload:
    """As many prompts as divide into the minibatches and are nearest."""
    step = work.minibatches // math.gcd(work.minibatches, work.samples_per_prompt)
    return replace(work, prompts=max(1, round(work.prompts * factor / step)) * step)


def _flip_of(dimension: Dimension, faster: Callable[[float], Placement | None], deadline: Deadline) -> Flip | None:
    """The nearer of the flips towards either end."""
    found: list[Flip] = []
    for end in (1.0 / REACH, REACH):
        rival = faster(end)
        if rival is None:
            continue
        holds, wins = 1.0, end
        for _ in range(BISECTIONS):
            if deadline.is_over():
                break
            middle = math.sqrt(holds * wins)
            at = faster(middle)
            if at is None and deadline.is_over():  # not known
                break
            holds, wins, rival = (middle, wins, rival) if at is None else (holds, middle, at)
        found.append(Flip(dimension, holds, wins, rival))
    return min(found, key=lambda flip: flip.distance, default=None)


def _flip_of_nodes(problem: Problem, won: Placement, rivals: tuple[Placement, ...], deadline: Deadline) -> Flip | None:
    """As ``_flip_of`` over whole nodes, halving and doubling; every candidate is priced, since pools change."""
    now = problem.facts.group.nodes
    problem, found = replace(problem, kept_prices={}), list[Flip]()
    for step in (0.5, 2.0):
        holds, rival = now, None
        while rival is None and not deadline.is_over():
            nodes = math.floor(holds * step)
            if nodes < 1 or not now / REACH <= nodes <= now * REACH:
                break
            rival = _faster_on(problem, won, rivals, nodes, deadline)
            if rival is None:
                holds = nodes
            else:
                found.append(_between(problem, won, rivals, Flip("nodes", holds, nodes, rival), deadline))
    return min(found, key=lambda flip: flip.distance, default=None)


def _between(problem: Problem, won: Placement, rivals: tuple[Placement, ...], counts: Flip, deadline: Deadline) -> Flip:
    """The flip between two numbers of nodes, as factors of those that there are."""
    holds, wins, rival = round(counts.holds), round(counts.wins), counts.rival
    while abs(wins - holds) > 1 and not deadline.is_over():
        middle = (holds + wins) // 2
        at = _faster_on(problem, won, rivals, middle, deadline)
        if at is None and deadline.is_over():  # not known
            break
        holds, wins, rival = (middle, wins, rival) if at is None else (holds, middle, at)
    now = problem.facts.group.nodes
    return Flip("nodes", holds / now, wins / now, rival)


def _faster_on(
    problem: Problem, won: Placement, rivals: tuple[Placement, ...], nodes: int, deadline: Deadline
) -> Placement | None:
    facts = changed(problem.facts, "nodes", nodes / problem.facts.group.nodes)
    other = make_problem(facts, pins=problem.pins, mode=problem.mode, options=problem.options)
    other = replace(other, partitions=(won, *rivals), kept_prices=problem.kept_prices)
    x = fastest_instance(other, deadline)
    return faster_rival(x, won, rivals, deadline)
