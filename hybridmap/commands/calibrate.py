"""``hybridmap calibrate``: what the log of a run says of the prices, as a layer that other plans are priced with."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.import_run import Models, Network, Variables, name_values
from hybridmap.commands.options import Json, known_devices
from hybridmap.console import say, say_json, working
from profiles.calibration import CALIBRATION_FILE
from profiles.errors import HybridmapError, InputError

if TYPE_CHECKING:
    from hybridmap.calibration.learn import Learned
    from hybridmap.job.job import Job
    from hybridmap.runlogs.records import RunLog
    from simulator.plan.plan import Plan

Log = Annotated[
    Path,
    typer.Argument(
        metavar="LOG",
        help="Console output or .jsonl of verl, console of NeMo-RL, OpenRLHF or slime, TensorBoard events, a .csv of "
        "W&B or MLflow, or a timeline.json that was measured.",
    ),
]
Script = Annotated[
    Path | None,
    typer.Option(
        "--script",
        metavar="run.sh",
        help="The script or recipe that was run, of the system that wrote the log; needs --device.",
        show_default=False,
    ),
]
JobRun = Annotated[
    Path | None,
    typer.Option(
        "--job",
        metavar="JOB.yaml",
        help="The job that was run, as hybridmap plan plans it.",
        show_default=False,
    ),
]
PlanRun = Annotated[
    Path | None,
    typer.Option("--plan", metavar="plan.json", help="The plan that was run; it holds its job.", show_default=False),
]
Device = Annotated[
    str | None,
    typer.Option("--device", help="The GPU of --script.", autocompletion=known_devices, show_default=False),
]
Steps = Annotated[
    str | None,
    typer.Option("--steps", metavar="FROM:TO", help="Learn from these steps alone, such as 1:20.", show_default=False),
]


@dataclass(frozen=True)
class Asked:
    """What the options say of a run: a plan, a job, or a launch script with its GPU, network, models and variables."""

    plan: Path | None = None
    job: Path | None = None
    script: Path | None = None
    device: str | None = None
    gbps: float | None = None
    models: Sequence[str] = ()
    variables: Sequence[str] = ()


@dataclass(frozen=True)
class Ran:
    """What was run: the job with the lengths of the log where nothing else says them, and the plan.

    ``target`` is the system of a launch script, whose rules hold any other plan; a plan file's job names its own.
    """

    job: "Job"
    plan: "Plan"
    notes: tuple[str, ...] = ()
    target: str | None = None


def calibrate(
    log: Log,
    plan: PlanRun = None,
    job: JobRun = None,
    script: Script = None,
    device: Device = None,
    gbps: Network = None,
    model: Models = None,
    env: Variables = None,
    steps: Steps = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder for calibration.yaml, and the job of a script; else this one, or that of --job.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Learn from a run's log what its machines make of the prices.

    Writes calibration.yaml; a job that lies beside it, or names it under calibration:, is priced with it.
    """
    from hybridmap.calibration.learn import learn
    from hybridmap.files.plan import require_folder
    from hybridmap.runlogs.read import read_log

    folder = out or (Path() if job is None else job.parent)
    require_folder(folder)
    found = chosen_steps(read_log(log), steps)
    ran = what_ran(found, Asked(plan, job, script, device, gbps, model or (), env or ()))
    with working(f"pricing {len(found.steps):,} steps ..."):
        learned = learn(found, ran.plan, ran.job.facts())
    written = _write(folder, learned, ran, script is not None)
    if as_json:
        say_json(_document(found, learned, ran, written))
        return
    from hybridmap.calibration.text import learned_lines, show_stages

    say("\n".join(learned_lines(found, learned, ran.job.facts(), ran.notes)[0]))
    show_stages(learned.file.stages)
    say("\n".join(learned_lines(found, learned, ran.job.facts(), ran.notes)[1]))
    say(f"wrote {', '.join(written)}")


def chosen_steps(log: "RunLog", steps: str | None) -> "RunLog":
    """The steps that ``--steps FROM:TO`` names, both ends included; ``InputError`` where there are none."""
    from dataclasses import replace

    if steps is None:
        return log
    first, colon, last = steps.partition(":")
    if not colon or not all(part.isdigit() or not part for part in (first, last)):
        raise InputError(f"--steps {steps}: expected FROM:TO, two step numbers, such as 1:20")
    low, high = int(first or 0), int(last) if last else log.steps[-1].number
    kept = tuple(step for step in log.steps if low <= step.number <= high)
    if not kept:
        raise InputError(
            f"--steps {steps}: the log has steps {log.steps[0].number} to {log.steps[-1].number}, none of them is there"
        )
    return replace(log, steps=kept)


def what_ran(log: "RunLog", asked: Asked) -> Ran:
    """The job and the plan of a run, from a plan file, a job or a launch script.

    ``InputError`` unless one is given, and where it is of another model than the log says.
    """
    if sum(given is not None for given in (asked.plan, asked.job, asked.script)) != 1:
        raise InputError("say what was run, once: --plan plan.json, --job JOB.yaml, or --script run.sh --device GPU")
    if asked.plan is not None:
        from hybridmap.files.plan import read_plan_file
        from hybridmap.job.load import job_from_document

        file = read_plan_file(asked.plan)
        ran = Ran(job_from_document(file.job, f"{asked.plan}: job"), file.plan)
    else:
        ran = _by_script(log, asked) if asked.job is None else _by_job(asked.job)
    _require_model(log, ran.job, asked.plan or asked.job or asked.script)
    return ran


def _require_model(log: "RunLog", job: "Job", given: Path | None) -> None:
    """What was learned of one model would stand for another; a name that is not known says nothing."""
    from profiles.models.catalogue import load_model

    try:
        logged = load_model(log.model)
    except HybridmapError:
        return
    actor = job.facts().roles["actor"].shape
    if (logged.num_layers, logged.hidden, logged.ffn) != (actor.num_layers, actor.hidden, actor.ffn):
        raise InputError(
            f"{log.source} is of a run of {log.model} ({logged.num_layers} layers of width {logged.hidden:,}), {given} "
            f"of {actor.name} ({actor.num_layers} layers of width {actor.hidden:,}): give what ran"
        )


@cache
def _by_job(path: Path) -> Ran:
    """What ``hybridmap plan`` makes of a job; a running one keeps it, however often its log is looked at."""
    from dataclasses import replace

    from hybridmap.exports.targets import planned
    from hybridmap.job.load import load_job
    from mapper.search.find_plan import find_plan

    asked = load_job(path)
    with working("planning the job ..."):
        best, job, _ = planned(asked, None, lambda one: find_plan(replace(one.request(), runners_up=False)))
    taken = f"what ran is taken to be the plan that hybridmap plan {path} gives, {best.plan.placement}"
    return Ran(job, best.plan, (f"{taken}; if another ran, give it as --plan",), asked.target)


def _by_script(log: "RunLog", asked: Asked) -> Ran:
    """The run that a launch script of the system describes that wrote the log."""
    if asked.device is None:
        raise InputError("--script needs --device, the GPU that it ran on; hybridmap devices list names them")
    from hybridmap.exports.imported import Given
    from hybridmap.exports.reader import READERS

    assert asked.script is not None
    lengths = log.mean_lengths()
    mean = None if not lengths.response_mean else max(1, round(lengths.response_mean))
    models = name_values("--model", "ROLE=NAME, such as actor=qwen2.5-7b", asked.models)
    variables = name_values("--env", "NAME=VALUE, such as NNODES=4", asked.variables)
    given = Given(asked.device, asked.gbps, mean, lengths.prompt_mean or None, models)
    reader = READERS.get(log.system, READERS["verl"])
    imported = reader.imported(reader.read(asked.script, variables), given)
    target = reader.target(imported)
    return Ran(imported.job.scheduled_as(imported.plan), imported.plan, imported.notes, target)


def _write(out: Path, learned: "Learned", ran: Ran, with_job: bool) -> list[str]:
    from hybridmap.files.write import write_file
    from profiles.calibration import text_of
    from profiles.yaml_text import yaml_of

    content = {CALIBRATION_FILE: text_of(learned.file)}
    if with_job:
        content["job.yaml"] = yaml_of(ran.job.document)
    for name, text in content.items():
        write_file(out / name, text)
    return [str(out / name) for name in content]


def _document(log: "RunLog", learned: "Learned", ran: Ran, written: list[str]) -> dict[str, Any]:
    return {
        **learned.file.model_dump(mode="json"),
        "factors": learned.belief.factors,
        "deviations": learned.belief.deviations,
        "damaged_lines": log.damaged,
        "lacks": list(learned.lacks),
        "notes": list(ran.notes),
        "written": written,
    }
