"""``hybridmap compare``: the named placements and the best of all, side by side."""

from typing import TYPE_CHECKING, Any

from hybridmap.answers.comparison import PLACEMENTS, Row, best_of
from hybridmap.commands.options import JobArgument, Json, Systems
from hybridmap.console import new_table, say, say_json, say_table, working
from profiles.errors import InfeasibleError

if TYPE_CHECKING:
    from hybridmap.job.job import Job
    from mapper.result import Result


def compare(job: JobArgument, as_json: Json = False, systems: Systems = False) -> None:
    """Compare colocate, split, standalone and the best.

    The best plan of each named placement beside the best of all placements; with --systems, the best plan beside
    what other RL systems would do with the job.
    """
    from hybridmap.job.load import load_job
    from hybridmap.text.notation import LEGEND
    from hybridmap.text.plan import header_lines

    given = load_job(job)
    facts = given.facts()
    if systems:
        from hybridmap.commands.compare_systems import compare_systems

        compare_systems(given, as_json)
        return
    rows = [_row(given, name) for name in PLACEMENTS]
    if rows[-1].error is not None:
        raise rows[-1].error
    if as_json:
        say_json({"rows": [_document(row) for row in rows], "notes": _notes(given)})
        return
    say("\n".join(header_lines(facts, _notes(given))))
    _show_times(rows)
    for row in rows:
        if row.error is not None:
            say(f"no {row.name} plan: {row.error}")
    say()
    _show_layouts(rows)
    say(f"({LEGEND})")


def _notes(job: "Job") -> list[str]:
    goal = job.request().objective.goal
    return [] if goal == "time" else [f"compared by iteration time; the job's objective is {goal}"]


def _row(given: "Job", name: str) -> Row:
    with working(f"searching {name} ..."):
        return best_of(given, name)


def _document(row: Row) -> dict[str, Any]:
    from hybridmap.text.plan import timeline_document

    if row.result is None:
        status = "infeasible" if isinstance(row.error, InfeasibleError) else "none"
        fewest = row.error.fewest_gpus if isinstance(row.error, InfeasibleError) else None
        return {"placement": row.name, "status": status, "error": str(row.error), "fewest_gpus": fewest}
    result = row.result
    return {
        "placement": row.name,
        "status": result.status,
        "iteration_s": result.iteration_s,
        "bound_s": result.bound_s,
        "gap": result.gap,
        "seconds": result.seconds,
        **timeline_document(result.timeline),
        "plan": result.plan.model_dump(mode="json"),
    }


def _show_times(rows: list[Row]) -> None:
    from hybridmap.text.notation import percent
    from simulator.plan.dataflow import STAGES

    best = min(row.result.iteration_s for row in rows if row.result is not None)
    stages = [s for s in STAGES if any(row.result.timeline.stages[s] > 0 for row in rows if row.result)]
    numbers = ("iteration", "over best", *(s.replace("_", " ") for s in stages), "tokens/s", "per GPU")
    table = new_table(("placement", *numbers, "memory per GPU"), right=numbers)
    for row in rows:
        if row.result is None:
            reason = "does not fit" if isinstance(row.error, InfeasibleError) else "not possible"
            table.add_row(row.name, *["-"] * len(numbers), f"{reason}, see below")
            continue
        timeline = row.result.timeline
        table.add_row(
            row.name,
            f"{timeline.iteration_s:,.2f} s",
            f"+{percent(timeline.iteration_s / best - 1)}" if timeline.iteration_s > best else "",
            *(f"{timeline.stages[stage]:,.1f} s" for stage in stages),
            f"{timeline.tokens_per_s:,.0f}",
            f"{timeline.tokens_per_s / timeline.num_gpus:,.0f}",
            _memory(row.result),
        )
    say_table(table)


def _memory(result: "Result") -> str:
    from hybridmap.text.notation import gib

    pools = result.timeline.memory
    first = next(iter(pools.values()))
    used = ", ".join(gib(memory.used_bytes) for memory in pools.values())
    return f"{used} of {gib(first.usable_bytes or first.capacity_bytes)} GiB"


def _show_layouts(rows: list[Row]) -> None:
    from hybridmap.text.notation import gpus_text
    from hybridmap.text.plan import role_rows

    table = new_table(("placement", "GPUs", "role", "training", "generation", "scoring"))
    for row in rows:
        if row.result is None:
            continue
        plan, name = row.result.plan, row.name
        for pool in plan.pools:
            span = gpus_text(pool)
            for texts in role_rows(plan, pool):
                table.add_row(name, span, *texts)
                name = span = ""
    say_table(table)
