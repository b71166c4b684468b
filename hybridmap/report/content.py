"""What a report shows, as plain records: everything is computed here, and the page only lays it out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybridmap.files.changed import changed_since
from hybridmap.text.notation import difference_text, percent, placement_title
from mapper.price_families import MEANING, RESOURCES, default_errors, scaled
from profiles.errors import HybridmapError
from simulator.feasibility import check_plan
from simulator.play.simulate import simulate

if TYPE_CHECKING:
    from hybridmap.answers.what_if import WhatIfFile
    from hybridmap.files.frontier import PointRecord
    from hybridmap.files.plan import PlanFile
    from hybridmap.job.job import Job
    from simulator.facts import Facts
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline


@dataclass(frozen=True)
class Shown:
    """One plan that the page can show: its key and name in the switch, and in one line why it is not the best."""

    key: str
    name: str
    plan: Plan
    timeline: Timeline
    why: str
    facts: Facts


@dataclass(frozen=True)
class Sensitivity:
    """Iteration time of the best plan, layouts kept, if one family of prices is off by ``error`` either way."""

    family: str
    meaning: str
    error: float
    faster_s: float
    slower_s: float


@dataclass(frozen=True)
class Content:
    """Everything on the page.

    Parameters
    ----------
    file, job
        The plan file, and the job that it embeds.
    shown
        The plan, then its runners-up, fastest first.
    measured
        A run's timeline of the plan.
    points
        The frontier of time against GPUs; empty if none was given or searched.
    what_if
        Searches under other settings.
    """

    file: PlanFile
    job: Job
    shown: tuple[Shown, ...]
    sensitivity: tuple[Sensitivity, ...]
    measured: Timeline | None = None
    points: tuple[PointRecord, ...] = ()
    what_if: WhatIfFile | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def facts(self) -> Facts:
        return self.job.facts()

    @property
    def best(self) -> Shown:
        return self.shown[0]


def content_of(
    file: PlanFile,
    job: Job,
    *,
    measured: Timeline | None = None,
    points: tuple[PointRecord, ...] = (),
    what_if: WhatIfFile | None = None,
    beside: tuple[PlanFile, Job] | None = None,
) -> Content:
    """Simulate the plan and its runners-up again, and vary the prices; ``beside`` is another plan to compare with.

    Raises ``InfeasibleError`` if the plan itself cannot run on the job's cluster.
    """
    facts = job.facts()
    best = simulate(file.plan, facts)
    shown = [Shown("best", f"{placement_title(file.plan)}, {best.iteration_s:,.1f} s", file.plan, best, "", facts)]
    if beside is not None:
        shown.append(_given(*beside, best))
    for i, other in enumerate(file.runners_up):
        if check_plan(other.plan, facts):  # prices or memory changed since the file was made
            continue
        timeline = simulate(other.plan, facts)
        slower = timeline.iteration_s / best.iteration_s - 1
        why = f"{'+' if slower >= 0 else '-'}{percent(abs(slower))}: {difference_text(timeline.stages, best.stages)}"
        name = f"{placement_title(other.plan)}, {timeline.iteration_s:,.1f} s"
        shown.append(Shown(f"other-{i}", name, other.plan, timeline, why, facts))
    return Content(
        file=file,
        job=job,
        shown=tuple(shown),
        sensitivity=sensitivities(file.plan, facts),
        measured=measured,
        points=points,
        what_if=what_if,
        notes=_notes(file, best, facts),
    )


def _given(file: PlanFile, job: Job, best: Timeline) -> Shown:
    """A plan that was named beside the first: of the same job or of another, priced as its own job says."""
    timeline = simulate(file.plan, job.facts())
    slower = timeline.iteration_s / best.iteration_s - 1
    why = f"{'+' if slower >= 0 else '-'}{percent(abs(slower))}: {difference_text(timeline.stages, best.stages)}"
    name = f"the other: {placement_title(file.plan)}, {timeline.iteration_s:,.1f} s"
    return Shown("given-0", name, file.plan, timeline, why, job.facts())


def _notes(file: PlanFile, now: Timeline, facts: Facts) -> tuple[str, ...]:
    changed = changed_since(file, "the plan file", facts.facts_hash, now.iteration_s)
    return () if changed is None else (f"{changed[0].upper()}{changed[1:]}.",)


def sensitivities(plan: Plan, facts: Facts) -> tuple[Sensitivity, ...]:
    """The plan priced again with each family of prices off by its 90 % half-width, the largest effect first."""
    errors = default_errors(facts)
    out = []
    for family in RESOURCES:
        error = errors[family]
        try:
            faster, slower = (
                simulate(plan, scaled(facts, {family: f})).iteration_s for f in (1 / (1 + error), 1 + error)
            )
        except HybridmapError:
            continue
        out.append(Sensitivity(family, MEANING[family], error, faster, slower))
    return tuple(sorted(out, key=lambda s: -abs(s.slower_s - s.faster_s)))
