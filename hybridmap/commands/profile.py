"""``hybridmap profile``: measure the machine at hand into a folder that jobs can be priced with.

A door to torch: what measures is imported while the command runs.
"""

import datetime
import importlib.util
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.options import Json
from hybridmap.console import EXIT_INTERRUPTED, say, say_json, warn

if TYPE_CHECKING:
    from executor.profiling.journal import Journal
    from executor.profiling.request import Request
    from executor.profiling.run_profile import Profiler
    from hybridmap.profiling.folder import ProfileSummary

JOURNAL = "journal.jsonl"
DEFAULT_OUT = "hybridmap-profile"
AGAIN = "measure again into another --out while the machine does nothing else"


class Device(StrEnum):
    """What to measure."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Dtype(StrEnum):
    """Number formats that operators are measured in."""

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"


def profile(
    device: Annotated[Device, typer.Option("--device", help="auto takes a GPU where there is one.")] = Device.AUTO,
    quick: Annotated[bool, typer.Option("--quick", help="Some minutes, not an hour: fewer sizes, wider gaps.")] = False,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The profile folder; resumed if it is there.")
    ] = Path(DEFAULT_OUT),
    models: Annotated[
        list[str] | None,
        typer.Option("--models", metavar="MODEL", help="Name or config.json to cover; repeat it.", show_default=False),
    ] = None,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="auto: bf16 on GPUs, fp32 on CPUs.")] = Dtype.AUTO,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of a CPU rank.")] = 1,
    as_json: Json = False,
) -> None:
    """Measure this machine: GEMM, attention, memory, copies, collectives, and what the engine adds.

    Leaves tables with sidecars, device.yaml and engine files in DIR. The same command resumes an interrupted one.
    """
    from hybridmap.commands.run import require_installed
    from hybridmap.files.plan import require_folder

    require_installed()
    require_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    request = _request(device.value, quick, models, dtype.value, threads)
    _measure(request, out, as_json)


def _request(device: str, quick: bool, models: list[str] | None, dtype: str, threads: int) -> "Request":
    from executor.profiling.environment import num_ranks, pick_device
    from executor.profiling.request import FULL_S, QUICK_S, Request
    from executor.profiling.timing import Precision
    from profiles.models.catalogue import load_model

    at = pick_device(device)
    kind = at.type
    names = models or _default_models(kind, quick)
    shapes = tuple(load_model(name) for name in names)
    configs = tuple(config for name in names if (config := _probe_config(name, kind)) is not None)
    groups = tuple(n for n in (2, 4, 8) if n <= max(num_ranks(at, threads), 2 if kind == "cpu" else 1))
    return Request(
        device=kind,
        dtype=("bf16" if kind == "cuda" else "fp32") if dtype == "auto" else dtype,
        models=shapes,
        configs=configs,
        budget_s=QUICK_S if quick else FULL_S,
        target=0.05 if quick else 0.03,
        threads=threads,
        groups=groups,
        quick=quick,
        precision=Precision() if quick else Precision(0.02, 9, 200, 0.05, 3.0),
        launchers=("local", "ray") if importlib.util.find_spec("ray") else ("local",),
    )


def _default_models(kind: str, quick: bool) -> list[str]:
    from profiles.models.catalogue import model_names

    if quick:
        return ["qwen2.5-0.5b"] if kind == "cpu" else ["qwen2.5-0.5b", "qwen2.5-1.5b", "llama-3.1-8b"]
    return model_names()


def _probe_config(name: str, kind: str) -> dict[str, Any] | None:
    """The config of a model that the torch-native engine can be probed with here; ``None`` if it cannot."""
    from executor.weights.architecture import DENSE
    from profiles.models.catalogue import load_model, model_config

    document = model_config(name)
    small = load_model(name).hidden <= (512 if kind == "cpu" else 2048)
    return dict(document) if document.get("model_type") in DENSE and small else None


def _measure(request: "Request", out: Path, as_json: bool) -> None:
    from executor.profiling.core_pace import PACE
    from executor.profiling.environment import conditions, describe, pick_device
    from executor.profiling.journal import Journal
    from executor.profiling.run_profile import Profiler
    from hybridmap.profiling.progress import ProfileBar

    device = pick_device(request.device)
    about = describe(device, request.threads)
    header = {name: about[name] for name in ("device_string", "torch", "threads_per_rank")} | {"dtype": request.dtype}
    header |= {"times_at": PACE} if request.device == "cpu" else {}  # an older journal has them as they were
    before = conditions(device)
    with Journal(out / JOURNAL, header) as journal:
        kept = len(journal.rows)
        if kept and not as_json:
            say(f"{out / JOURNAL} has {kept:,} rows already; resuming from there")
        more = {
            "command": " ".join(["hybridmap", *sys.argv[1:]]),
            "date": datetime.date.today().isoformat(),
            "conditions_before": before,
            "dtype": request.dtype,
        }
        try:
            with ProfileBar(request.budget_s, quiet=as_json) as bar:
                profiler = Profiler(request, journal, bar.show)
                profiler.run()
                _settle(profiler, out, {**about, **more})
        except KeyboardInterrupt:
            warn(f"stopped; {out / JOURNAL} keeps {len(journal.rows):,} rows, the same command resumes from there")
            raise SystemExit(EXIT_INTERRUPTED) from None
    more["conditions_after"] = conditions(device)
    _finish(journal, out, {**about, **more}, request, as_json)


def _settle(profiler: "Profiler", out: Path, about: dict[str, Any]) -> None:
    """Measure again what is disturbed, as often and as long as ``rounds`` allows."""
    from executor.profiling.again import measure_again
    from hybridmap.profiling.rounds import SHARE, measured_again, repeat_disturbed, settled

    request, journal = profiler.request, profiler.journal
    until_s = time.monotonic() + SHARE * request.budget_s

    def late() -> bool:
        return time.monotonic() > until_s

    repeat_disturbed(
        lambda: (settled(_rows(journal)), _written(journal, out, about, request).fits),
        lambda rows, number: measure_again(profiler, rows, number, late),
        late,
        measured_again(_rows(journal)),
    )


def _rows(journal: "Journal") -> dict[str, list[dict[str, Any]]]:
    from profiles.tables.write import KEYS

    return {table: journal.of(table) for table in KEYS}


def _written(journal: "Journal", out: Path, about: dict[str, Any], request: "Request") -> "ProfileSummary":
    from hybridmap.profiling.folder import write_profile
    from hybridmap.profiling.quality import Wanted
    from hybridmap.profiling.rounds import measured_again, settled

    kind = "gpu" if request.device == "cuda" else "cpu"
    wanted = Wanted("ray" in request.launchers, bool(request.groups), request.has_neighbours)
    rows = _rows(journal)
    return write_profile(out, settled(rows), {**about, "measured_again": measured_again(rows)}, kind, wanted)


def _finish(journal: "Journal", out: Path, about: dict[str, Any], request: "Request", as_json: bool) -> None:
    from hybridmap.profiling.rounds import measured_again

    summary = _written(journal, out, about, request)
    about = {**about, "measured_again": measured_again(_rows(journal))}
    if as_json:
        say_json(profile_document(summary, out, about))
    else:
        show_profile(summary, out, about["measured_again"])


def profile_document(summary: "ProfileSummary", out: Path, about: dict[str, Any]) -> dict[str, Any]:
    """The answer of ``--json``."""
    errors = {table: {"points": e.points, "median": e.median, "p90": e.p90} for table, e in summary.errors.items()}
    fits = summary.fits
    engine = (
        {}
        if fits is None
        else {
            kind: {"constants": fit.constants, "rows": fit.rows, "left_out_error": fit.left_out}
            for kind, fit in (("training", fits.training), ("generation", fits.generation))
        }
    )
    return {
        "folder": str(out),
        "device": summary.device,
        "rows": summary.rows,
        "failed": summary.failed,
        "left_out_errors": errors,
        "engine": engine,
        "doubts": list(summary.doubts),
        "about": about,
    }


def show_profile(summary: "ProfileSummary", out: Path, again: dict[str, dict[str, int]]) -> None:
    """Print tables, how well they interpolate, and the engine's constants."""
    from hybridmap.console import new_table, say_table

    table = new_table(("table", "rows", "failed", "left out: median", "90 %"), right=("rows", "failed"))
    for name, rows in summary.rows.items():
        error = summary.errors.get(name)
        shown = (f"{100 * error.median:.1f} %", f"{100 * error.p90:.1f} %") if error else ("", "")
        table.add_row(name, f"{rows:,}", f"{summary.failed[name]:,}", *shown)
    say(f"{summary.device}")
    say_table(table)
    say("left out: each point predicted from its neighbours without itself, in a gap twice as wide as any of the table")
    if summary.fits is not None:
        for kind, fit in (("training", summary.fits.training), ("generation", summary.fits.generation)):
            errors = ", ".join(f"{call} {100 * error:.0f} %" for call, error in fit.left_out.items())
            say(f"torch-native {kind}: host costs from {fit.rows} calls; error of calls left out: {errors}")
    for number, tables in again.items():
        counts = ", ".join(f"{rows} of {table}" for table, rows in tables.items())
        say(f"measured again, being disturbed, round {number}: {counts}; the calmest round of each row counts")
    for doubt in summary.doubts:
        warn(doubt)
    if summary.doubts:
        say(f"\nwrote {out}/, which predicts little: plan, run and validate take it with --force-profile only; {AGAIN}")
    else:
        say(f"\nwrote {out}/; use it: hybridmap validate RUN.yaml --profile {out}")
