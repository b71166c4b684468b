"""What a search returns: the plan, its predicted timeline, and how surely it is the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mapper.solver import Status
    from simulator.plan import Plan
    from simulator.timeline import Timeline

OPTIMAL_GAP = 1e-4
"""A plan counts as optimal when its gap, rounding included, is at most this."""


@dataclass(frozen=True)
class RunnerUp:
    """The best plan of another placement."""

    placement: str
    iteration_s: float
    plan: Plan


@dataclass(frozen=True)
class Result:
    """Outcome of one search.

    Parameters
    ----------
    status
        ``optimal`` (gap at most ``OPTIMAL_GAP``) or ``feasible``; infeasible problems raise ``InfeasibleError``.
    timeline
        What ``simulate`` says of ``plan``; its ``iteration_s`` is the objective.
    bound_s
        No plan of the searched space is faster, rounding included.
    gap
        ``(iteration_s - bound_s) / iteration_s``, a fraction.
    num_priced, num_candidates
        Configurations priced, and those left after safe pruning.
    """

    status: Status
    plan: Plan
    timeline: Timeline
    bound_s: float
    gap: float
    seed: int
    seconds: float
    num_priced: int
    num_candidates: int
    runners_up: tuple[RunnerUp, ...]

    @property
    def iteration_s(self) -> float:
        return self.timeline.iteration_s
