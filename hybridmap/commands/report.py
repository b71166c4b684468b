"""``hybridmap report``: one HTML page of a plan."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridmap.commands.options import Json
from hybridmap.commands.planned import read_planned
from hybridmap.console import progress_bar, say, say_json
from profiles.errors import InputError

if TYPE_CHECKING:
    from hybridmap.files.frontier import PointRecord
    from hybridmap.job.job import Job
    from simulator.plan.plan import Plan


def report(
    plan: Annotated[Path, typer.Argument(metavar="plan.json", help="What `hybridmap plan` wrote.")],
    other: Annotated[
        Path | None,
        typer.Argument(metavar="[other.json]", help="Another plan, to stand beside it.", show_default=False),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option("--measured", metavar="timeline.json", help="A run's timeline of this plan.", show_default=False),
    ] = None,
    what_if: Annotated[
        Path | None,
        typer.Option("--what-if", metavar="what-if.json", help="What `hybridmap what-if` wrote.", show_default=False),
    ] = None,
    frontier: Annotated[
        Path | None,
        typer.Option("--frontier", metavar="frontier.json", help="Else it is searched.", show_default=False),
    ] = None,
    frontier_limit: Annotated[
        float, typer.Option("--frontier-limit", min=0.0, metavar="SECONDS", help="Time for it; 0 leaves it out.")
    ] = 20.0,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page.")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Write a page of a plan to look at.

    One HTML file that needs nothing else: the cluster to scale, the iteration, memory, stages, other plans beside it,
    more or fewer GPUs, sensitivity, evidence and the job. With --measured, the run beside the prediction.
    """
    from hybridmap.answers.what_if import WhatIfFile
    from hybridmap.files.frontier import FrontierFile
    from hybridmap.files.plan import read_record
    from hybridmap.files.timeline import read_timeline
    from hybridmap.files.write import write_file
    from hybridmap.report.content import content_of
    from hybridmap.report.html import page

    file, job, _ = read_planned(plan)
    run = read_timeline(measured) if measured is not None else None
    changed = read_record(what_if, WhatIfFile) if what_if is not None else None
    known = read_record(frontier, FrontierFile) if frontier is not None else None
    for path, record in ((what_if, changed), (frontier, known)):
        if record is not None:
            _check_same_job(job, record.job, f"{path}", f"{plan}")
    points = known.points if known is not None else _searched(job, file.plan, frontier_limit)
    beside = read_planned(other)[:2] if other is not None else None
    text = page(content_of(file, job, measured=run, points=points, what_if=changed, beside=beside))
    write_file(out, text)
    if as_json:
        say_json({"written": [str(out)], "bytes": len(text.encode()), "plans": 1 + len(file.runners_up)})
        return
    say(f"wrote       {out} ({len(text.encode()) / 1e6:.1f} MB; open it in any browser, it needs no network)")


def _check_same_job(job: "Job", other: dict[str, object], path: str, plan: str) -> None:
    from hybridmap.job.difference import differences

    if found := differences(job.document, other):
        lines = [f"{key}: {theirs} in {path}, {ours} in {plan}" for key, ours, theirs in found]
        raise InputError("\n  ".join([f"{path} is of another job than {plan}; they differ in", *lines]))


def _searched(job: "Job", plan: "Plan", limit_s: float) -> "tuple[PointRecord, ...]":
    """The frontier of the job in the plan's schedule, of those that it allows; empty without time for it."""
    from hybridmap.files.frontier import frontier_file_of

    if limit_s <= 0:
        return ()
    with progress_bar("GPU budgets") as progress:
        from mapper.analysis.frontier import frontier
        from mapper.execution_mode import mode_of

        request = replace(job.request(), modes=(mode_of(plan),), time_limit_s=limit_s)
        points = frontier(request, progress)
    return frontier_file_of(job, points, 0).points
