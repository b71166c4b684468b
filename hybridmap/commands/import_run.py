"""``hybridmap import``: read a run of another system, and say what would be faster."""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.options import AllowDownload, CalibrationLayer, Json, TimeLimit, known_devices
from hybridmap.console import say, say_json, working
from profiles.errors import InputError

if TYPE_CHECKING:
    from hybridmap.exports.advice import Advice
    from hybridmap.exports.imported import Given, Imported
    from hybridmap.exports.reader import Reader
    from hybridmap.job.job import Job
    from mapper.result import Result
    from simulator.plan.timeline import Timeline


class Origin(StrEnum):
    """Systems whose runs can be read."""

    VERL = "verl"
    NEMO_RL = "nemo-rl"
    OPENRLHF = "openrlhf"
    SLIME = "slime"


Config = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A launch script, a recipe, or overrides.yaml or config.yaml of Hydra.")
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="The GPU it runs on: a name of `hybridmap devices list`, or what people call it: H100.",
        autocompletion=known_devices,
    ),
]
System = Annotated[Origin, typer.Option("--from", help="The system whose run it is.")]
Network = Annotated[
    float | None, typer.Option("--inter-node-gbps", help="Network of a node; else its card's.", show_default=False)
]
MeanResponse = Annotated[
    int | None,
    typer.Option("--mean-response-length", min=1, metavar="N", help="Tokens, from your logs.", show_default=False),
]
PromptTokens = Annotated[
    float | None, typer.Option("--prompt-tokens", metavar="N", help="Mean prompt, from your logs.", show_default=False)
]
Models = Annotated[
    list[str] | None, typer.Option("--model", metavar="ROLE=NAME", help="A role's model, where its path is unknown.")
]
ModelConfig = Annotated[
    Path | None,
    typer.Option(
        "--model-config", metavar="config.json", help="Shape of the model trained, if unknown.", show_default=False
    ),
]
Variables = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable that the launch script finds set.")
]


# Long by its options: a parameter of a command is one, with its help.
def import_run(
    config: Config,
    device: Device,
    origin: System = Origin.VERL,
    gbps: Network = None,
    mean_response: MeanResponse = None,
    prompt_tokens: PromptTokens = None,
    model: Models = None,
    model_config: ModelConfig = None,
    allow_download: AllowDownload = False,
    env: Variables = None,
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="LOG", help="Lengths from a log, as for calibrate.", show_default=False),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the changed script beside the old one, as NAME.hybridmap.sh.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the plans.")] = Path("hybridmap-out"),
    time_limit: TimeLimit = 60.0,
    calibration: CalibrationLayer = None,
    as_json: Json = False,
) -> None:
    """Read a run of another system, and say what would be faster.

    Simulates the run as it is configured, finds the best plan that its system runs for the same job, and lists what to
    change, in steps. Writes both plans, and the job, into a folder.
    """
    from hybridmap.commands.import_text import show_import
    from hybridmap.exports.doubt import as_it_runs
    from hybridmap.exports.imported import Given
    from hybridmap.exports.reader import READERS
    from hybridmap.files.plan import require_folder
    from hybridmap.job.load import with_layer

    require_folder(out)
    reader = READERS[origin.value]
    variables = name_values("--env", "NAME=VALUE, such as NNODES=4", env or [])
    models = name_values("--model", "ROLE=NAME, such as actor=qwen2.5-7b", model or [])
    if model_config is not None:
        models = {"actor": str(model_config.resolve()), "reference": str(model_config.resolve())} | models
    read = reader.read(config, variables)
    calibration = calibration or _layer_beside(config)
    if log is not None:
        mean_response, prompt_tokens = lengths_of(log, mean_response, prompt_tokens)
    elif calibration is not None:
        mean_response, prompt_tokens = _learned_lengths(calibration, mean_response, prompt_tokens)
    given = Given(device, gbps, mean_response, prompt_tokens, models)
    imported = _imported(reader, read, given, allow_download)
    if calibration is not None:
        imported = replace(imported, job=with_layer(imported.job, calibration))
    imported = replace(imported, job=imported.job.scheduled_as(imported.plan))
    now, why = as_it_runs(imported.plan, imported.job.facts())
    advice = _advised(reader, imported, read, time_limit)
    written = _write(imported, None if why else now, advice.best, out)
    if apply and advice.steps:
        written.append(_applied(config, origin.value, advice, variables))
    if as_json:
        say_json(_document(imported, now, why, advice, written))
        return
    show_import(imported, now, why, advice, origin.value)
    say(f"wrote       {', '.join(written)}")


def _imported(reader: "Reader[Any]", read: Any, given: "Given", allow_download: bool) -> "Imported":
    """The run as a job and a plan; a model that is not known is fetched where that is allowed, one after the other."""
    from hybridmap.exports.models import UnknownModelError
    from profiles.models.hub_fetch import fetch_config

    fetched: set[str] = set()
    while True:
        try:
            return reader.imported(read, given)
        except UnknownModelError as error:
            if not allow_download or error.model in fetched:
                raise
            fetched.add(error.model)
            fetch_config(error.model)


def _applied(config: Path, system: str, advice: "Advice", variables: dict[str, str]) -> str:
    """The changed script beside the old one; gives its path."""
    from hybridmap.exports.apply import changed_text
    from hybridmap.exports.launched import script_text
    from hybridmap.files.write import write_file

    beside = config.with_name(f"{config.stem}.hybridmap{config.suffix}")
    text = changed_text(config, script_text(config), system, advice.changes, variables)
    write_file(beside, text, replace=True)
    return str(beside)


def _advised(reader: "Reader[Any]", imported: "Imported", read: object, time_limit_s: float) -> "Advice":
    from hybridmap.exports.advice import advise
    from mapper.search.find_plan import find_plan

    def search(job: "Job") -> "Result":
        return find_plan(replace(job.request(), runners_up=False, time_limit_s=time_limit_s))

    with working("searching a better plan ..."):
        return advise(reader, imported, read, search)


def lengths_of(log: Path, mean_response: int | None, prompt_tokens: float | None) -> tuple[int | None, float | None]:
    """Means of a log for what was not given otherwise; ``InputError`` where it says none."""
    from hybridmap.runlogs.read import read_log

    found = read_log(log).mean_lengths()
    if found.response_mean is None and mean_response is None:
        raise InputError(f"{log}: says nothing of response lengths; give --mean-response-length")
    mean = mean_response if found.response_mean is None else mean_response or max(1, round(found.response_mean))
    return mean, prompt_tokens or found.prompt_mean or None


def _layer_beside(config: Path) -> Path | None:
    """The calibration in the folder of a script, as a job takes the one in its own."""
    from profiles.calibration import CALIBRATION_FILE

    beside = config.parent / CALIBRATION_FILE
    return beside if beside.is_file() else None


def _learned_lengths(
    layer: Path, mean_response: int | None, prompt_tokens: float | None
) -> tuple[int | None, float | None]:
    """Means that a calibration learned, for what was not given otherwise; a file that is none is named later."""
    from profiles.calibration import read_calibration

    learned = read_calibration(layer).lengths if layer.is_file() else None
    if learned is None:
        return mean_response, prompt_tokens
    return mean_response or max(1, round(learned.response_mean)), prompt_tokens or learned.prompt_mean or None


def name_values(option: str, expected: str, texts: Sequence[str]) -> dict[str, str]:
    """Words ``NAME=VALUE`` of an option as a mapping; ``InputError`` says what was ``expected``."""
    pairs = [text.partition("=") for text in texts]
    for name, sign, value in pairs:
        if not sign or not name or not (value or option == "--env"):
            raise InputError(f"{option} {name}{sign}{value}: expected {expected}")
    return {name: value for name, _, value in pairs}


def _write(imported: "Imported", now: "Timeline | None", best: "Result", out: Path) -> list[str]:
    import yaml

    from hybridmap.files.plan import plan_file_of, planned_records, write_records
    from hybridmap.files.write import write_file

    record = plan_file_of(imported.job, best, "any", False)
    records = planned_records(record, best.timeline)
    if now is not None:
        update = {
            "plan": imported.plan,
            "iteration_s": now.iteration_s,
            "stages": dict(now.stages),
            "status": "feasible",
            "gap": (now.iteration_s - best.bound_s) / now.iteration_s,
            "tokens_per_s": now.tokens_per_s,
            "num_gpus": now.num_gpus,
            "runners_up": (),
        }
        records["imported.json"] = record.model_copy(update=update)
    written = [str(path) for path in write_records(out, records)]
    write_file(out / "job.yaml", yaml.safe_dump(imported.job.document, sort_keys=False))
    return [*written, str(out / "job.yaml")]


def _document(
    imported: "Imported", now: "Timeline | None", why: list[str], advice: "Advice", written: list[str]
) -> dict[str, Any]:
    best = advice.best
    return {
        "job": imported.job.document,
        "run": {
            "plan": imported.plan.model_dump(mode="json"),
            "fits": not why,
            "why_not": why,
            "iteration_s": None if now is None else now.iteration_s,
            "stages": {} if now is None else dict(now.stages),
        },
        "best": {"plan": best.plan.model_dump(mode="json"), "iteration_s": best.iteration_s, "status": best.status},
        "changes": [{"key": key, "now": old, "change_to": new} for key, old, new in advice.changes],
        "steps": [
            {"about": s.name, "keys": [key for key, _, _ in s.changes], "alone_s": s.alone_s, "after_s": s.after_s}
            for s in advice.steps
        ],
        "changed_iteration_s": advice.iteration_s,
        "good_enough": not advice.steps and not advice.reason,
        "no_plan": advice.reason or None,
        "notes": list(imported.notes),
        "written": written,
    }
