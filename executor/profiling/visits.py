"""Plans measured in turns, and again where the machine was disturbed. A visit is one run of one plan.

A machine's other work comes and goes, and so do its clocks. A visit counts if the cores were about as fast before and
after its iterations as they were at their fastest, and if it repeats; both are told without a look at any prediction.
Not the fastest visits count: of twelve to each of five plans on a shared machine one was far faster than what the
others agreed on.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from executor.run_config import RunConfig
    from executor.run_settings import JobFacts
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

CALM = 0.05
"""Visits whose medians lie so close to each other repeat: those of an idle machine do, to 1 to 5 %."""
SLOWED = 0.12
"""Cores that take so much longer than at their fastest are disturbed: idle ones stay within 9 %, others take 80 %."""
WARMUP = 5
AT_MOST = 2
"""So many times the wanted visits are made of a plan that does not come to rest."""

Visit = list["Timeline"]


@dataclass(frozen=True)
class Made:
    """Iterations of a visit, and what the same steps on all cores took then, at least before and after, seconds."""

    visit: Visit
    paces_s: tuple[float, ...]


@dataclass(frozen=True)
class Kept:
    """Visits of a plan, how many were disturbed, and whether those kept were not: else the cores never came free."""

    visits: list[Visit]
    disturbed: int
    is_calm: bool


def visit(facts: JobFacts, plan: Plan, config: RunConfig, iterations: int, pace_s: Callable[[], float]) -> Made:
    """Iterations of one run of a plan, after warm-up, and the cores' pace before and after these."""
    from executor.run import run

    paces_s: list[float] = []

    def look(iteration: int, _: Mapping[str, float]) -> None:
        if iteration in (WARMUP - 2, WARMUP + iterations - 1):  # one more fills the caches again
            paces_s.append(pace_s())

    with tempfile.TemporaryDirectory() as folder:
        timelines = run(facts, plan, config, folder, WARMUP + iterations, watch=look)
    return Made(list(timelines[WARMUP:]), tuple(paces_s))


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


def undisturbed(made: Sequence[Made], fastest_s: float) -> list[Visit]:
    """Visits that count, given what those steps take on idle cores."""
    return calm([one.visit for one in made if max(one.paces_s) <= (1.0 + SLOWED) * fastest_s])


def visit_until_calm(plans: Mapping[str, Plan], wanted: int, make: Callable[[Plan], Made]) -> dict[str, Kept]:
    """Visits of every plan that count, ``wanted`` of each where the machine lets it.

    All plans are visited in turn, so that a disturbance does not hit one of them alone. Where cores never came free
    those that repeat are kept, none of which counts.
    """
    made: dict[str, list[Made]] = {name: [] for name in plans}
    fastest_s = float("inf")
    for _ in range(AT_MOST * wanted):
        for name, plan in plans.items():
            if len(undisturbed(made[name], fastest_s)) < wanted:
                made[name].append(make(plan))
                fastest_s = min(fastest_s, *made[name][-1].paces_s)
    return {name: _kept(some, fastest_s) for name, some in made.items()}


def _kept(made: Sequence[Made], fastest_s: float) -> Kept:
    count = undisturbed(made, fastest_s)
    return Kept(count or calm([one.visit for one in made]), len(made) - len(count), bool(count))
