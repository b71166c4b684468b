"""``hybridmap plan``: find the best plan of a job, show it, and write it to files."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.options import (
    AllowDownload,
    CalibrationLayer,
    Even,
    ForceProfile,
    Hint,
    JobArgument,
    Json,
    ModelConfig,
    Placement,
    Profile,
    Seed,
    ShowProgress,
    TargetSystem,
    TimeLimit,
)
from hybridmap.console import say, say_json, working

if TYPE_CHECKING:
    from hybridmap.job.job import Job
    from mapper.result import Result, RunnerUp


def plan(
    job: JobArgument,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for plan.json and timeline.json.")] = Path(
        "hybridmap-out"
    ),
    placement: Annotated[Placement, typer.Option("--placement", help="Search this placement only.")] = Placement.ANY,
    even: Even = False,
    top: Annotated[
        int, typer.Option("--top", min=1, max=100, metavar="K", help="Show the best K plans, each different.")
    ] = 1,
    seed: Seed = 0,
    time_limit: TimeLimit = 60.0,
    hint: Hint = None,
    profile: Profile = None,
    force_profile: ForceProfile = False,
    calibration: CalibrationLayer = None,
    target: TargetSystem = None,
    show_progress: ShowProgress = False,
    model_config: ModelConfig = None,
    allow_download: AllowDownload = False,
    as_json: Json = False,
) -> None:
    """Find the best plan of a job.

    The fastest, unless the job names another objective. Searches placements, pool sizes and layouts together, proves
    how good the answer is, and writes plan.json and timeline.json.
    """
    from hybridmap.answers.drafts import draft_notes
    from hybridmap.files.plan import plan_file_of, planned_records, read_plan_file, require_folder, write_records
    from hybridmap.job.load import load_job
    from hybridmap.job.notes import notes
    from hybridmap.text.frontier import budget_notes

    given = load_job(
        job,
        profile,
        force_profile=force_profile,
        calibration=calibration,
        model_config=model_config,
        allow_download=allow_download,
    )
    facts = given.facts()
    require_folder(out)
    start = read_plan_file(hint).plan if hint is not None else None
    changes = {"placement": placement.value, "even": even, "top": top, "seed": seed, "time_limit_s": time_limit}
    with working(f"searching placements on {facts.num_gpus:,} GPUs ...", show_progress, as_json):
        result, given, held = _searched(given, target, {**changes, "hint": start})
        facts = given.facts()
    more = [*held, *result.notes, *(budget_notes(facts) if result.objective.goal != "time" else ())]
    more += draft_notes(result.plan, facts)
    record = plan_file_of(given, result, placement.value, even)
    written = write_records(out, planned_records(record, result.timeline))
    if as_json:
        say_json(_document(result, given, top, [*notes(facts), *more, *result.open_because], [str(p) for p in written]))
    else:
        asked = _same_job(job, target, profile, force_profile, calibration, model_config, allow_download)
        _show(result, given, top, more, asked, written)


def _same_job(
    job: Path,
    target: str | None,
    profile: Path | None,
    force_profile: bool,
    calibration: Path | None,
    model_config: Path | None,
    allow_download: bool,
) -> str:
    """The job with the options that say what it is, for the next command."""
    values = {
        "--target": target,
        "--profile": profile,
        "--calibration": calibration,
        "--model-config": model_config,
    }
    named = [word for name, value in values.items() if value is not None for word in (name, str(value))]
    flags = {"--force-profile": force_profile, "--allow-download": allow_download}
    return shlex.join([str(job), *named, *(flag for flag, given in flags.items() if given)])


def _searched(given: "Job", target: str | None, changes: dict[str, Any]) -> "tuple[Result, Job, list[str]]":
    """The best plan under the options of the command line, the job that it is of, and what held it."""
    from hybridmap.exports.targets import planned
    from mapper.search.find_plan import find_plan

    def search(one: "Job") -> "Result":
        return find_plan(replace(one.request(), **changes))

    return planned(given, target, search)


def _show(result: "Result", given: "Job", top: int, more: list[str], job: str, written: list[Path]) -> None:
    from hybridmap.text.others import show_top
    from hybridmap.text.plan import answer_line, header_lines, show_carrying_constants, show_plan
    from hybridmap.text.result import best_line, next_lines, result_lines

    facts = given.facts()
    say(f"{answer_line(result.timeline)}\n{best_line(result)}\n")
    say("\n".join(header_lines(facts, more)))
    show_plan(result.plan, result.timeline)
    show_carrying_constants(result.plan, facts)
    say("\n".join(result_lines(result, facts, given.request().options)))
    if top > 1:
        show_top(result, facts, top)
        say()
    say("\n".join(next_lines(job, written, given.target)))


def _document(result: "Result", given: "Job", top: int, notes: list[str], written: list[str]) -> dict[str, Any]:
    from hybridmap.text.objective import objective_document
    from hybridmap.text.others import other_documents
    from hybridmap.text.plan import carrying_documents, timeline_document
    from mapper.candidates.listed import listed_values

    named = {} if result.objective.goal == "time" else {"objective": objective_document(result)}
    return {
        **named,
        "status": result.status,
        "iteration_s": result.iteration_s,
        "bound_s": result.bound_s,
        "gap": result.gap,
        "tolerance": result.tolerance,
        "listed": listed_values(given.facts(), given.request().options),
        "seconds": result.seconds,
        "seed": result.seed,
        "num_priced": result.num_priced,
        "num_candidates": result.num_candidates,
        **timeline_document(result.timeline),
        "leans_on": carrying_documents(result.plan, given.facts()),
        "plan": result.plan.model_dump(mode="json"),
        "runners_up": [_rival(r) for r in result.runners_up],
        "plain": None if result.plain is None else _rival(result.plain),
        "faster": None if result.faster is None else _rival(result.faster),
        **({"top": other_documents(result, given.facts(), top)} if top > 1 else {}),
        "notes": notes,
        "written": written,
    }


def _rival(other: "RunnerUp") -> dict[str, Any]:
    least = {} if other.bound_s is None else {"bound_s": other.bound_s}
    return {
        "placement": other.placement,
        "iteration_s": other.iteration_s,
        **least,
        "plan": other.plan.model_dump(mode="json"),
    }
