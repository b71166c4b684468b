"""``hybridmap simulate``: what one iteration of a plan, or of a placement's best plan, would cost."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridmap.commands.options import AllowDownload, CalibrationLayer, Even, Json, ModelConfig, Placement
from hybridmap.console import say, say_json, warn, working
from profiles.errors import InputError

if TYPE_CHECKING:
    from hybridmap.job.job import Job
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline


def simulate(
    job: Annotated[
        Path | None,
        typer.Argument(
            metavar="[plan.json | JOB.yaml]",
            help="A plan, which holds its job; or the job of --placement, or of --plan to check that it is the same.",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="plan.json", help="Simulate this plan.", show_default=False)
    ] = None,
    placement: Annotated[
        Placement | None,
        typer.Option("--placement", help="Simulate the best plan of this placement.", show_default=False),
    ] = None,
    even: Even = False,
    calibration: CalibrationLayer = None,
    model_config: ModelConfig = None,
    allow_download: AllowDownload = False,
    as_json: Json = False,
) -> None:
    """Predict one iteration of a plan: times and memory.

    Stage times along the critical path, memory per GPU, and the provenance of the numbers.
    """
    from hybridmap.files.plan import is_plan_file
    from hybridmap.job.load import load_job

    if job is not None and plan is None and placement is None and is_plan_file(job):
        plan, job = job, None
    if (plan is None) == (placement is None):
        raise InputError("simulate needs either a plan.json or a JOB.yaml and --placement colocate|split|standalone")
    if even and plan is not None:
        raise InputError("--even chooses among split placements; a plan.json has its sizes already, leave --even out")
    read = partial(load_job, model_config=model_config, allow_download=allow_download)
    if plan is not None:
        given, found, timeline = _planned(plan, read(job) if job is not None else None, job, calibration)
    elif job is None or placement is None:
        raise InputError("simulate --placement needs the JOB.yaml too")
    else:
        given, found, timeline = _best_of(read(job, calibration=calibration), placement.value, even)
    _show(given, found, timeline, as_json)


def _planned(
    path: Path, job: "Job | None", job_path: Path | None, calibration: Path | None
) -> "tuple[Job, Plan, Timeline]":
    from hybridmap.files.changed import changed_since
    from hybridmap.files.plan import read_plan_file
    from hybridmap.job.difference import differences
    from hybridmap.job.load import job_from_document, with_layer
    from simulator.play.simulate import simulate as simulate_plan

    file = read_plan_file(path)
    embedded = job_from_document(file.job, f"{path}: job")
    if job is not None and (found := differences(job.document, embedded.document)):
        lines = [f"{key}: {theirs} in {job_path}, {ours} in {path}" for key, theirs, ours in found]
        raise InputError("\n  ".join([f"{path} was made for another job than {job_path}; they differ in", *lines]))
    if calibration is not None:
        embedded = with_layer(embedded, calibration)
        return embedded, file.plan, simulate_plan(file.plan, embedded.facts())
    timeline = simulate_plan(file.plan, embedded.facts())
    if (changed := changed_since(file, str(path), embedded.facts().facts_hash, timeline.iteration_s)) is not None:
        warn(changed)
    return embedded, file.plan, timeline


def _best_of(job: "Job", placement: str, even: bool) -> "tuple[Job, Plan, Timeline]":
    with working(f"searching {placement} plans ..."):
        from mapper.search.find_plan import find_plan

        result = find_plan(replace(job.request(), placement=placement, even=even, runners_up=False))
    return job, result.plan, result.timeline


def _show(job: "Job", plan: "Plan", timeline: "Timeline", as_json: bool) -> None:
    from hybridmap.job.notes import notes
    from hybridmap.text.notation import placement_title
    from hybridmap.text.plan import (
        answer_line,
        carrying_documents,
        header_lines,
        show_carrying_constants,
        show_plan,
        timeline_document,
    )

    if as_json:
        record = timeline.model_dump(mode="json")
        document = {"iteration_s": timeline.iteration_s, **timeline_document(timeline), "spans": record["spans"]}
        leans_on = carrying_documents(plan, job.facts())
        say_json({**document, "leans_on": leans_on, "plan": plan.model_dump(mode="json"), "notes": notes(job.facts())})
        return
    say(f"{answer_line(timeline)}\n{placement_title(plan)} on {plan.num_gpus:,} GPUs, as given\n")
    say("\n".join(header_lines(job.facts())))
    show_plan(plan, timeline)
    show_carrying_constants(plan, job.facts())
