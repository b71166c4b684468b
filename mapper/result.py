"""What a search returns: the plan, its predicted timeline, and how surely it is the best."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from simulator.play.simulate import simulate

if TYPE_CHECKING:
    import pandas as pd

    from mapper.model.solver import Status
    from mapper.objective import Objective
    from simulator.facts import Facts
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

OPTIMAL_GAP = 1e-4
"""A plan counts as optimal when its gap, rounding included, is at most this."""


@dataclass(frozen=True)
class RunnerUp:
    """The best plan of another placement, or nearly: no plan of the same search is below ``bound_s``, where it is.

    ``timeline`` is what ``simulate`` said of the plan where that was asked already: whoever shows it need not again.
    """

    placement: str
    iteration_s: float
    plan: Plan
    bound_s: float | None = None
    timeline: Timeline | None = field(default=None, compare=False, repr=False)

    def timeline_on(self, facts: Facts) -> Timeline:
        """What ``simulate`` says of the plan; ``facts`` are those of the search that found it."""
        return self.timeline or simulate(self.plan, facts)


@dataclass(frozen=True)
class Result:
    """Outcome of one search.

    Parameters
    ----------
    status
        ``optimal`` (gap at most ``tolerance``) or ``feasible``; infeasible problems raise ``InfeasibleError``.
    timeline
        What ``simulate`` says of ``plan``; its ``iteration_s`` is the objective unless another is named.
    bound_s
        No plan of the searched space is faster, rounding included; with an objective that weighs GPUs, none on at
        most as many GPUs.
    gap
        ``(value - value_bound) / value``, a fraction; for ``gpus`` that of the time on them if it is larger.
    num_priced, num_candidates
        Configurations priced, and those left after safe pruning.
    objective, value_bound
        What was minimised, and what no plan of the searched space is below; for ``time`` the ``bound_s``.
    tolerance
        The gap up to which this counts as optimal: ``OPTIMAL_GAP``, or what a plain plan may cost where one was taken.
    plain
        The best plain plan (``candidates.plain``), which may be this one; ``None`` if none was found or looked for.
    alternatives
        Other plans that differ in something that matters (``search.alternatives``), fastest first, where asked for.
    faster
        The fastest plan, where a plain one was taken in its place.
    notes
        What of the request was ignored, one line each.
    open_because
        What keeps the gap open beside the solver's time, one line each.
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
    objective: Objective
    value_bound: float
    tolerance: float = OPTIMAL_GAP
    plain: RunnerUp | None = None
    faster: RunnerUp | None = None
    alternatives: tuple[RunnerUp, ...] = ()
    notes: tuple[str, ...] = ()
    open_because: tuple[str, ...] = ()

    @property
    def iteration_s(self) -> float:
        return self.timeline.iteration_s

    def to_pandas(self) -> pd.DataFrame:
        """Every known plan, the best first: ``which``, ``placement``, ``num_gpus``, ``iteration_s``, ``slower``.

        ``which`` is ``best``, ``fastest``, ``plain``, ``alternative`` or ``runner-up``; ``slower`` is the time over
        the best plan's, less one.
        """
        import pandas as pd

        named: list[tuple[str, RunnerUp | None]] = [("fastest", self.faster), ("plain", self.plain)]
        named += [("alternative", r) for r in self.alternatives] + [("runner-up", r) for r in self.runners_up]
        known = [("best", self.as_rival)]
        known += [(which, rival) for which, rival in named if rival is not None]
        rows = [
            {
                "which": which,
                "placement": rival.placement,
                "num_gpus": rival.plan.num_gpus,
                "iteration_s": rival.iteration_s,
                "slower": rival.iteration_s / self.iteration_s - 1,
            }
            for which, rival in known
        ]
        return pd.DataFrame(rows)

    @property
    def as_rival(self) -> RunnerUp:
        """The plan, to stand beside another one."""
        return RunnerUp(self.plan.placement, self.iteration_s, self.plan, timeline=self.timeline)

    @property
    def value(self) -> float:
        """What was minimised: s, GPU-s, currency or GPUs (``Objective.value``)."""
        return self.objective.value(self.iteration_s, self.plan.gpus)


def best_of(results: tuple[Result, ...]) -> Result:
    """The best of searches that share no plan, with what is proven of all of them together."""
    best = min(results, key=lambda r: (r.value, r.iteration_s))
    if len(results) == 1:
        return best
    least = min(r.value_bound for r in results)
    bound_s = min(r.bound_s for r in results)
    gap = max((best.value - least) / best.value, best.gap, _open_in_time(best, results))
    others = [r.as_rival for r in results if r is not best]
    rivals = (*others, *(rival for r in results for rival in r.runners_up))
    plain = [r.plain for r in results if r.plain is not None]
    return replace(
        best,
        status="optimal" if gap <= OPTIMAL_GAP else "feasible",
        bound_s=min(bound_s, best.iteration_s),
        gap=gap,
        value_bound=least,
        seconds=sum(r.seconds for r in results),
        num_priced=sum(r.num_priced for r in results),
        num_candidates=sum(r.num_candidates for r in results),
        runners_up=tuple(sorted(rivals, key=lambda r: (r.iteration_s, r.placement))),
        alternatives=tuple(
            sorted((*others, *(a for r in results for a in r.alternatives)), key=lambda r: r.iteration_s)
        ),
        plain=min(plain, key=lambda r: r.iteration_s, default=None),
        notes=tuple(dict.fromkeys(note for r in results for note in r.notes)),
        open_because=tuple(dict.fromkeys(line for r in results for line in r.open_because)),
    )


def preferred(result: Result, facts: Facts, most: float) -> Result:
    """The result with its plain plan in place of the fastest, where that one's iteration is at most ``most`` longer."""
    plain = result.plain
    if plain is None or plain.plan == result.plan or plain.iteration_s > (1.0 + most) * result.iteration_s:
        return result
    gap = (plain.iteration_s - result.bound_s) / plain.iteration_s
    tolerance = max(most, OPTIMAL_GAP)
    rivals = [r for r in result.runners_up if r.placement != plain.placement]
    return replace(
        result,
        status="optimal" if gap <= tolerance else "feasible",
        plan=plain.plan,
        timeline=plain.timeline_on(facts),
        gap=gap,
        tolerance=tolerance,
        runners_up=tuple(rivals),
        faster=result.as_rival,
    )


def _open_in_time(best: Result, results: tuple[Result, ...]) -> float:
    """With the fewest GPUs asked for: how much faster a plan on as few of them may be that a search left open."""
    if best.objective.goal != "gpus":
        return 0.0
    least_s = min(r.bound_s for r in results if r.value_bound <= best.value)
    return max(best.iteration_s - least_s, 0.0) / best.iteration_s
