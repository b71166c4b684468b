"""Plans measured in turns, and again where the machine was disturbed. A visit is one run of one plan.

A machine's other work comes and goes, and so do its clocks. An iteration counts if the cores were as fast right before
and after it as they are alone, and a visit if enough of its iterations do and if it repeats; all is told without a look
at any prediction. How fast they are alone a profile says of itself: its prices hold for such cores. Not the fastest
visits count: of twelve to each of five plans on a shared machine one was far faster than what the others agreed on.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from executor.profiling.core_pace import SAME, free_pace_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from executor.run_config import RunConfig
    from executor.run_settings import JobFacts
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

CALM = 0.05
"""Visits whose medians lie so close to each other repeat: those of an idle machine do, to 1 to 5 %."""
LEAST = 5
"""Iterations that a visit needs to count; of fewer all."""
WARMUP = 5
AT_MOST = 2
"""So many times the wanted visits are made of a plan that does not come to rest."""

Visit = list["Timeline"]


@dataclass(frozen=True)
class Made:
    """Iterations of a visit; what the same steps on all cores took before each and after the last, seconds."""

    visit: Visit
    paces_s: tuple[float, ...]

    def at(self, pace_s: float) -> Visit:
        """Iterations with cores at this pace before and after."""
        same = [pace_s / (1.0 + SAME) <= pace <= (1.0 + SAME) * pace_s for pace in self.paces_s]
        return [t for t, before, after in zip(self.visit, same, same[1:], strict=False) if before and after]

    def counts_at(self, pace_s: float) -> Visit:
        """The same, or none where they are too few."""
        same = self.at(pace_s)
        return same if len(same) >= min(LEAST, len(self.visit)) else []


@dataclass(frozen=True)
class Kept:
    """Visits of a plan, how many were disturbed, and whether those kept were not: else the cores never came free."""

    visits: list[Visit]
    disturbed: int
    is_calm: bool


@dataclass(frozen=True)
class Visits:
    """What was kept of each plan, and the cores' pace then, seconds."""

    of: dict[str, Kept]
    pace_s: float


class PaceWatch:
    """Watches a run: the cores' pace around each iteration after warm-up."""

    def __init__(self, pace_s: Callable[[], float]) -> None:
        self._pace_s = pace_s
        self._paces_s: list[float] = []

    def __call__(self, iteration: int, _: Mapping[str, float]) -> None:
        if iteration >= WARMUP - 1:
            self._paces_s.append(self._pace_s())

    def made(self, timelines: Sequence[Timeline]) -> Made:
        """The visit, of all iterations of the run."""
        return Made(list(timelines[WARMUP:]), tuple(self._paces_s))


def visit(facts: JobFacts, plan: Plan, config: RunConfig, iterations: int, pace_s: Callable[[], float]) -> Made:
    """Iterations of one run of a plan, after warm-up, and the cores' pace around each."""
    from executor.run import run

    watch = PaceWatch(pace_s)
    with tempfile.TemporaryDirectory() as folder:
        return watch.made(run(facts, plan, config, folder, WARMUP + iterations, watch=watch))


def median_s(visit: Sequence[Timeline]) -> float:
    """Seconds of a visit's median iteration."""
    return float(np.median([t.iteration_s for t in visit]))


def calm(visits: Sequence[Visit]) -> list[Visit]:
    """The most visits that repeat one another, in the order that they were made; of as many the faster ones."""
    best: list[Visit] = []
    for fastest in sorted(median_s(visit) for visit in visits):
        alike = [visit for visit in visits if fastest <= median_s(visit) <= (1.0 + CALM) * fastest]
        best = alike if len(alike) > len(best) else best
    return best


def undisturbed(made: Sequence[Made], pace_s: float) -> list[Visit]:
    """Visits that count, less their iterations that do not, given what the steps take on cores that are free."""
    return calm([visit for one in made if (visit := one.counts_at(pace_s))])


def visit_until_calm(
    plans: Mapping[str, Plan], wanted: int, make: Callable[[Plan], Made], pace_s: float | None = None
) -> Visits:
    """Visits of every plan that count, ``wanted`` of each where the machine lets it.

    All plans are visited in turn, so that a disturbance does not hit one of them alone. Where none counts those that
    repeat are kept.

    Parameters
    ----------
    plans, wanted, make
        What to visit, how often, and how.
    pace_s
        Of free cores; by default what ``free_pace_s`` makes of all looks at them.
    """
    made: dict[str, list[Made]] = {name: [] for name in plans}

    def free_s() -> float:
        looks = [pace for some in made.values() for one in some for pace in one.paces_s]
        return pace_s or (free_pace_s(looks) if looks else 1.0)

    for _ in range(AT_MOST * wanted):
        for name, plan in plans.items():
            if len(undisturbed(made[name], free_s())) < wanted:
                made[name].append(make(plan))
    return Visits({name: _kept(some, free_s()) for name, some in made.items()}, free_s())


def _kept(made: Sequence[Made], pace_s: float) -> Kept:
    count = undisturbed(made, pace_s)
    return Kept(count or calm([one.visit for one in made]), len(made) - len(count), bool(count))
