"""A verl run as a job and a plan: the other way round of ``verl_settings``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hybridmap.config import job_from_mapping
from hybridmap.exports.export import Source
from hybridmap.exports.verl_job import Given as Given
from hybridmap.exports.verl_job import job_of, pools_of, roles_of
from hybridmap.exports.verl_plan import plan_of

if TYPE_CHECKING:
    from hybridmap.config import Job
    from hybridmap.exports.verl_config import VerlConfig
    from simulator.plan import Plan


@dataclass(frozen=True)
class Imported:
    """The job and the plan of a run, and what could not be read as it is meant."""

    job: Job
    plan: Plan
    notes: tuple[str, ...]

    @property
    def source(self) -> Source:
        return Source(self.plan, self.job.facts(), self.job.document)


def import_verl(config: VerlConfig, given: Given) -> Imported:
    """Read a run.

    Raises ``InputError`` for what hybridmap has no word for: an advantage estimator, a model outside the catalogue,
    a batch that is no whole number.
    """
    roles = roles_of(config)
    pools = pools_of(config, roles, given.device)
    raw = job_of(config, given, roles, pools)
    job = job_from_mapping(raw, config.source, Path())
    plan, notes = plan_of(config, job, pools)
    return Imported(job, plan, tuple(notes))
