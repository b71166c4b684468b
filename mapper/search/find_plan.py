"""find_plan(request) -> Result: the mapper's one public verb."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from mapper.deadline import Deadline, TimeUpError
from mapper.model.choices import gpus_of, ticks_of, with_budget
from mapper.model.instance import Instance, make_instance
from mapper.progress import tell
from mapper.result import OPTIMAL_GAP, Result, RunnerUp, preferred
from mapper.search.alternatives import alternatives
from mapper.search.best import best_choice
from mapper.search.budgets import Found, Search, fewest_gpus_within, least_gpu_time
from mapper.search.draft_lengths import best_length, draft_lengths, with_drafts
from mapper.search.hint import choice_of_plan
from mapper.search.infeasible import explain_infeasible
from mapper.search.narrow import fastest_instance
from mapper.search.place import build_plan, straddling
from mapper.search.plain import best_plain
from mapper.search.rivals import as_rival, runners_up
from mapper.search.tie_breaking import tidy
from profiles.errors import InfeasibleError, InputError
from simulator.play.simulate import simulate

if TYPE_CHECKING:
    from mapper.model.solver import Status
    from mapper.model.variables import Choice
    from mapper.objective import Objective
    from mapper.problem import Problem
    from mapper.request import SearchRequest
    from simulator.plan.plan import Plan

BESIDE_NEIGHBOURS = (
    "the bound counts calls alone, the plan's time also what ranks that share this host's cores cost each other"
)
NOT_PRICED = (
    "time was up before all layouts were priced; the bound counts what the others could gain at most: give a longer "
    "time limit (--time-limit)"
)
NOT_SEARCHED = "time was up before another schedule that the job allows had a plan, so nothing is known to bound it"
LEAST_S = 1.0
"""Seconds that each mode is searched at least."""

PRICING_SHARE = 0.7
"""Share of the time limit in which layouts are priced; what is left then is for the best of those, which takes about a
quarter of the time that pricing took (10 of 37 s of CPU on 16,384 GPUs)."""


def find_plan(request: SearchRequest) -> Result:
    """The plan with the shortest iteration, or the best under another objective, with a proven bound.

    Raises
    ------
    InfeasibleError
        Nothing fits; says which role needs what and the fewest GPUs that would do, or which pins conflict.
    TimeUpError
        The time limit was up before a plan was found.
    """
    deadline = Deadline.after(request.time_limit_s)
    results: list[Result] = []
    refusal: InfeasibleError | None = None
    time_up = False
    searches = [(tokens, mode) for tokens in draft_lengths(request.facts) for mode in request.modes]
    for i, (tokens, mode) in enumerate(searches):
        left_s = deadline.left_s / (len(searches) - i)
        share = replace(request, facts=request.facts.drafting(tokens), time_limit_s=max(left_s, LEAST_S))
        try:
            results.append(with_drafts(_find(share.problem(mode), share), tokens))
        except InfeasibleError as error:
            refusal = refusal or error
        except TimeUpError:
            time_up = True
    if not results:
        if time_up:
            raise TimeUpError(request.time_limit_s)
        assert refusal is not None, "every mode found a plan or said why not"
        raise refusal
    best = best_length(results)
    if time_up:
        why = (*best.open_because, NOT_SEARCHED)
        best = replace(best, status="feasible", bound_s=0.0, value_bound=0.0, gap=1.0, open_because=why)
    most = request.options.prefer_plain
    return best if most is None else preferred(best, request.facts, most)


# Long by what a result says of a search: a line for each.
def _find(problem: Problem, request: SearchRequest) -> Result:
    """The best plan of one mode."""
    began, facts, objective = time.perf_counter(), problem.facts, request.objective
    weight, unit = objective.weights(facts.device_types)
    deadline = Deadline.after(request.time_limit_s)
    instance = _instance(problem, request, weight, deadline)
    known, notes = _known(instance, request.hint)
    found = _search(instance, objective, Search(instance, request.seed, deadline, request.workers), known)
    if found is None:
        raise _nothing_found(problem, instance, objective, request.seed, deadline)
    found, left_s = _with_unpriced(instance, objective, found), max(deadline.left_s, LEAST_S)
    choice = tidy(instance, found.choice, found.ticks, left_s, request.workers)
    ticks = ticks_of(instance, choice)
    plan = build_plan(instance, choice, problem)
    timeline = simulate(plan, facts)
    tell("looking at plain plans and other placements", best_s=timeline.iteration_s)
    unsure_s, why = _drift(timeline.iteration_s, ticks * instance.tick_s, instance.rounding_s)
    bound = min(max(found.bound_ticks * instance.tick_s - unsure_s, 0.0), timeline.iteration_s)
    value = objective.value(timeline.iteration_s, plan.gpus)
    least = min(_least_value(instance, objective, found, bound, unit), value)
    gap = max((value - least) / value, _tail(objective, timeline.iteration_s, bound))
    status: Status = "optimal" if gap <= OPTIMAL_GAP else "feasible"
    ours = RunnerUp(plan.placement, timeline.iteration_s, plan, timeline=timeline)
    plain = _plain(instance, problem, choice, ours, request, deadline)
    more, others = _beside(instance, problem, choice, request, deadline)
    return Result(
        status=status,
        plan=plan,
        timeline=timeline,
        bound_s=bound,
        gap=gap,
        seed=request.seed,
        seconds=time.perf_counter() - began,
        num_priced=sum(t.num_priced for t in instance.tables.values()),
        num_candidates=instance.num_candidates,
        runners_up=others,
        objective=objective,
        value_bound=least,
        plain=plain,
        alternatives=more,
        notes=(*notes, *straddling(plan, facts)),
        open_because=(*why, *_unproven(instance)) if status == "feasible" else (),
    )


def _instance(problem: Problem, request: SearchRequest, weight: dict[str, int], deadline: Deadline) -> Instance:
    """The priced tables of a problem; those of the fastest plan alone where nothing else is asked for."""
    priced_until = deadline.share(PRICING_SHARE)
    if request.objective.goal == "time" and request.top == 1:
        instance = fastest_instance(problem, priced_until)
    else:
        instance = make_instance(problem, deadline=priced_until)
    return replace(instance, weight=weight, budget=sum(weight[k] * n for k, n in problem.gpus.items()))


def _unproven(instance: Instance) -> tuple[str, ...]:
    """What in an instance keeps its best plan from being proven."""
    beside = () if instance.neighbours is None else (BESIDE_NEIGHBOURS,)
    return beside if instance.unpriced_ticks is None else (*beside, NOT_PRICED)


def _beside(
    instance: Instance, problem: Problem, best: Choice, request: SearchRequest, deadline: Deadline
) -> tuple[tuple[RunnerUp, ...], tuple[RunnerUp, ...]]:
    """Alternatives in the best plan's placement, and the best plans of others; none unless they are asked for."""
    more: tuple[RunnerUp, ...] = ()
    others: tuple[RunnerUp, ...] = ()
    if request.top > 1:
        found = alternatives(instance, best, request.top - 1, request.seed, deadline, request.workers)
        more = tuple(as_rival(instance, problem, other) for other in found)
    if request.runners_up:
        by_time = request.objective.goal == "time"
        on_as_many = instance if by_time else with_budget(instance, instance.spent(best.pools))
        others = runners_up(on_as_many, problem, best, request, deadline)
    return more, others


def _plain(
    instance: Instance, problem: Problem, best: Choice, ours: RunnerUp, request: SearchRequest, deadline: Deadline
) -> RunnerUp | None:
    """The best plain plan, ``ours`` where the best of all is plain; ``None`` where none is found or looked for."""
    if request.objective.goal != "time" or request.options.prefer_plain is None:
        return None
    choice = best_plain(instance, problem, request.seed, deadline, best, request.workers)
    if choice is None or choice == best:
        return None if choice is None else ours
    return as_rival(instance, problem, choice)


def _drift(simulated_s: float, searched_s: float, rounding_s: float) -> tuple[float, tuple[str, ...]]:
    """How far the search's prices may be off the simulator's, in seconds, and a line about it if that is a fault.

    They come from the same functions, so beyond rounding they never differ; if they do, the plan is worth what the
    simulator says, and the bound gives way by as much.
    """
    drift_s = abs(simulated_s - searched_s)
    if drift_s <= rounding_s + 1e-9 * simulated_s:
        return rounding_s, ()
    text = (
        f"a fault of hybridmap's: the search priced this plan at {searched_s:,.6g} s, the simulator at "
        f"{simulated_s:,.6g} s; the gap counts the difference; please report it with the job"
    )
    warnings.warn(text, RuntimeWarning, stacklevel=3)
    return rounding_s + drift_s, (text,)


def _search(instance: Instance, objective: Objective, search: Search, known: Choice | None) -> Found | None:
    """The best choice under the objective; ``None`` if there is none."""
    relaxed = instance.relaxed()
    if relaxed is not None:
        return _with_left_out(instance, relaxed, objective, search, known)
    return _listed(instance, objective, search, known)


def _with_left_out(
    instance: Instance, relaxed: Instance, objective: Objective, search: Search, known: Choice | None
) -> Found | None:
    """The best listed choice, with bounds that cover the degrees that are not listed."""
    found = _listed(instance, objective, search, known)
    if found is None:
        return None
    within = with_budget(relaxed, instance.spent(found.choice.pools)) if objective.goal == "gpus" else relaxed
    sure = _listed(within, objective, replace(search, x=within), found.choice)
    if sure is None:  # the known choice fits, so this does not happen
        return replace(found, bound_ticks=0, least=0, floor_ticks=0)
    return replace(
        found,
        bound_ticks=min(found.bound_ticks, sure.bound_ticks),
        least=min(found.least, sure.least),
        floor_ticks=min(found.floor_ticks, sure.floor_ticks),
    )


def _with_unpriced(instance: Instance, objective: Objective, found: Found) -> Found:
    """``found`` with bounds that cover the candidates that time did not suffice to price, on any number of GPUs."""
    if (ticks := instance.unpriced_ticks) is None:
        return found
    one = min(instance.weight.values())  # what a plan on a single GPU counts
    return replace(
        found,
        bound_ticks=min(found.bound_ticks, ticks),
        least=min(found.least, one if objective.goal == "gpus" else ticks * one),
        floor_ticks=min(found.floor_ticks, ticks),
    )


def _listed(instance: Instance, objective: Objective, search: Search, known: Choice | None) -> Found | None:
    """The best choice of the listed degrees under the objective; ``None`` if there is none."""
    if objective.goal in ("throughput_per_gpu", "cost"):
        return least_gpu_time(search, known)
    if objective.goal == "gpus":
        return fewest_gpus_within(search, _target_ticks(instance, objective), known)
    left_s = max(search.deadline.left_s, LEAST_S)
    choice, solution = best_choice(instance, search.seed, left_s, known, workers=search.workers)
    bound = solution.bound_ticks
    return None if choice is None else Found(choice, solution.objective_ticks, bound, bound, bound)


def _target_ticks(instance: Instance, objective: Objective) -> int:
    """Most ticks of an iteration that ends in time whatever its rounding."""
    if objective.target_iteration_s is None:
        raise InputError("the objective gpus needs a target_iteration_s")
    return math.floor((objective.target_iteration_s - instance.rounding_s) / instance.tick_s)


def _least_value(instance: Instance, objective: Objective, found: Found, bound_s: float, unit: float) -> float:
    """A value that no plan is below, rounding of durations included."""
    if objective.goal == "time":
        return bound_s
    if objective.goal == "gpus":
        return float(found.least)
    surely = max(1.0 - instance.rounding_s / max(found.floor_ticks * instance.tick_s, instance.tick_s), 0.0)
    return found.least * instance.tick_s * surely * unit


def _tail(objective: Objective, iteration_s: float, bound_s: float) -> float:
    """For the fewest GPUs, the gap of the time on those; it is not proven the best while either gap is open."""
    return (iteration_s - bound_s) / iteration_s if objective.goal == "gpus" else 0.0


def _known(instance: Instance, hint: Plan | None) -> tuple[Choice | None, tuple[str, ...]]:
    """The choice that a hint stands for, or none and a note of why."""
    if hint is None:
        return None, ()
    choice = choice_of_plan(instance, hint)
    if not isinstance(choice, str):
        return choice, ()
    late = "" if instance.unpriced_ticks is None else ", or time was up before they were priced"
    return None, (f"the hint is ignored: {choice}{late}",)


def _nothing_found(
    problem: Problem, instance: Instance, objective: Objective, seed: int, deadline: Deadline
) -> InputError:
    """Why there is no plan: the target is too short, or nothing fits."""
    if instance.unpriced_ticks is not None:
        return TimeUpError()
    if objective.goal != "gpus":
        return explain_infeasible(problem, deadline)
    choice, bound = Search(instance, seed, Deadline.after(max(deadline.left_s, LEAST_S))).at(instance.budget, None)
    if choice is None:
        return explain_infeasible(problem, deadline)
    fastest_s = simulate(build_plan(instance, choice, problem), problem.facts).iteration_s
    return InfeasibleError(
        f"no plan ends an iteration within {objective.target_iteration_s:,g} s: the fastest on all "
        f"{problem.num_gpus:,} GPUs takes {fastest_s:,.2f} s (on {gpus_of(choice):,}), and none less than "
        f"{bound * instance.tick_s:,.2f} s; give a longer target_iteration_s or more nodes"
    )
