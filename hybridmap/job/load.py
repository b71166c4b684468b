"""Reading jobs: ``JOB.yaml``, a mapping, or the normal form that ``plan.json`` embeds.

Three steps: the mapping is checked against the schema (``problems.parse_job``), made self-contained
(``resolve.complete``), and its facts and its search are made once, so that whatever is wrong shows now.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hybridmap.job.places import at
from hybridmap.job.problems import parse_job
from hybridmap.job.resolve import complete
from hybridmap.job.unknown_models import with_models
from profiles.calibration import CALIBRATION_FILE
from profiles.yaml_text import read_yaml_file

if TYPE_CHECKING:
    import os

    from hybridmap.job.job import Job


def load_job(
    path: str | os.PathLike[str],
    profile: Path | None = None,
    ranks: int = 1,
    *,
    force_profile: bool = False,
    calibration: Path | None = None,
    model_config: Path | None = None,
    allow_download: bool = False,
) -> Job:
    """Read ``JOB.yaml``; paths in it start from its folder.

    With a ``profile`` folder the job is that of this machine: its device, its engines, at least ``ranks`` ranks. One
    that is marked as disturbed or incomplete is taken with ``force_profile`` only. ``calibration`` stands for what the
    job names; where neither does, a ``calibration.yaml`` beside the job is taken. ``model_config`` is the
    ``config.json`` of the one model that is not known here; with ``allow_download`` such files are fetched from Hugging
    Face into its cache, and never without.

    Raises
    ------
    InputError
        The file cannot be read, is no job, names what does not exist or asks for what cannot be; one message.
    """
    file = Path(path)
    raw = with_models(read_yaml_file(file), file.parent, model_config, allow_download)
    job = parse_job(raw, str(path), file.parent)
    if calibration is not None:
        job = job.model_copy(update={"calibration": [str(calibration.absolute())]})
    elif profile is None:
        job = with_layer_beside(job, file.parent)
    if profile is not None:
        from hybridmap.job.local import on_this_machine

        job = on_this_machine(job, profile, ranks, force=force_profile)
    return _checked(job, str(path), file.parent)


def with_layer_beside(job: Job, folder: Path) -> Job:
    """A job that names no calibration takes the one in its folder."""
    if job.calibration or not (folder / CALIBRATION_FILE).is_file():
        return job
    return job.model_copy(update={"calibration": [CALIBRATION_FILE]})


def with_layer(job: Job, path: Path) -> Job:
    """A complete job priced with the calibration in a file, whatever it had; errors as in ``load_job``."""
    layered = type(job)(**{**dict(job), "calibration": [str(path.absolute())]})  # a copy would keep the facts
    return _checked(layered, str(path), path.parent)


def job_from_mapping(raw: object, source: str, base: Path) -> Job:
    """Read what a job file holds, already parsed; paths in it start from ``base``. Errors as in ``load_job``."""
    return _checked(parse_job(raw, source, base), source, base)


def job_from_document(document: object, source: str = "job") -> Job:
    """Read the normal form of a job again; errors as in ``load_job``, with ``source`` in place of the file."""
    return _checked(parse_job(document, source, None), source, None)


def _checked(written: Job, source: str, base: Path | None) -> Job:
    with at(source):
        job = complete(written, base)
        job.request()  # whatever else is wrong shows now, not when the job is planned
    return job
