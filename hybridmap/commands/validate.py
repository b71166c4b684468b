"""``hybridmap validate``: run a plan and set what it took beside what a profile of this machine, or its job, predicts.

A door to torch and Ray, like ``run``: they are imported while the command runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.measured_run import measure
from hybridmap.commands.options import ForceProfile, Json
from hybridmap.commands.profile import DEFAULT_OUT
from hybridmap.commands.run_prices import engines_of, local_facts
from hybridmap.console import say, say_json, warn
from profiles.errors import InputError

if TYPE_CHECKING:
    from hybridmap.validation.comparison import Amount, Comparison
    from hybridmap.validation.measured import Measured
    from profiles.calibration import CalibrationFile
    from simulator.facts import Facts
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

WRITTEN = ("validation.json", "predicted.json", "measured.json", "timeline.html")


def validate(
    job: Annotated[Path, typer.Argument(metavar="RUN.yaml", help="A job with a run: section.")],
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="plan.json", help="The plan; else run.plan of the file.", show_default=False),
    ] = None,
    iterations: Annotated[int, typer.Option("--iterations", min=2, help="Measured ones; some more run before.")] = 20,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="DIR",
            help=f"Predict by what hybridmap profile left  \\[default: {DEFAULT_OUT}]",
            show_default=False,
        ),
    ] = None,
    force_profile: ForceProfile = False,
    as_planned: Annotated[
        bool, typer.Option("--as-planned", help="Predict by the device and the engines that the job names instead.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the comparison.")] = Path(
        "hybridmap-validate"
    ),
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Write what was measured as a layer over these prices.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a plan and compare: predicted and measured time per call and stage, memory, bytes moved.

    Writes validation.json, both timelines and a two-lane plot.
    """
    from hybridmap.commands.run import plan_to_run, require_installed
    from hybridmap.files.plan import require_folder
    from hybridmap.job.load import load_job

    given = load_job(job)
    if given.run is None:
        raise InputError(f"{job} has no run: section, which names weights, prompts and rewards (see examples/run)")
    chosen = plan_to_run(given, given.run, job, plan, quiet=True)
    require_folder(out)
    require_installed()
    folder = _profile_folder(profile, as_planned)
    here = load_job(job, folder, chosen.num_gpus, force_profile=force_profile)
    facts = local_facts(here, given.run, chosen)
    chosen = chosen if folder is None else _local_plan(chosen, facts)
    predicted, iteration_s = _predict(chosen, facts)
    measured = measure(here.facts(), chosen, given.run, out, iterations, folder, quiet=as_json)
    amounts = _amounts(chosen, facts, predicted, measured)
    from hybridmap.validation.comparison import compare
    from hybridmap.validation.drafts import kept_drafts
    from hybridmap.validation.implementation import compare_builds
    from simulator.plan.seal import fingerprint

    builds = compare_builds(facts, engines_of(given.run, chosen), given.run.dtype, measured.kernels)
    drafts = kept_drafts(chosen, facts, measured.timelines)
    found = compare(predicted, iteration_s, measured.timelines, amounts, builds, drafts)
    layer = _calibrate(job, chosen, facts, measured, folder or job.parent) if calibrate else None
    _write(out, found, predicted, measured, fingerprint(chosen.model_dump(mode="json"), facts.facts_hash))
    _show(found, layer, measured, facts, out, folder or job.parent, as_json)


def _profile_folder(profile: Path | None, as_planned: bool) -> Path | None:
    """Whose prices predict; ``None`` for those of the job itself."""
    if as_planned and profile is not None:
        raise InputError(f"--as-planned and --profile {profile}: predict by one of them")
    return None if as_planned else profile or Path(DEFAULT_OUT)


def _local_plan(plan: "Plan", facts: "Facts") -> "Plan":
    """The plan on this machine's device kind, whatever it was made for."""
    pools = tuple(pool.model_copy(update={"device": facts.group.device}) for pool in plan.pools)
    return plan.model_copy(update={"pools": pools})


def _predict(plan: "Plan", facts: "Facts") -> "tuple[Timeline, float]":
    """The timeline without dispatch between calls, and the iteration's time with it."""
    from simulator.calibration.factors import without_dispatch
    from simulator.play.simulate import simulate

    return simulate(plan, without_dispatch(facts)), simulate(plan, facts).iteration_s


def _amounts(plan: "Plan", facts: "Facts", predicted: "Timeline", measured: "Measured") -> "list[Amount]":
    from executor.worker.protocols import registration_of
    from executor.worker.roles import WORKERS
    from hybridmap.validation.comparison import memory_amounts
    from hybridmap.validation.transfers import columns_there, transfer_amounts, weights_amounts

    reads, copies = {}, {}
    for call in facts.dataflow.calls:
        worker = WORKERS.get(call.role)
        registration = registration_of(worker, call.api) if worker else None
        if registration is None or registration.reads is None or facts.roles[call.role].function_s_per_sample:
            continue
        reads[call.key] = columns_there(tuple(registration.reads), facts.algorithm)
        entry = plan.role(call.role)
        layout = entry.generation if call.kind == "generate" else entry.training or entry.inference
        copies[call.key] = layout.num_gpus // layout.dp if layout else 1
    transfers = transfer_amounts(reads, measured.bytes_in, facts.workload, copies)
    weights = weights_amounts(plan, _weight_bytes(plan, facts), measured.bytes_in)
    return [*memory_amounts(predicted, measured.timelines[-1]), *transfers, *weights]


def _weight_bytes(plan: "Plan", facts: "Facts") -> float:
    """Bytes of the model that generates, as it generates."""
    from profiles.units import DTYPE_BYTES

    role = next((entry.role for entry in plan.roles if entry.generation is not None), None)
    return facts.roles[role].shape.num_params * DTYPE_BYTES[facts.roles[role].precision] if role else 0.0


def _calibrate(job: Path, plan: "Plan", facts: "Facts", measured: "Measured", folder: Path) -> "CalibrationFile":
    """A layer from the measured iterations, in place of an earlier one of the profile, or beside the job."""
    from hybridmap.calibration.learn import learn
    from hybridmap.runlogs.read import log_of
    from profiles.atomic_write import write_atomically
    from profiles.calibration import CALIBRATION_FILE, text_of

    layer = learn(log_of(measured.timelines, str(job)), plan, facts).file
    write_atomically(folder / CALIBRATION_FILE, text_of(layer))
    return layer


def _write(out: Path, found: "Comparison", predicted: "Timeline", measured: "Measured", of: str) -> None:
    """Both timelines, the comparison and the plot; ``of`` is the fingerprint of what ran at which prices."""
    from hybridmap.validation.lanes import write_lanes
    from profiles.atomic_write import write_atomically
    from simulator.plan.seal import fingerprint, sealed

    first, last = sealed(predicted, of), sealed(measured.timelines[-1], of)
    records = {
        "validation": sealed(found, fingerprint(first.digest, last.digest)),
        "predicted": first,
        "measured": last,
    }
    for name, record in records.items():
        write_atomically(out / f"{name}.json", record.model_dump_json(indent=1) + "\n")
    if not write_lanes(predicted, measured.timelines[-1], out / "timeline.html"):
        warn("plotly is not installed, so there is no timeline.html: pip install 'hybridmap[run]'")


def _show(
    found: "Comparison",
    layer: "CalibrationFile | None",
    measured: "Measured",
    facts: "Facts",
    out: Path,
    folder: Path,
    as_json: bool,
) -> None:
    from hybridmap.calibration.text import show_stages
    from hybridmap.validation.text import show_comparison

    if as_json:
        say_json(comparison_document(found, layer, measured, facts, out))
        return
    show_comparison(found)
    say(
        f"\npriced as {facts.group.device}, {facts.training.name} and {facts.generation.name}; ran on {measured.device}"
    )
    if facts.calibration.digest:
        say(f"\nprices carry the calibration layer of {folder}")
    say(f"\nload average {measured.load_before:.2f} before the run, {measured.load_after:.2f} after it")
    if measured.slowness != 1.0:
        say(
            f"beside the run this machine's cores took {measured.slowness:.2f} times as long as when profiled; each "
            "measured iteration is divided by what it was then"
        )
    if layer is not None:
        say("\ncalibration, errors on iterations that no factor was taken from:")
        show_stages(layer.stages)
        say(f"wrote {folder / 'calibration.yaml'}; delete it to be without")
    say("\nwrote " + ", ".join(str(out / name) for name in WRITTEN if (out / name).is_file()))


def _longest(named: Mapping[str, float]) -> dict[str, float]:
    """The ten kernels of a call that took longest, in seconds of a watched iteration."""
    return dict(sorted(named.items(), key=lambda item: -item[1])[:10])


def comparison_document(
    found: "Comparison", layer: "CalibrationFile | None", measured: "Measured", facts: "Facts", out: Path
) -> dict[str, Any]:
    """The answer of ``--json``."""
    lines = [
        {**t.model_dump(mode="json"), "error": t.error, "spread": t.spread}
        for t in (*found.stages, found.iteration, *found.calls)
    ]
    return {
        "iterations": found.iterations,
        "tokens": {"predicted": found.predicted_tokens, "measured": found.measured_tokens},
        "timings": lines,
        "amounts": [a.model_dump(mode="json") for a in found.amounts],
        "drafts": [d.model_dump(mode="json") for d in found.drafts],
        "implementation": [{**b.model_dump(mode="json"), "same": b.is_same} for b in found.builds],
        "kernels": {call: _longest(named) for call, named in measured.kernels.items() if named},
        "priced_as": [facts.group.device, facts.training.name, facts.generation.name],
        "ran_on": measured.device,
        "calibrated": bool(facts.calibration.digest),
        "load_average": [measured.load_before, measured.load_after],
        "cores_slower_than_profiled": measured.slowness,
        "calibration": layer.model_dump(mode="json") if layer else None,
        "written": [str(out / name) for name in WRITTEN if (out / name).is_file()],
    }
