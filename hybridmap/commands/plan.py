"""``hybridmap plan``: find the best plan of a job, show it, and write it to files."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.options import (
    CalibrationLayer,
    Even,
    ForceProfile,
    Hint,
    JobArgument,
    Json,
    Placement,
    Profile,
    Seed,
    TimeLimit,
)
from hybridmap.console import say, say_json, working

if TYPE_CHECKING:
    from mapper.result import Result
    from simulator.facts import Facts


def plan(
    job: JobArgument,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for plan.json and timeline.json.")] = Path(
        "hybridmap-out"
    ),
    placement: Annotated[Placement, typer.Option("--placement", help="Search this placement only.")] = Placement.ANY,
    even: Even = False,
    seed: Seed = 0,
    time_limit: TimeLimit = 60.0,
    hint: Hint = None,
    profile: Profile = None,
    force_profile: ForceProfile = False,
    calibration: CalibrationLayer = None,
    as_json: Json = False,
) -> None:
    """Find the best plan of a job.

    The fastest, unless the job names another objective. Searches placements, pool sizes and layouts together, proves
    how good the answer is, and writes plan.json and timeline.json.
    """
    from hybridmap.files.plan import plan_file_of, read_plan_file, require_folder, write_records
    from hybridmap.job.load import load_job
    from hybridmap.job.notes import notes
    from hybridmap.text.frontier import budget_notes

    given = load_job(job, profile, force_profile=force_profile, calibration=calibration)
    facts = given.facts()
    require_folder(out)
    start = read_plan_file(hint).plan if hint is not None else None
    with working(f"searching placements on {facts.num_gpus:,} GPUs ..."):
        from mapper.search.find_plan import find_plan

        result = find_plan(
            replace(
                given.request(), placement=placement.value, even=even, seed=seed, time_limit_s=time_limit, hint=start
            )
        )
    more = [*result.notes, *(budget_notes(facts) if result.objective.goal != "time" else ())]
    record = plan_file_of(given, result, placement.value, even)
    written = write_records(out, {"plan.json": record, "timeline.json": result.timeline})
    if as_json:
        say_json(_document(result, [*notes(facts), *more, *result.open_because], [str(path) for path in written]))
    else:
        _show(result, facts, more, job, written)


def _show(result: "Result", facts: "Facts", more: list[str], job: Path, written: list[Path]) -> None:
    from hybridmap.text.plan import header_lines, next_lines, result_lines, show_plan

    say("\n".join(header_lines(facts, more)))
    show_plan(result.plan, result.timeline)
    say("\n".join(result_lines(result, facts)))
    say("\n".join(next_lines(job, written)))


def _document(result: "Result", notes: list[str], written: list[str]) -> dict[str, Any]:
    from hybridmap.text.objective import objective_document
    from hybridmap.text.plan import timeline_document

    named = {} if result.objective.goal == "time" else {"objective": objective_document(result)}
    return {
        **named,
        "status": result.status,
        "iteration_s": result.iteration_s,
        "bound_s": result.bound_s,
        "gap": result.gap,
        "seconds": result.seconds,
        "seed": result.seed,
        "num_priced": result.num_priced,
        "num_candidates": result.num_candidates,
        **timeline_document(result.timeline),
        "plan": result.plan.model_dump(mode="json"),
        "runners_up": [
            {"placement": r.placement, "iteration_s": r.iteration_s, "plan": r.plan.model_dump(mode="json")}
            for r in result.runners_up
        ],
        "notes": notes,
        "written": written,
    }
