"""``hybridmap compare``: the named placements and the best of all, side by side."""

from typing import TYPE_CHECKING, Any

from hybridmap.answers.comparison import PLACEMENTS, Row, best_of
from hybridmap.commands.options import (
    AllowDownload,
    CalibrationLayer,
    ForceProfile,
    JobArgument,
    Json,
    ModelConfig,
    Profile,
    Systems,
    TargetSystem,
)
from hybridmap.console import new_table, say, say_json, say_table, working
from profiles.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridmap.job.job import Job
    from simulator.plan.timeline import Timeline


# Long by its options, and what is shown in turn.
def compare(
    job: JobArgument,
    systems: Systems = False,
    target: TargetSystem = None,
    profile: Profile = None,
    force_profile: ForceProfile = False,
    calibration: CalibrationLayer = None,
    model_config: ModelConfig = None,
    allow_download: AllowDownload = False,
    as_json: Json = False,
) -> None:
    """Compare colocate, split, standalone and the best.

    The best plan of each named placement beside the best of all placements; with --systems, the best plan beside
    what other RL systems would do with the job. A target holds every search to what that system runs.
    """
    from hybridmap.exports.targets import OWN, target_of
    from hybridmap.job.load import load_job
    from hybridmap.text.plan import header_lines
    from hybridmap.text.worked import worked_lines

    given = load_job(
        job,
        profile,
        force_profile=force_profile,
        calibration=calibration,
        model_config=model_config,
        allow_download=allow_download,
    )
    facts = given.facts()
    if target is not None and target != OWN:
        target_of(target)  # its own error, not a row without a plan
    if systems:
        from hybridmap.commands.compare_systems import compare_systems

        if target is not None:
            raise InputError("--systems compares whole systems, each with its own rules; leave out --target")
        compare_systems(given, as_json)
        return
    rows = [_row(given, name, target) for name in PLACEMENTS]
    if rows[-1].error is not None:
        raise rows[-1].error
    if as_json:
        say_json({"rows": [_document(row) for row in rows], "notes": _notes(given, rows)})
        return
    say(f"{_answer(rows)}\n")
    say("\n".join(header_lines(facts, _notes(given, rows))))
    _show_times(rows)
    for row in rows:
        if row.error is not None:
            say(f"no {row.name} plan: {row.error}")
    say()
    _show_layouts(rows)
    best = rows[-1].result
    if best is not None:
        say()
        say("\n".join(worked_lines(best.plan)))


def _answer(rows: list[Row]) -> str:
    """The fastest placement with its time, and what the other named ones cost on top."""
    from hybridmap.text.notation import about, percent, placement_title
    from hybridmap.text.plan import interval_s

    best = rows[-1].result
    assert best is not None, "checked by the command"
    low, high = interval_s(best.timeline)
    others = [
        f"{row.name} +{percent(row.result.iteration_s / best.iteration_s - 1)}"
        for row in rows[:-1]
        if row.result is not None and row.result.plan.placement != best.plan.placement
    ]
    fastest = (
        f"{placement_title(best.plan)} is fastest: about {about(best.iteration_s)} s ({about(low)} to {about(high)} s, "
        "90 % interval)"
    )
    return "; ".join([fastest, *([", ".join(others)] if others else [])])


def _notes(job: "Job", rows: list[Row]) -> list[str]:
    goal = job.request().objective.goal
    by_time = [] if goal == "time" else [f"compared by iteration time; the job's objective is {goal}"]
    return [*rows[-1].held, *by_time]


def _row(given: "Job", name: str, target: str | None) -> Row:
    from hybridmap.exports.targets import planned

    with working(f"searching {name} ..."):
        return best_of(given, name, lambda one, search: planned(one, target, search))


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
    """A column each placement, so that any terminal holds them."""
    from hybridmap.text.notation import gib, percent
    from simulator.plan.dataflow import STAGES

    there = [row.result.timeline for row in rows if row.result is not None]
    best = min(timeline.iteration_s for timeline in there)
    names = tuple(row.name for row in rows)
    table = new_table(("", *names), right=names)

    def add(title: str, cell: "Callable[[Timeline], str]", missing: str = "") -> None:
        table.add_row(title, *(cell(row.result.timeline) if row.result else missing for row in rows))

    add("iteration", lambda t: f"{t.iteration_s:,.2f} s", "see below")
    add("over best", lambda t: f"+{percent(t.iteration_s / best - 1)}" if t.iteration_s > best else "")
    for stage in (s for s in STAGES if any(t.stages[s] >= 0.05 for t in there)):
        add(f"  {stage.replace('_', ' ')}", lambda t, stage=stage: f"{t.stages[stage]:,.1f} s")  # type: ignore[misc]
    add("tokens/s", lambda t: f"{t.tokens_per_s:,.0f}")
    add("per GPU", lambda t: f"{t.tokens_per_s / t.num_gpus:,.0f}")
    add("fullest GPU", lambda t: f"{gib(max(m.used_bytes for m in t.memory.values()))} GiB")
    say_table(table)


def _show_layouts(rows: list[Row]) -> None:
    from hybridmap.text.notation import gpus_text
    from hybridmap.text.plan import role_rows

    table = new_table(("placement", "GPUs", "role", "training", "generation", "scoring"), keys=3)
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
