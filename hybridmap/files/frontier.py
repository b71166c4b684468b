"""``frontier.json``: every point of the frontier with its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from hybridmap.version import __version__
from mapper.result import OPTIMAL_GAP
from simulator.plan.plan import Plan, Record
from simulator.plan.seal import Sealed

if TYPE_CHECKING:
    from hybridmap.job.job import Job
    from mapper.analysis.frontier import FrontierPoint


class PointRecord(Record):
    """The fastest plan on a number of GPUs; fields as in ``mapper.analysis.frontier.FrontierPoint``."""

    num_gpus: int
    up_to_gpus: int
    status: Literal["optimal", "feasible"]
    proven: bool
    iteration_s: float
    bound_s: float
    listed_bound_s: float | None = None
    gap: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    cost_per_iteration: float | None
    plan: Plan


class FrontierFile(Sealed):
    """The content of ``frontier.json``; ``job`` is the job's document. Points have ascending GPUs."""

    hybridmap_version: str
    job: dict[str, Any]
    facts_hash: str
    seed: int
    points: tuple[PointRecord, ...]


def frontier_file_of(job: Job, points: tuple[FrontierPoint, ...], seed: int) -> FrontierFile:
    """The file of a frontier."""
    return FrontierFile(
        hybridmap_version=__version__,
        job=job.document,
        facts_hash=job.facts().facts_hash,
        seed=seed,
        points=tuple(_record(point) for point in points),
    )


def point_document(point: FrontierPoint) -> dict[str, Any]:
    """A point as ``--json`` prints it."""
    return _record(point).model_dump(mode="json")


def _record(point: FrontierPoint) -> PointRecord:
    tokens_per_s = point.timeline.tokens_per_s
    return PointRecord(
        num_gpus=point.num_gpus,
        up_to_gpus=point.up_to_gpus,
        status="optimal" if point.gap <= OPTIMAL_GAP else "feasible",
        proven=point.proven,
        iteration_s=point.iteration_s,
        bound_s=point.bound_s,
        listed_bound_s=point.listed_bound_s,
        gap=point.gap,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / point.num_gpus,
        cost_per_iteration=point.cost_per_iteration,
        plan=point.plan,
    )
