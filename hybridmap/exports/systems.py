"""Which systems a plan exports to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.exports.export import Export, Source
from hybridmap.exports.nemo_rl import export as nemo_rl
from hybridmap.exports.openrlhf import export as openrlhf
from hybridmap.exports.slime import export as slime
from hybridmap.exports.verl import export as verl
from hybridmap.exports.verl import import_run as verl_import
from hybridmap.job.load import job_from_document
from profiles.errors import InputError
from simulator.feasibility import require_feasible

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridmap.files.plan import PlanFile

SYSTEMS: dict[str, Callable[[Source], Export]] = {
    "verl": verl.export_verl,
    "nemo-rl": nemo_rl.export_nemo_rl,
    "openrlhf": openrlhf.export_openrlhf,
    "slime": slime.export_slime,
}


WRITTEN: dict[str, Callable[[str, str, Source], Source]] = {
    "run_verl.sh": verl_import.as_written,
    "recipe.yaml": nemo_rl.as_written,
    "run_openrlhf.sh": openrlhf.as_written,
    "run_slime.sh": slime.as_written,
}
"""What reads a file of an export back, by its name: text, name, and the export's own plan and job to what is run."""


def export_plan(file: PlanFile, source: str, system: str) -> Export:
    """The plan of a plan file for one of ``SYSTEMS``.

    Raises ``InfeasibleError`` for a plan that cannot run and ``InputError`` for a job that the system does not know.
    """
    job = job_from_document(file.job, f"{source}: job")
    require_feasible(file.plan, job.facts())
    if len(file.plan.gpus) > 1:
        raise InputError(
            f"{source} has pools of {' and '.join(file.plan.gpus)}; {system} puts its workers on any GPU that is free, "
            "so such a plan cannot be told to it; plan for one kind (pin the device of each role, or list one)"
        )
    return SYSTEMS[system](Source(file.plan, job))
