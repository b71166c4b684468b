"""A job as this machine would run it: the device and the engines of a profile folder in place of the job's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.console import warn
from hybridmap.job.implementation import ImplementationSection
from hybridmap.job.schema import ClusterSection, EnginesSection
from profiles.device_file import DEVICE_FILE, load_doubts, load_spec
from profiles.engine_names import FOLDER, GENERATION, TRAINING
from profiles.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from hybridmap.job.job import Job

EAGER = {"kernels": "eager", "loss_head": "unfused"}
"""How the torch-native engine is built: uncompiled, log-softmax in tensor operations."""


def on_this_machine(job: Job, folder: Path, ranks: int = 1, *, force: bool = False) -> Job:
    """The job as it was written with cluster, engines, number formats and implementation of this machine.

    Raises
    ------
    InputError
        ``folder`` is no profile of this machine's engine, or one that is marked as disturbed or incomplete and is not
        taken by ``force``; the message says how to make one.
    """
    _require_profile(folder, force)
    dtype = job.run.dtype if job.run is not None else "bf16"
    gpus = max(load_spec(folder).gpus_per_node, ranks)
    given = job.implementation.model_dump(exclude_unset=True)
    engines = {kind: str(path) for kind, path in _engine_files(folder).items()}
    return job.model_copy(
        update={
            "cluster": [ClusterSection(device=str(folder.resolve()), nodes=1, gpus_per_node=gpus)],
            "engines": EnginesSection.model_validate(engines),
            "implementation": ImplementationSection(**{**EAGER, **given, "training_dtype": dtype}),
            "models": {role: section.model_copy(update={"precision": dtype}) for role, section in job.models.items()},
        }
    )


def _engine_files(folder: Path) -> dict[str, Path]:
    names = (("training", TRAINING), ("generation", GENERATION))
    return {kind: folder.resolve() / FOLDER / name for kind, name in names}


def _require_profile(folder: Path, force: bool) -> None:
    for needed in (folder / DEVICE_FILE, *_engine_files(folder).values()):
        if not needed.is_file():
            raise InputError(
                f"{folder} is no profile that a run can be priced with ({needed.name} is missing); "
                f"'hybridmap profile --quick --models CONFIG --out {folder}' makes one"
            )
    if doubts := load_doubts(folder):
        told = f"{folder} is a profile that predicts little: {'; '.join(doubts)}"
        if not force:
            raise InputError(
                f"{told}. Measure again while the machine does nothing else ('hybridmap profile --quick --models "
                "CONFIG --out ANOTHER'), or take it with --force-profile"
            )
        warn(told)
