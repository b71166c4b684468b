"""``hybridmap run``: run a plan, and write its metrics and its measured timeline.

The one door to torch and Ray: they are imported while this command runs, by what it imports of the executor.
"""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridmap.commands.options import ForceProfile, Json, Profile
from hybridmap.console import EXIT_INTERRUPTED, say_json, warn, working
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from executor.controller.pools import Devices
    from executor.run_config import RunConfig
    from hybridmap.job.job import Job
    from simulator.plan.plan import Plan

NEEDED = ("torch", "tensordict", "safetensors")


# Long by its options: a parameter of a command is one, with its help.
def run(
    job: Annotated[Path, typer.Argument(metavar="RUN.yaml", help="A job with a run: section.")],
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="plan.json", help="The plan; else run.plan of the file.", show_default=False),
    ] = None,
    profile: Profile = None,
    force_profile: ForceProfile = False,
    iterations: Annotated[
        int | None, typer.Option("--iterations", min=1, help="Instead of run.iterations.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for metrics and timelines.")] = Path(
        "hybridmap-run"
    ),
    scale_down: Annotated[
        bool, typer.Option("--scale-down", help="The same placement on the devices that there are.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the newest checkpoint of this run, by any plan of it.")
    ] = False,
    resume_from: Annotated[
        Path | None,
        typer.Option(
            "--resume-from",
            metavar="DIR",
            help="Resume from this checkpoint, or the newest of this folder.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a plan: generate, score and train as its placement says.

    With --profile, the best plan for this machine, as it was measured. Writes metrics.jsonl (and TensorBoard events),
    timeline.json and timeline-ranks.json; also checkpoints, where the run: section says 'checkpoint: {every: N}'.
    """
    from hybridmap.files.plan import require_folder
    from hybridmap.job.load import load_job

    if plan is not None and profile is not None:
        raise InputError("--plan names the plan, --profile asks for the best one of this machine; give one of them")
    if resume and resume_from is not None:
        raise InputError(
            "--resume takes this run's own checkpoints, --resume-from those of another run; give one of them"
        )
    given = load_job(job, profile, force_profile=force_profile)
    if given.run is None:
        raise InputError(f"{job} has no run: section, which names weights, prompts and rewards (see examples/run)")
    chosen = best_here(given) if profile is not None else plan_to_run(given, given.run, job, plan)
    given.facts().drafting(chosen.draft_tokens)  # a plan that drafts what its job does not know is refused
    require_folder(out)
    require_installed()
    named = plan or (Path(given.run.plan) if given.run.plan else None)
    config = with_planned_engines(given, given.run, named if profile is None else None)
    if scale_down:
        chosen = _scaled(chosen, config)
    begin = resume if resume_from is None else resume_from
    _run(given, chosen, config, out, iterations or given.run.iterations, as_json, begin)


def require_installed() -> None:
    """Raise ``InputError`` where the install has only what planning needs."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"running a plan needs {', '.join(missing)}: pip install 'hybridmap[run]'")


def best_here(given: "Job") -> "Plan":
    """The best plan of a job on the machine whose profile it was read with."""
    from hybridmap.text.notation import placement_title

    with working("planning for this machine ..."):
        from mapper.search.find_plan import find_plan

        found = find_plan(replace(given.request(), runners_up=False))
    warn(f"planned for this machine: {placement_title(found.plan)}, {found.iteration_s:,.3f} s an iteration expected")
    return found.plan


def plan_to_run(given: "Job", config: "RunConfig", job: Path, path: Path | None, *, quiet: bool = False) -> "Plan":
    """The plan of ``--plan`` or of the run section; it must be one of this job's algorithm and roles.

    Warns where the plan was made for another job, unless ``quiet``.
    """
    from hybridmap.files.plan import read_plan
    from hybridmap.job.difference import differences

    if path is None and config.plan is None:
        raise InputError(
            f"{job} names no plan: 'hybridmap plan {job}' finds one, then --plan hybridmap-out/plan.json (or run.plan "
            "in the file); once 'hybridmap profile' has measured this machine, --profile hybridmap-profile plans for it"
        )
    source = path or Path(config.plan or "")
    found, embedded = read_plan(source)
    wanted, has = given.document["algorithm"], list(given.document["models"])
    roles = [entry.role for entry in found.roles]
    if found.algorithm != wanted or sorted(roles) != sorted(has):
        raise InputError(
            f"{source} places {', '.join(roles)} of {found.algorithm}; {job} is {wanted} with {', '.join(has)}"
        )
    for key, here, there in differences(given.document, embedded) if embedded is not None and not quiet else ():
        warn(f"{source} was made for another job: {key} is {there} there, {here} in {job}")
    return found


def with_planned_engines(given: "Job", config: "RunConfig", path: Path | None) -> "RunConfig":
    """``config`` with ``as-planned`` engines replaced by those that the plan was priced for.

    They stand in the job inside the plan file at ``path``; a plan without one, or made just now, is of this job.
    """
    from executor.engines.support import resolved
    from hybridmap.files.plan import read_plan

    embedded = read_plan(path)[1] if path is not None else None
    return resolved(config, (embedded or given.document).get("engines", given.document["engines"]))


def _scaled(plan: "Plan", config: "RunConfig") -> "Plan":
    from executor.launch.choice import count_devices
    from executor.recovery.scale_down import scale_down

    scaled = scale_down(plan, count_devices(plan, config))
    if scaled.num_gpus < plan.num_gpus:
        sizes = ", ".join(f"{pool.name} {pool.num_gpus}" for pool in scaled.pools)
        warn(f"scaled down from {plan.num_gpus} devices to {scaled.num_gpus} ({sizes}); the placement is the same")
    return scaled


def _replan(given: "Job", plan: "Plan", config: "RunConfig") -> "Callable[[Devices], Plan] | None":
    """How the run plans again, if it shall."""
    from executor.run_settings import require_runnable
    from hybridmap.answers.replanning import replanner

    if config.on_failure != "replan":
        return None
    return replanner(given, plan, lambda found: require_runnable(found, config.engines))


# Long by what a run may tell.
def _run(
    given: "Job", plan: "Plan", config: "RunConfig", out: Path, iterations: int, as_json: bool, begin: Path | bool
) -> None:
    from executor.engines.support import transition_note
    from executor.rl.code_reward import isolation_note
    from executor.run import run as run_plan
    from hybridmap.text.run import RunView, run_document, show_run

    for note in (transition_note(plan, config), isolation_note(config)):
        if note is not None:
            warn(note)
    view = RunView(iterations, quiet=as_json)
    try:
        with view:
            timelines = run_plan(
                given.facts(),
                plan,
                config,
                out,
                iterations,
                watch=view.show,
                resume=begin,
                replan=_replan(given, plan, config),
                on_recovery=view.survived,
                on_damaged=warn,
                on_note=warn,
            )
    except KeyboardInterrupt:
        kept = f"; {out / 'metrics.jsonl'} has them" if view.rows else ""
        warn(f"stopped after {len(view.rows)} of {iterations} iterations{kept}")
        raise SystemExit(EXIT_INTERRUPTED) from None
    if as_json:
        say_json(run_document(view.rows, timelines[-1], out))
    else:
        show_run(view.rows, timelines[-1], out)
