"""Why a plan takes as long as it does, what keeps it from being faster, and what would make another one win.

Nothing here is a model of its own: every number comes from pricing the plan, or the candidates beside it, again with
one thing changed, by the functions that priced it first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mapper.analysis.findings import Finding, findings
from mapper.analysis.memory_bottleneck import memory_limit
from mapper.analysis.shortlist import make_shortlist
from mapper.analysis.thresholds import Scan, changed, scan
from mapper.deadline import Deadline, TimeUpError
from mapper.execution_mode import mode_of
from mapper.price_families import RESOURCES, scaled
from mapper.request import TIME
from mapper.search.place import placement_of
from simulator.play.simulate import build_timeline, price_calls, simulate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mapper.analysis.memory_bottleneck import MemoryLimit
    from mapper.price_families import Family
    from mapper.problem import Placement
    from mapper.request import SearchRequest
    from mapper.result import RunnerUp
    from simulator.facts import Facts
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

LEAST_S = 1.0
"""Seconds that a search gets at least which has begun."""

STEP = 1.05
"""Factor on a family's time, up and down, whose effect is taken as the slope."""


@dataclass(frozen=True)
class StageCause:
    """What a stage's time answers to.

    ``shares`` is ``d ln time / d ln`` (time of a resource): the share of the stage that a slightly slower resource
    stretches. What is missing to 1 is fixed: launches inside kernels.
    """

    stage: str
    seconds: float
    shares: Mapping[Family, float]

    @property
    def bottleneck(self) -> Family:
        return max(self.shares, key=lambda family: self.shares[family])


@dataclass(frozen=True)
class Idle:
    """A pool without work, and the call that it waits for."""

    pool: str
    seconds: float
    waits_for: str


@dataclass(frozen=True)
class Explanation:
    """The whole answer; ``twice_as_fast`` is the iteration in seconds with one resource at double speed."""

    timeline: Timeline
    stages: tuple[StageCause, ...]
    twice_as_fast: Mapping[Family, float]
    memory: tuple[MemoryLimit, ...]
    idle: tuple[Idle, ...]
    scan: Scan | None
    confirmed: bool | None
    findings: tuple[Finding, ...]
    seconds: float


def explain(request: SearchRequest, plan: Plan, runners_up: Sequence[RunnerUp], budget_s: float = 8.0) -> Explanation:
    """Explain ``plan``, one that ``request`` allows.

    Thresholds against the placements of ``runners_up`` take what is left of ``budget_s``.
    """
    began, deadline = time.perf_counter(), Deadline.after(budget_s)
    facts = request.facts.drafting(plan.draft_tokens)
    request = replace(request, facts=facts)
    alike = replace(request.fastest(), modes=(mode_of(plan),), objective=TIME, hint=None, runners_up=False)
    timeline = simulate(plan, facts)
    stages = stage_causes(facts, plan, timeline)
    faster = {family: _at(facts, plan, family, 0.5).iteration_s for family in RESOURCES}
    shortlist = make_shortlist(alike, deadline)
    memory = tuple(memory_limit(facts, plan, pool, timeline, shortlist) for pool in plan.pools)
    found = tuple(findings(facts, plan, timeline, runners_up))
    same = [other.plan for other in runners_up if mode_of(other.plan) == mode_of(plan)]
    won, rivals = placement_of(plan), tuple(placement_of(other) for other in same)
    whole = scan(shortlist, won, rivals, deadline) if rivals else None
    return Explanation(
        timeline=timeline,
        stages=stages,
        twice_as_fast=faster,
        memory=memory,
        idle=idle_of(facts, plan, timeline),
        scan=whole,
        confirmed=_confirmed(alike, won, whole, deadline),
        findings=found,
        seconds=time.perf_counter() - began,
    )


def _at(facts: Facts, plan: Plan, family: Family, factor: float) -> Timeline:
    drawn = scaled(facts, {family: factor})
    return build_timeline(plan, drawn, price_calls(plan, drawn))


def stage_causes(facts: Facts, plan: Plan, timeline: Timeline) -> tuple[StageCause, ...]:
    """Shares of each stage's critical time by resource, from every resource ``STEP`` times slower and faster."""
    slope: dict[Family, dict[str, float]] = {}
    for family in RESOURCES:
        slower, faster = (price_calls(plan, scaled(facts, {family: f})) for f in (STEP, 1.0 / STEP))
        slope[family] = {k: (float(slower[k].time.s) - float(faster[k].time.s)) / (STEP - 1.0 / STEP) for k in slower}
    out = []
    for stage, seconds in timeline.stages.items():
        calls = [span.call for span in timeline.spans if span.critical and span.stage == stage]
        if seconds > 0:
            out.append(StageCause(stage, seconds, {f: sum(slope[f][c] for c in calls) / seconds for f in RESOURCES}))
    return tuple(out)


def idle_of(facts: Facts, plan: Plan, timeline: Timeline) -> tuple[Idle, ...]:
    """How long each pool has nothing to do, by the call that it waits for (the last one, after its own last)."""
    ends = {span.call: span.end_s for span in timeline.spans}
    last = max(ends, key=lambda call: ends[call])
    waits: dict[tuple[str, str], float] = {}
    for pool in plan.pools:
        at = 0.0
        for span in sorted((s for s in timeline.spans if s.pool == pool.name), key=lambda s: s.start_s):
            inputs = facts.dataflow.calls[facts.dataflow.index(span.call)].inputs
            if span.start_s > at and inputs:
                key = (pool.name, max(inputs, key=lambda call: ends[call]))
                waits[key] = waits.get(key, 0.0) + span.start_s - at
            at = span.end_s
        if timeline.iteration_s > at:
            waits[pool.name, last] = waits.get((pool.name, last), 0.0) + timeline.iteration_s - at
    return tuple(Idle(pool, seconds, call) for (pool, call), seconds in waits.items() if seconds > 1e-9)


def _confirmed(request: SearchRequest, won: Placement, whole: Scan | None, deadline: Deadline) -> bool | None:
    """Whether a search of everything agrees that the nearest flip is one; ``None`` if there is none, or no time."""
    if whole is None or not whole.flips or deadline.is_over():
        return None
    from mapper.search.find_plan import find_plan

    flip, left_s = whole.flips[0], max(deadline.left_s, LEAST_S)
    facts = changed(request.facts, flip.dimension, flip.wins)
    try:
        there = find_plan(replace(request, facts=facts, placement="any", time_limit_s=left_s))
    except TimeUpError:
        return None
    return set(placement_of(there.plan)) != set(won)
