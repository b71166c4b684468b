"""One search per combination of settings: how the plan and its time change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import model_validator

from hybridmap.job.edit import combinations, with_settings
from hybridmap.job.load import job_from_mapping
from hybridmap.job.unknown_models import with_models
from hybridmap.text.frontier import changes
from hybridmap.version import __version__
from profiles.calibration import CALIBRATION_FILE
from profiles.errors import HybridmapError, InfeasibleError, InputError
from profiles.yaml_text import read_yaml_file
from simulator.plan.dataflow import Stage
from simulator.plan.plan import Plan, Record
from simulator.plan.seal import Sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hybridmap.job.edit import Setting
    from hybridmap.job.job import Job
    from mapper.result import Result

MOST_SEARCHES = 64


@dataclass(frozen=True)
class Case:
    """One combination of settings: its job, and the best plan of it or why there is none."""

    settings: dict[str, Any]
    job: Job
    result: Result | None
    error: HybridmapError | None = None


class CaseRecord(Record):
    """A case in ``what-if.json``; numbers are ``null`` where nothing fits. ``changes`` is against the job as given."""

    settings: dict[str, Any]
    status: Literal["optimal", "feasible", "infeasible"]
    error: str | None
    iteration_s: float | None
    bound_s: float | None
    tokens_per_s: float | None
    num_gpus: int | None
    fewest_gpus: int | None
    placement: str | None
    changes: str
    stages: dict[Stage, float]
    plan: Plan | None


class WhatIfFile(Sealed):
    """The content of ``what-if.json``: the job as given, then every combination in order."""

    hybridmap_version: str
    job: dict[str, Any]
    facts_hash: str
    settings: dict[str, list[Any]]
    seed: int
    base: CaseRecord
    cases: tuple[CaseRecord, ...]

    @model_validator(mode="after")
    def _cases_have_the_settings(self) -> WhatIfFile:
        if not self.settings:
            raise ValueError("no settings")
        for i, case in enumerate(self.cases):
            if set(case.settings) != set(self.settings):
                raise ValueError(f"cases.{i} sets {', '.join(case.settings)}, the file {', '.join(self.settings)}")
        return self


def what_if(
    path: Path,
    settings: Sequence[Setting],
    *,
    seed: int = 0,
    time_limit_s: float = 60.0,
    progress: Callable[[int, int], None] | None = None,
    calibration: Path | None = None,
    model_config: Path | None = None,
) -> tuple[Case, tuple[Case, ...]]:
    """The job of ``path`` as given, and every combination of ``settings``, each planned under the job's objective.

    All jobs are read before the first search, so a wrong setting fails at once. ``calibration`` and
    ``model_config``: as in ``load_job``.

    Raises
    ------
    InputError
        A setting that names no place in the job, a job that cannot be, or too many combinations.
    """
    raw = with_models(read_yaml_file(path), path.parent, model_config, allow_download=False)
    raw = _with_layer(raw, path.parent, calibration)
    chosen = combinations(settings, MOST_SEARCHES)
    jobs = [_job(raw, values, path) for values in ({}, *chosen)]
    cases = []
    for i, (values, job) in enumerate(zip(({}, *chosen), jobs, strict=True)):
        if progress is not None:
            progress(i, len(jobs))
        cases.append(_planned(values, job, seed, time_limit_s))
    return cases[0], tuple(cases[1:])


def _with_layer(raw: object, folder: Path, calibration: Path | None) -> object:
    """The job with the layer that is given, or with one in its folder where it names none."""
    if not isinstance(raw, dict):
        return raw  # reading it as a job says what it is
    if calibration is not None:
        return {**raw, "calibration": [str(calibration.absolute())]}
    if not raw.get("calibration") and (folder / CALIBRATION_FILE).is_file():
        return {**raw, "calibration": [CALIBRATION_FILE]}
    return raw


def _job(raw: object, values: dict[str, Any], path: Path) -> Job:
    if not values:
        return job_from_mapping(raw, str(path), path.parent)
    name = ", ".join(f"{key}={value}" for key, value in values.items())
    return job_from_mapping(with_settings(raw, values), f"{path} with {name}", path.parent)


def _planned(values: dict[str, Any], job: Job, seed: int, time_limit_s: float) -> Case:
    from mapper.search.find_plan import find_plan

    try:
        result = find_plan(replace(job.request().fastest(), seed=seed, time_limit_s=time_limit_s, runners_up=False))
    except InfeasibleError as error:
        return Case(values, job, None, error)
    except InputError as error:  # nothing found in its time
        return Case(values, job, None, error)
    return Case(values, job, result)


def record_of(case: Case, base: Case) -> CaseRecord:
    """A case as it is written; what changed is told against ``base``."""
    result, told = case.result, ""
    if result is not None and base.result is not None and case is not base:
        told = changes(base.result.plan, result.plan)
    return CaseRecord(
        settings=case.settings,
        status="infeasible" if result is None else "optimal" if result.status == "optimal" else "feasible",
        error=None if case.error is None else str(case.error),
        iteration_s=None if result is None else result.iteration_s,
        bound_s=None if result is None else result.bound_s,
        tokens_per_s=None if result is None else result.timeline.tokens_per_s,
        num_gpus=None if result is None else result.plan.num_gpus,
        fewest_gpus=case.error.fewest_gpus if isinstance(case.error, InfeasibleError) else None,
        placement=None if result is None else result.plan.placement,
        changes=told,
        stages={} if result is None else dict(result.timeline.stages),
        plan=None if result is None else result.plan,
    )


def what_if_file_of(base: Case, cases: tuple[Case, ...], settings: Sequence[Setting], seed: int) -> WhatIfFile:
    """The file of some cases."""
    return WhatIfFile(
        hybridmap_version=__version__,
        job=base.job.document,
        facts_hash=base.job.facts().facts_hash,
        settings={setting.path: list(setting.values) for setting in settings},
        seed=seed,
        base=record_of(base, base),
        cases=tuple(record_of(case, base) for case in cases),
    )
