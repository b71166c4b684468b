"""Arguments and options that several commands share, so that they mean and read the same everywhere."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Placement(StrEnum):
    """Placements by name, and any of all set partitions."""

    ANY = "any"
    COLOCATE = "colocate"
    SPLIT = "split"
    STANDALONE = "standalone"


JobArgument = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job: models, workload, cluster.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout and nothing else.")]
ModelConfig = Annotated[
    Path | None,
    typer.Option(
        "--model-config",
        metavar="config.json",
        help="Shape of the model that the job names and nobody here knows.",
        show_default=False,
    ),
]
AllowDownload = Annotated[
    bool,
    typer.Option("--allow-download", help="Fetch the config.json of unknown models from Hugging Face."),
]
ShowProgress = Annotated[
    bool, typer.Option("--progress", help="Say on stderr what the search does, where that is no terminal either.")
]
Systems = Annotated[bool, typer.Option("--systems", help="Compare with other RL systems instead of placements.")]
Even = Annotated[bool, typer.Option("--even", help="Equal halves; for the split placement.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Seed of the solver.")]


def _positive(value: float) -> float:
    if not 0 < value < float("inf"):
        raise typer.BadParameter(f"{value:g} is not a positive number of seconds")
    return value


def known_devices(incomplete: str) -> list[str]:
    """Device names that begin so, for the shell."""
    from profiles.store import device_names

    return [name for name in device_names() if name.startswith(incomplete)]


def known_models(incomplete: str) -> list[str]:
    """Model names that begin so, for the shell."""
    from profiles.models.catalogue import model_names

    return [name for name in model_names() if name.startswith(incomplete)]


def known_algorithms(incomplete: str) -> list[str]:
    """Algorithms that begin so, for the shell."""
    from simulator.plan.algorithms import ALGORITHMS

    return [name for name in sorted(ALGORITHMS) if name.startswith(incomplete)]


Hint = Annotated[
    Path | None,
    typer.Option("--hint", metavar="plan.json", help="Start the search from this plan.", show_default=False),
]
TargetSystem = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="SYSTEM/TRAINER",
        help="Search what this system runs: verl/megatron, verl/fsdp, nemo-rl/..., openrlhf, slime.",
        show_default=False,
    ),
]
Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile", metavar="DIR", help="Plan for this machine, as hybridmap profile measured it.", show_default=False
    ),
]
ForceProfile = Annotated[
    bool, typer.Option("--force-profile", help="Take a profile that is marked as disturbed or incomplete.")
]
CalibrationLayer = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        metavar="calibration.yaml",
        help="What hybridmap calibrate wrote; else what the job names, or one beside it.",
        show_default=False,
    ),
]
TimeLimit = Annotated[
    float,
    typer.Option("--time-limit", metavar="SECONDS", callback=_positive, help="Longest time to search, per placement."),
]
