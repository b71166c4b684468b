"""Plans measured in turns, and again what the machine's other work disturbed: a visit is one run of one plan.

What else a machine does only ever slows a run. So a visit far slower than the fastest of its plan was disturbed, which
is told without a look at any prediction; it does not count, and the plan is visited again later. The profile that the
predictions come from is measured by the same rule (``hybridmap.profiling.rounds``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

CALM = 0.05
"""Visits whose medians lie so close to the fastest one's were not disturbed: calm visits repeat to 1 to 5 %."""
AT_MOST = 4
"""So many times the wanted visits are made of a plan that does not come to rest."""

Visit = list["Timeline"]


def median_s(visit: Sequence[Timeline]) -> float:
    """Seconds of a visit's median iteration."""
    return float(np.median([t.iteration_s for t in visit]))


def calm(visits: Sequence[Visit]) -> list[Visit]:
    """The visits that were not disturbed, in the order that they were made."""
    fastest = min((median_s(visit) for visit in visits), default=0.0)
    return [visit for visit in visits if median_s(visit) <= (1.0 + CALM) * fastest]


def visit_until_calm(
    plans: Mapping[str, Plan], wanted: int, visit: Callable[[Plan], Visit]
) -> tuple[dict[str, list[Visit]], dict[str, int]]:
    """Calm visits of every plan, ``wanted`` of each where the machine lets it, and how many more were made.

    All plans are visited in turn, so that a disturbance does not hit one of them alone.
    """
    made: dict[str, list[Visit]] = {name: [] for name in plans}
    for _ in range(AT_MOST * wanted):
        for name, plan in plans.items():
            if len(calm(made[name])) < wanted:
                made[name].append(visit(plan))
    kept = {name: calm(visits) for name, visits in made.items()}
    return kept, {name: len(made[name]) - len(kept[name]) for name in plans}
