"""``hybridmap init``: a first job file, from flags or questions."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.options import AllowDownload, Json, ModelConfig, known_algorithms, known_devices, known_models
from hybridmap.console import say, say_json
from profiles.errors import HybridmapError, InputError

if TYPE_CHECKING:
    from hybridmap.job.template import Answers

DEFAULTS: dict[str, Any] = {
    "algorithm": "grpo",
    "model": "qwen2.5-7b",
    "device": "h100-80gb-sxm",
    "nodes": 1,
    "prompts": 128,
    "samples_per_prompt": 1,
    "prompt_length": 1024,
    "response_length": 8192,
    "minibatches": 4,
}
QUESTIONS = {
    "algorithm": "RL algorithm",
    "model": "Model (a name of `hybridmap models list`, a Hugging Face id, or the path of a config.json)",
    "device": "GPU",
    "nodes": "Nodes",
    "prompts": "Prompts per iteration",
    "samples_per_prompt": "Responses per prompt",
    "prompt_length": "Prompt length (tokens)",
    "response_length": "Longest response (tokens)",
    "minibatches": "Optimizer steps per pass over the samples",
}
GROUP_SIZE = 8

Model = Annotated[str | None, typer.Option(metavar="MODEL", help="Where it is another one.", show_default=False)]
Whole = Annotated[int | None, typer.Option(min=1, metavar="N", show_default=False)]
Algorithm = Annotated[
    str | None,
    typer.Option("--algorithm", help="ppo, grpo, remax, ...", show_default=False, autocompletion=known_algorithms),
]
EveryModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Every role's model: a name, a Hugging Face id, or the path of a config.json.",
        show_default=False,
        autocompletion=known_models,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="A name of `hybridmap devices list`, or what people call it: H100.",
        show_default=False,
        autocompletion=known_devices,
    ),
]
MeanLength = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Mean of the log-normal lengths; else a quarter of the longest.", show_default=False
    ),
]


def init(
    file: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The file to write.")] = Path("job.yaml"),
    algorithm: Algorithm = None,
    model: EveryModel = None,
    critic: Model = None,
    reference: Model = None,
    reward: Model = None,
    cost: Model = None,
    device: Device = None,
    nodes: Whole = None,
    prompts: Whole = None,
    samples_per_prompt: Whole = None,
    prompt_length: Whole = None,
    response_length: Whole = None,
    mean_response_length: MeanLength = None,
    minibatches: Whole = None,
    model_config: ModelConfig = None,
    allow_download: AllowDownload = False,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="SYSTEM/TRAINER", help="The system that is to run it.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of job files, for editors, and write nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a commented job file.

    What is not given as a flag is asked for on a terminal, and has its default elsewhere.
    """
    if schema:
        from hybridmap.job.job import Job

        say_json(Job.json_schema())
        return
    others = {"critic": critic, "reference": reference, "reward": reward, "cost": cost}
    given = {
        "algorithm": algorithm,
        "model": _given_model(model, list(others.values()), model_config, allow_download),
        "device": device,
        "nodes": nodes,
        "prompts": prompts,
        "samples_per_prompt": samples_per_prompt,
        "prompt_length": prompt_length,
        "response_length": response_length,
        "minibatches": minibatches,
    }
    if not force and file.exists():
        raise InputError(f"{file}: is there already; give another name or --force")
    ask = sys.stdin.isatty() and sys.stderr.isatty() and not as_json
    answers = replace(_answers(given, others, mean_response_length, file, ask), target=_target(target))
    _write(answers, file, force)
    if as_json:
        say_json({"written": [str(file)], "algorithm": answers.algorithm, "models": dict(answers.models)})
        return
    say(f"wrote       {file}")
    say(f"next        hybridmap fit {file}")
    say(f"            hybridmap plan {file}")


def _given_model(name: str | None, others: list[str | None], config: Path | None, allow_download: bool) -> str | None:
    """The model as it was given, or its config where nobody here knows it; where that is allowed all are fetched."""
    from hybridmap.job.unknown_models import is_unknown
    from profiles.models.hub_fetch import fetch_config

    if config is not None:
        if name is not None and not is_unknown(name):
            raise InputError(f"--model-config {config} is of a model that is not known, and {name} is; leave out one")
        return str(config)
    for each in (name, *others):
        if allow_download and each is not None and is_unknown(each):
            fetch_config(each)
    return name


def _write(answers: "Answers", file: Path, force: bool) -> None:
    """The job file; a job that cannot be is refused before anything is written."""
    from hybridmap.files.write import write_file
    from hybridmap.job.load import job_from_mapping, load_job
    from hybridmap.job.template import job_text
    from profiles.yaml_text import parse_yaml

    text = job_text(answers)
    job_from_mapping(parse_yaml(text, str(file)), str(file), file.parent)
    write_file(file, text, replace=force)
    load_job(file)


def _answers(
    given: dict[str, Any], others: dict[str, str | None], mean: int | None, file: Path, ask: bool
) -> "Answers":
    """Flags first, then questions on a terminal, then defaults; each answer is checked when it is given."""
    from hybridmap.job.template import Answers, roles_of
    from profiles.store import device_called
    from simulator.plan.algorithms import algorithm_of

    def known_algorithm(name: str) -> str:
        return algorithm_of(name).name

    answered = {"algorithm": _one("algorithm", given, DEFAULTS, ask, known_algorithm)}
    defaults = DEFAULTS | (
        {"samples_per_prompt": GROUP_SIZE} if algorithm_of(answered["algorithm"]).compares_responses else {}
    )
    checks: dict[str, Callable[[str], Any]] = {"model": lambda name: _model(name, file), "device": device_called}
    for key in QUESTIONS:
        if key not in answered:
            answered[key] = _one(key, given, defaults, ask, checks.get(key, int))
    roles = roles_of(answered["algorithm"])
    for role in (role for role, name in others.items() if name is not None and role not in roles):
        roles = (*roles, role)
    models = {role: _model(others.get(role) or answered["model"], file) for role in roles}
    rest = {key: value for key, value in answered.items() if key != "model"}
    return Answers(models=models, mean_response_length=mean, **rest)


def _one(key: str, given: dict[str, Any], defaults: dict[str, Any], ask: bool, check: Callable[[str], Any]) -> Any:
    if given[key] is not None:
        return check(given[key])
    if not ask:
        return check(defaults[key])
    while True:
        try:
            return check(typer.prompt(QUESTIONS[key], default=defaults[key], err=True))
        except (HybridmapError, ValueError) as error:
            typer.echo(f"  {error}", err=True)


def _model(name: str, file: Path) -> str:
    """A model as the job file names it: a path below the file's folder starts there, any other from the root."""
    from profiles.models.catalogue import hf_id, is_known, load_model, model_names
    from profiles.models.hub_cache import cached_config

    load_model(name)
    if name in model_names():
        return name
    known = next((each for each in model_names() if hf_id(each).lower() == name.lower()), None)
    if known is not None or (not Path(name).exists() and (is_known(name) or cached_config(name))):
        return known or name
    path, folder = Path(name).resolve(), file.parent.resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _target(name: str | None) -> str | None:
    """A target that there is, as it was written."""
    from hybridmap.exports.targets import OWN, target_of

    if name is not None and name != OWN:
        target_of(name)
    return name
