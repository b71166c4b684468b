"""Solve an instance with CP-SAT: one deterministic search, with a proven bound."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Literal

from mapper.deadline import TimeUpError
from mapper.model.cp_sat import cp_model
from mapper.model.objective import build_iteration_time
from mapper.model.rules import RULES
from mapper.model.variables import Choice, Variables, extract, make_variables

if TYPE_CHECKING:
    from mapper.model.instance import Instance

Status = Literal["optimal", "feasible", "infeasible"]

STOP_EVERY_S = 0.05
"""Seconds between two requests that a solver stop."""


@dataclass(frozen=True)
class Solution:
    """The solver's answer: the choice (none if infeasible), its ticks, and a proven lower bound in ticks."""

    status: Status
    choice: Choice | None
    objective_ticks: int
    bound_ticks: int
    seconds: float


def solve(
    instance: Instance,
    *,
    seed: int,
    time_limit_s: float,
    most_ticks: int | None = None,
    workers: int = 1,
) -> Solution:
    """Find the best choice of ``instance`` and prove how good it is.

    ``most_ticks``: only choices of at most so many are looked for.
    The same instance, seed and number of workers give the same answer when the search ends before its limit.
    Raises ``TimeUpError`` if time runs out with nothing known.
    """
    began = time.perf_counter()
    if not any(all(instance.sizes[group] for group in partition) for partition in instance.partitions):
        return Solution("infeasible", None, 0, 0, time.perf_counter() - began)
    model, v = build_model(instance)
    if most_ticks is not None:
        model.add(v.makespan <= most_ticks)
    solver = configured(seed, time_limit_s, workers)
    code = solved(solver, model)
    seconds = time.perf_counter() - began
    if code == cp_model.INFEASIBLE:
        return Solution("infeasible", None, 0, 0, seconds)
    if code not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise TimeUpError(time_limit_s)
    bound = math.floor(solver.best_objective_bound + 1e-6)  # the bound is a float, the objective whole
    ticks = round(solver.objective_value)
    if code == cp_model.FEASIBLE:
        bound = min(max(bound, instance.floor_ticks), ticks)
    status: Status = "optimal" if code == cp_model.OPTIMAL else "feasible"
    return Solution(status, extract(solver, v), ticks, bound, seconds)


def build_model(instance: Instance) -> tuple[cp_model.CpModel, Variables]:
    """The whole model of an instance: its rules, and the iteration's time as what is minimised."""
    model = cp_model.CpModel()
    v = make_variables(model, instance)
    for rule in RULES:
        rule.build(model, instance, v)
    build_iteration_time(model, instance, v)
    return model, v


def solved(solver: cp_model.CpSolver, model: cp_model.CpModel) -> cp_model.CpSolverStatus:
    """Solve in a thread of its own while this one waits, so that Ctrl-C (``KeyboardInterrupt``) ends it at once.

    A main thread inside the solver hears of a signal only when that returns, up to its time limit later; and a solver
    that takes the signal itself hands back half an answer as if its time were up.
    """
    answer: Future[cp_model.CpSolverStatus] = Future()

    def work() -> None:
        if answer.set_running_or_notify_cancel():  # unless the signal came before
            try:
                answer.set_result(solver.solve(model))
            except BaseException as error:
                answer.set_exception(error)

    try:
        Thread(target=work, daemon=True).start()
        return answer.result()
    except BaseException:
        while not (answer.cancel() or answer.done()):  # again until it is heard: the solver may be about to start
            solver.stop_search()
            wait([answer], timeout=STOP_EVERY_S)
        raise


def configured(seed: int, time_limit_s: float, workers: int) -> cp_model.CpSolver:
    """A solver that gives the same answer to the same question."""
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = workers
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.catch_sigint_signal = False
    solver.parameters.interleave_search = workers > 1  # makes several workers deterministic
    return solver
