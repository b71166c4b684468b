"""A plan file as commands show it: priced again, with a warning where it says other than that."""

from pathlib import Path
from typing import TYPE_CHECKING

from hybridmap.console import warn

if TYPE_CHECKING:
    from hybridmap.files.plan import PlanFile
    from hybridmap.job.job import Job
    from simulator.plan.timeline import Timeline


def read_planned(path: Path) -> "tuple[PlanFile, Job, Timeline]":
    """A plan file, the job that it embeds, and its iteration by the prices of today.

    Errors as in ``files.plan.read_plan_file``; ``InfeasibleError`` if the plan cannot run on the job's cluster.
    """
    from hybridmap.files.changed import changed_since
    from hybridmap.files.plan import read_plan_file
    from hybridmap.job.load import job_from_document
    from simulator.play.simulate import simulate

    file = read_plan_file(path)
    job = job_from_document(file.job, f"{path}: job")
    timeline = simulate(file.plan, job.facts())
    if (changed := changed_since(file, str(path), job.facts().facts_hash, timeline.iteration_s)) is not None:
        warn(changed)
    return file, job, timeline
