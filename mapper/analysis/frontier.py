"""The frontier of iteration time against GPUs: what each further pool of GPUs buys.

One instance is priced once; each budget solves it with fewer GPUs allowed. An iteration never gets longer with more
GPUs allowed, so budgets between two that are equally fast need no solving.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from mapper.deadline import Deadline, TimeUpError
from mapper.model.choices import gpus_of, ticks_of
from mapper.model.instance import make_instance
from mapper.result import OPTIMAL_GAP
from mapper.search.budgets import Search, is_never
from mapper.search.infeasible import explain_infeasible
from mapper.search.place import build_plan
from simulator.play.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from mapper.model.instance import Instance
    from mapper.model.variables import Choice
    from mapper.objective import Objective
    from mapper.problem import Problem
    from mapper.request import SearchRequest
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline


SHARE_OF_LISTED = 0.5
"""Share of the time for the listed degrees where others are left out; what is not used goes to the bounds."""

PRICING_SHARE = 0.8
"""Share of the time limit in which layouts are priced, before any budget is solved."""


@dataclass(frozen=True)
class FrontierPoint:
    """The fastest plan on a number of GPUs; no other point has fewer GPUs and is as fast.

    Parameters
    ----------
    num_gpus
        GPUs that the plan uses.
    up_to_gpus
        The plan is the best known on budgets from ``num_gpus`` up to this one: the last pool size before the next
        point's.
    bound_s
        No plan on at most ``up_to_gpus`` GPUs is faster, rounding and degrees that are not listed included.
    listed_bound_s
        The same for plans in the degrees that are listed alone; above ``bound_s`` only where others are left out.
    gap
        ``(iteration_s - bound_s) / iteration_s``, a fraction.
    proven
        The gap is closed and, for the first point, it is proven that no smaller budget holds a plan.
    cost_per_iteration
        In the currency of the price; ``None`` without one.
    """

    num_gpus: int
    up_to_gpus: int
    plan: Plan
    timeline: Timeline
    iteration_s: float
    bound_s: float
    listed_bound_s: float
    gap: float
    proven: bool
    cost_per_iteration: float | None


@dataclass(frozen=True)
class Step:
    """A stretch of budgets with one best choice; ticks, and the proven bound at the last of its budgets.

    ``listed_ticks``: the bound of the degrees that are listed alone.
    """

    choice: Choice
    ticks: int
    last_budget: int
    bound_ticks: int
    listed_ticks: int


def frontier(request: SearchRequest, progress: Callable[[int, int], None] | None = None) -> tuple[FrontierPoint, ...]:
    """The fastest plan on at most as many GPUs as each pool size has; fewest GPUs first, each one faster.

    Parameters
    ----------
    request
        What is searched. When its time limit is over what is known is returned; points that are not ``proven`` may have
        better plans. Of its objective the prices count alone: what an iteration costs is added.
    progress
        Called with the budgets that are settled and how many there are.

    Raises
    ------
    InputError
        The request allows several modes.
    TimeUpError
        Time was up before a plan was found.
    InfeasibleError
        Not even all GPUs hold a plan.
    """
    deadline = Deadline.after(request.time_limit_s)
    problem = request.one_length.fastest().problem(request.mode)
    x = make_instance(problem, deadline=deadline.share(PRICING_SHARE))
    budgets = sorted({n for sizes in problem.sizes.values() for n in sizes if n < x.budget} | {x.budget})
    relaxed = x.relaxed()
    search = Search(x, request.seed, deadline, request.workers)
    listed = search if relaxed is None else search.with_share(SHARE_OF_LISTED)
    steps, none_below = trace(listed, budgets, progress or (lambda done, total: None))
    if not steps:
        if none_below and x.unpriced_ticks is None:
            raise explain_infeasible(problem, deadline)
        raise TimeUpError(request.time_limit_s)
    if relaxed is not None:
        steps, none_below = with_left_out(replace(search, x=relaxed), steps, budgets, none_below)
    if x.unpriced_ticks is not None:
        none_below, most = False, x.unpriced_ticks
        steps = [
            replace(s, bound_ticks=min(s.bound_ticks, most), listed_ticks=min(s.listed_ticks, most)) for s in steps
        ]
    price = request.objective if request.objective.prices else None
    points = [_point(x, problem, step, price, none_below or i > 0) for i, step in enumerate(steps)]
    return tuple(points)


def trace(search: Search, budgets: list[int], progress: Callable[[int, int], None]) -> tuple[list[Step], bool]:
    """The best choice by stretches of ascending ``budgets``, and whether no budget before the first holds any.

    The largest budget is solved first, whatever the time, then the middle of what is open, and so on, each in its
    share of what is left; what is open then is gone over again. When time runs out, the shape of the whole is known.
    """
    known: list[tuple[int, Choice] | None] = [None] * len(budgets)
    bound = [0] * len(budgets)
    order = _order(len(budgets))
    for turn, i in enumerate([*order, *order]):
        progress(sum(_settled(*pair) for pair in zip(known, bound, strict=True)), len(budgets))
        if search.over and turn > 0:
            break
        if _settled(known[i], bound[i]):
            continue
        start = known[i]
        turns_left = len(order) - turn % len(order)
        choice, proven = search.with_share(1 / turns_left).at(budgets[i], start[1] if start else None)
        bound[: i + 1] = [max(b, proven) for b in bound[: i + 1]]
        if choice is not None:
            _spread(search.x, known, budgets, choice)
    progress(len(budgets), len(budgets))
    return _steps(known, bound, budgets)


def with_left_out(search: Search, steps: list[Step], budgets: list[int], none_below: bool) -> tuple[list[Step], bool]:
    """``steps`` with bounds that cover the degrees that are not listed; ``search`` is of the relaxed instance.

    What is proven for a budget bounds every smaller one, so the largest comes first. Also whether no budget before the
    first step's holds a plan in any degree.
    """
    out: list[Step] = []
    bound = 0
    for i, step in enumerate(reversed(steps)):
        _, proven = search.with_share(1 / (len(steps) + 1 - i)).at(step.last_budget, step.choice)
        bound = max(bound, 0 if is_never(proven) else proven)
        out.insert(0, replace(step, bound_ticks=min(step.bound_ticks, bound)))
    before = [n for n in budgets if n < gpus_of(steps[0].choice)]
    if none_below and before:
        none_below = is_never(search.at(before[-1], None)[1])
    return out, none_below


def _order(count: int) -> list[int]:
    """The last position, then the middles of what is left, ever finer."""
    out, open_ranges = [count - 1], [(0, count - 2)]
    while open_ranges:
        low, high = open_ranges.pop(0)
        if low <= high:
            middle = (low + high) // 2
            out.append(middle)
            open_ranges += [(low, middle - 1), (middle + 1, high)]
    return out


def _settled(known: tuple[int, Choice] | None, bound: int) -> bool:
    """Whether the best choice of a budget is known, or that it holds none."""
    return is_never(bound) if known is None else bound >= known[0]


def _spread(instance: Instance, known: list[tuple[int, Choice] | None], budgets: list[int], choice: Choice) -> None:
    """Note ``choice`` for every budget that holds it and knows nothing better."""
    ticks, used = ticks_of(instance, choice), gpus_of(choice)
    for i, budget in enumerate(budgets):
        best = known[i]
        if budget >= used and (best is None or (ticks, used) < (best[0], gpus_of(best[1]))):
            known[i] = (ticks, choice)


def _steps(known: list[tuple[int, Choice] | None], bound: list[int], budgets: list[int]) -> tuple[list[Step], bool]:
    starts = [
        i for i, now in enumerate(known) if now is not None and (i == 0 or (p := known[i - 1]) is None or now[0] < p[0])
    ]
    if not starts:
        return [], is_never(bound[-1])
    steps = []
    for i, after in pairwise([*starts, len(budgets)]):
        now = known[i]
        assert now is not None, "a stretch starts where something is known"
        steps.append(Step(now[1], now[0], budgets[after - 1], bound[after - 1], bound[after - 1]))
    return steps, starts[0] == 0 or is_never(bound[starts[0] - 1])


def _point(
    instance: Instance, problem: Problem, step: Step, price: Objective | None, none_below: bool
) -> FrontierPoint:
    plan = build_plan(instance, step.choice, problem)
    timeline = simulate(plan, problem.facts)
    seconds = timeline.iteration_s
    bound_s, listed_bound_s = (
        min(max(ticks * instance.tick_s - instance.rounding_s, 0.0), seconds)
        for ticks in (step.bound_ticks, step.listed_ticks)
    )
    gap = (seconds - bound_s) / seconds
    return FrontierPoint(
        num_gpus=plan.num_gpus,
        up_to_gpus=step.last_budget,
        plan=plan,
        timeline=timeline,
        iteration_s=seconds,
        bound_s=bound_s,
        listed_bound_s=listed_bound_s,
        gap=gap,
        proven=gap <= OPTIMAL_GAP and none_below,
        cost_per_iteration=None if price is None else price.cost(seconds, plan.gpus),
    )
