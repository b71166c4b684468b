"""How errors of the estimates move the answer: what the chosen plan loses when prices are other than we think.

A *draw* multiplies the times of each family (``mapper.price_families``) by a lognormal factor of median 1, whose 90 %
interval is ``1 / (1 + error)`` to ``1 + error``, all families independent. Under the drawn facts the whole search runs
again, and every plan that won any draw is priced and played with the functions that priced it first. The *regret* of
a plan is its time over the best known time of that draw, less one; its pools and layouts are fixed, its engine takes
the KV budget that other responses need, where there is room. A plan that does not fit under a draw (longer
responses) has no regret there and is counted apart. Which family to measure first: each one alone is moved to both
ends of its interval, the others as estimated.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.analysis.regret import Contender, Draw, FamilyEffect, Robustness
from mapper.price_families import FAMILIES, default_errors, scaled
from mapper.request import TIME
from mapper.search.find_plan import find_plan
from mapper.search.replay import layout_key, play_plans, with_room
from profiles.errors import InputError
from simulator.uncertainty import NINETY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mapper.price_families import Family
    from mapper.request import SearchRequest
    from mapper.result import Result
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

SEARCH_S = 30.0
"""Longest time of one search."""

LEAST_S = 1.0
"""Seconds that a search gets at least which begins when the budget is nearly spent."""

DRAWS_SHARE = 0.6
"""Share of the time budget that the draws may take; what is left is for the families one by one."""


@dataclass(frozen=True)
class _Scenario:
    """Drawn facts, and what the search found under them."""

    factors: Mapping[Family, float]
    facts: Facts
    plan: Plan | None
    plan_s: float


# Long by what the answer says: a line for each.
def robustness(
    request: SearchRequest,
    *,
    errors: Mapping[Family, float] | None = None,
    draws: int = 20,
    budget_s: float = 120.0,
    progress: Callable[[int, int], None] | None = None,
) -> Robustness:
    """Plan, perturb, plan again; always by time.

    Parameters
    ----------
    request
        The job as estimated. What it fixes and allows holds in every draw; its time limit is that of one search, at
        most ``SEARCH_S``. The same seed gives the same draws, and the same answer unless the budget cuts it short.
    errors
        Half-width of each family's 90 % interval, relative; those of ``default_errors`` where left out.
    draws
        How many there are.
    budget_s
        No new search begins after it, and one that is under way gets what is left of it.
    progress
        Called with searches done and searches planned.
    """
    began, facts, seed = time.perf_counter(), request.facts, request.seed
    widths: dict[Family, float] = default_errors(facts) | dict(errors or {})
    _check(widths, draws)
    search = _search_by_time(request, began + budget_s)
    chosen = find_plan(_by_time(request))  # what a job asks to be planned, which may be a plain plan
    moved = [family for family in FAMILIES if widths[family] > 0]
    planned = _drawn(widths, draws, seed)
    ends = [(family, end) for family in moved for end in _ends(widths[family])]
    total = len(planned) + len(ends)

    def run(sets: Sequence[Mapping[Family, float]], until_s: float, done: int) -> list[_Scenario]:
        out: list[_Scenario] = []
        for factors in sets:
            if out and time.perf_counter() - began > until_s:
                break
            out.append(_searched(facts, factors, chosen, search))
            if progress:
                progress(done + len(out), total)
        return out

    found = run(planned, DRAWS_SHARE * budget_s, 0)
    alone = run([{family: end} for family, end in ends], budget_s, len(planned))
    alone = alone[: len(alone) // 2 * 2]
    effects, draws_of, contenders = _judged(facts, chosen.plan, found, alone, moved, widths)
    return Robustness(
        chosen=chosen,
        errors=widths,
        seed=seed,
        asked=draws,
        draws=draws_of,
        effects=effects,
        skipped=tuple(moved[len(effects) :]),
        contenders=contenders,
        seconds=time.perf_counter() - began,
    )


def _search_by_time(request: SearchRequest, until_s: float) -> Callable[[Facts], Result]:
    """The request's search by time alone under drawn facts; each ends by ``until_s`` of the clock, or soon after."""
    by_time = _by_time(request.fastest())

    def search(drawn: Facts) -> Result:
        left_s = max(until_s - time.perf_counter(), LEAST_S)
        return find_plan(replace(by_time, facts=drawn, time_limit_s=min(by_time.time_limit_s, left_s)))

    return search


def _by_time(request: SearchRequest) -> SearchRequest:
    limit_s = min(request.time_limit_s, SEARCH_S)
    return replace(request, objective=TIME, hint=None, runners_up=False, time_limit_s=limit_s)


def _judged(
    facts: Facts,
    chosen: Plan,
    found: Sequence[_Scenario],
    alone: Sequence[_Scenario],
    moved: Sequence[Family],
    widths: Mapping[Family, float],
) -> tuple[tuple[FamilyEffect, ...], tuple[Draw, ...], tuple[Contender, ...]]:
    """Play every plan that any search found under everything that was drawn; effects, draws and contenders."""
    scenarios = [*found, *alone]
    plans = _distinct([chosen, *(s.plan for s in scenarios if s.plan is not None)])
    times = [play_plans([_under(plan, facts, s.facts) for plan in plans], s.facts) for s in scenarios]
    records = [_draw(s, row, chosen) for s, row in zip(scenarios, times, strict=True)]
    own = records[len(found) :]
    effects = tuple(_effect(f, widths[f], own[2 * i], own[2 * i + 1]) for i, f in enumerate(moved[: len(own) // 2]))
    return effects, tuple(records[: len(found)]), _contenders(plans, found, records, times)


def _check(widths: Mapping[Family, float], draws: int) -> None:
    if draws < 1:
        raise InputError(f"robust needs at least one draw, got {draws}")
    for family, error in widths.items():
        if family not in FAMILIES:
            raise InputError(f"no family '{family}'; known: {', '.join(FAMILIES)}")
        if not 0 <= error <= 3:
            raise InputError(f"error of {family}: a relative error lies between 0 and 3 (300 %), got {error:g}")


def _drawn(widths: Mapping[Family, float], draws: int, seed: int) -> list[dict[Family, float]]:
    """Factors of every draw; a family's column does not depend on which others have an error."""
    z = np.random.default_rng(seed).standard_normal((draws, len(FAMILIES)))
    spread = np.asarray([math.log1p(widths[family]) / NINETY for family in FAMILIES])
    return [dict(zip(FAMILIES, map(float, row), strict=True)) for row in np.exp(z * spread)]


def _ends(error: float) -> tuple[float, float]:
    return 1.0 / (1.0 + error), 1.0 + error


def _searched(
    facts: Facts, factors: Mapping[Family, float], chosen: Result, search: Callable[[Facts], Result]
) -> _Scenario:
    """The search under one set of factors; under unchanged facts it is the one that was made already."""
    drawn = scaled(facts, factors)
    if drawn is facts:
        return _Scenario(factors, facts, chosen.plan, chosen.iteration_s)
    try:
        result = search(drawn)
    except InputError:  # nothing fits, or nothing was found in time
        return _Scenario(factors, drawn, None, math.inf)
    return _Scenario(factors, drawn, result.plan, result.iteration_s)


def _under(plan: Plan, facts: Facts, drawn: Facts) -> Plan:
    """The plan as it would run under drawn facts: other responses need another KV budget, the rest stays."""
    return plan if drawn.workload == facts.workload else with_room(plan, drawn)


def _distinct(plans: Sequence[Plan]) -> list[Plan]:
    """Plans of different pools or layouts, the first of each."""
    first: dict[str, Plan] = {}
    for plan in plans:
        first.setdefault(layout_key(plan), plan)
    return list(first.values())


def _draw(scenario: _Scenario, times: Sequence[float | None], chosen: Plan) -> Draw:
    best = min(scenario.plan_s, *(t for t in times if t is not None), math.inf)
    plan = scenario.plan
    return Draw(
        factors=scenario.factors,
        best_s=best if math.isfinite(best) else None,
        chosen_s=times[0],
        placement="" if plan is None else plan.placement,
        same_placement=plan is not None and plan.placement == chosen.placement,
        same_layouts=plan is not None and layout_key(plan) == layout_key(chosen),
    )


def _effect(family: Family, error: float, faster: Draw, slower: Draw) -> FamilyEffect:
    low, high = faster.chosen_s, slower.chosen_s
    return FamilyEffect(family, error, faster, slower, 0.0 if low is None or high is None else abs(high / low - 1.0))


def _contenders(
    plans: Sequence[Plan], found: Sequence[_Scenario], records: Sequence[Draw], times: Sequence[Sequence[float | None]]
) -> tuple[Contender, ...]:
    """The chosen plan and every plan that won a draw, each over all draws; most wins first."""
    won = [layout_key(s.plan) for s in found if s.plan is not None]
    out = []
    for i, plan in enumerate(plans):
        wins = won.count(layout_key(plan))
        pairs = [(times[j][i], records[j].best_s) for j in range(len(found))]
        regrets = [t / best - 1.0 for t, best in pairs if t is not None and best is not None]
        if wins or i == 0:
            mean, worst = (sum(regrets) / len(regrets), max(regrets)) if regrets else (0.0, 0.0)
            out.append(Contender(plan, wins, len(found) - len(regrets), mean, worst))
    return tuple(sorted(out, key=lambda c: (-c.wins, c.worst_regret)))
