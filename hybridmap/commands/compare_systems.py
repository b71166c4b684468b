"""``hybridmap compare --systems``: the best plan beside what other RL systems would do with the same job."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridmap.console import new_table, say, say_json, say_table, working
from profiles.errors import HybridmapError, InfeasibleError

if TYPE_CHECKING:
    from hybridmap.job.job import Job
    from simulator.facts import Facts
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

BEST = "best plan"


@dataclass(frozen=True)
class SystemRow:
    """One system: its plan, timeline and engines, or why it has none."""

    name: str
    title: str
    plan: "Plan | None" = None
    timeline: "Timeline | None" = None
    engines: str = ""
    error: HybridmapError | None = None


def compare_systems(job: "Job", as_json: bool) -> None:
    """Print every system's iteration, its stages and its ratio to the fastest plan of this job."""
    from hybridmap.text.plan import header_lines

    facts = job.facts()
    rows = [_best(job), *_systems(facts)]
    if as_json:
        say_json({"rows": [_document(row, rows[0]) for row in rows]})
        return
    say("\n".join(header_lines(facts)))
    _show(rows)
    for row in rows:
        if row.error is not None:
            say(f"no {row.name} plan: {row.error}")
        else:
            say(f"{row.name}: {row.title}, {row.engines}")
    say("other systems are simulated, never run; each has its own engines, and the job's models, work and cluster")


def _best(job: "Job") -> SystemRow:
    with working("searching the best plan ..."):
        from hybridmap.answers.comparison import by_time
        from mapper.search.find_plan import find_plan

        result = find_plan(by_time(job, "any"))
    return SystemRow(BEST, "the mapper's plan", result.plan, result.timeline, _engines(job.facts()))


def _systems(facts: "Facts") -> list[SystemRow]:
    from simulator.systems.run import run_system
    from simulator.systems.system import SYSTEMS

    out = []
    for name, system in SYSTEMS.items():
        with working(f"simulating {name} ..."):
            try:
                run = run_system(name, facts)
                row = SystemRow(name, system.title, run.plan, run.timeline, _engines(run.facts))
            except HybridmapError as error:
                row = SystemRow(name, system.title, error=error)
        out.append(row)
    return out


def _engines(facts: "Facts") -> str:
    return f"{facts.training.name} and {facts.generation.name}"


def _document(row: SystemRow, best: SystemRow) -> dict[str, Any]:
    from hybridmap.text.plan import timeline_document

    if row.timeline is None or row.plan is None or best.timeline is None:
        status = "infeasible" if isinstance(row.error, InfeasibleError) else "none"
        return {"system": row.name, "title": row.title, "status": status, "error": str(row.error)}
    return {
        "system": row.name,
        "title": row.title,
        "status": "simulated",
        "iteration_s": row.timeline.iteration_s,
        "over_best": row.timeline.iteration_s / best.timeline.iteration_s,
        **timeline_document(row.timeline),
        "plan": row.plan.model_dump(mode="json"),
    }


def _show(rows: list[SystemRow]) -> None:
    from simulator.plan.dataflow import STAGES

    there = [row.timeline for row in rows if row.timeline is not None]
    stages = [stage for stage in STAGES if any(timeline.stages[stage] > 0 for timeline in there)]
    numbers = ("iteration", "over best", *(s.replace("_", " ") for s in stages), "tokens/s", "per GPU")
    table = new_table(("system", *numbers, "GPUs by pool"), right=numbers)
    for row in rows:
        if row.timeline is None or row.plan is None:
            reason = "does not fit" if isinstance(row.error, InfeasibleError) else "not possible"
            table.add_row(row.name, *["-"] * len(numbers), f"{reason}, see below")
            continue
        timeline = row.timeline
        table.add_row(
            row.name,
            f"{timeline.iteration_s:,.2f} s",
            f"{timeline.iteration_s / there[0].iteration_s:.2f} x",
            *(f"{timeline.stages[stage]:,.1f} s" for stage in stages),
            f"{timeline.tokens_per_s:,.0f}",
            f"{timeline.tokens_per_s / timeline.num_gpus:,.0f}",
            " + ".join(str(pool.num_gpus) for pool in row.plan.pools),
        )
    say_table(table)
