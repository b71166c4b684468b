"""What the tools answer: typed, in seconds and GiB, with what a reader must know beside each number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from hybridmap.job.notes import notes
from hybridmap.text.plan import interval_s, role_rows
from profiles.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mapper.result import Result
    from simulator.facts import Facts
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline


class PoolAnswer(BaseModel):
    """A set of GPUs, who shares it, and how full its fullest GPU is."""

    name: str
    num_gpus: int
    device: str
    roles: dict[str, str] = Field(description="Layout of each role: training, generation and scoring, in words.")
    used_gib: float
    capacity_gib: float


class PlanAnswer(BaseModel):
    """One iteration of a plan."""

    placement: str = Field(description="Which roles share GPUs, {a, b} {c}.")
    iteration_s: float
    low_s: float = Field(description="Lower end of the 90 % interval of iteration_s.")
    high_s: float
    tokens_per_s: float
    num_gpus: int
    stages_s: dict[str, float] = Field(description="Seconds of each stage along the critical path; they add up.")
    basis: dict[str, float] = Field(description="Share of the time that rests on each kind of evidence.")
    pools: list[PoolAnswer]
    proof: str = Field(description="How good the plan is known to be; empty for a plan that was given.")
    notes: list[str]
    plan_file: str | None = Field(default=None, description="Where plan.json was written, for the other tools.")


class FitAnswer(BaseModel):
    """Whether a job fits, and what would make it."""

    fits: bool
    fewest_gpus: int | None = Field(description="The fewest GPUs that hold the job, beyond the cluster's if need be.")
    needs_gib: float | None = Field(description="Memory of a GPU on which a plan would fit, where none does.")
    remedies: list[str]


class ComparedAnswer(BaseModel):
    """The best plan of one placement; ``error`` where none fits."""

    placement: str
    iteration_s: float | None
    tokens_per_s: float | None
    num_gpus: int | None
    error: str | None


class ExportAnswer(BaseModel):
    """A plan for another system: files by name, and where that system cannot follow."""

    files: dict[str, str]
    cannot_follow: list[str]


class ImportAnswer(BaseModel):
    """A run of another system as it is configured; one that does not fit, but may by the count's error, has a time."""

    fits: bool
    why_not: list[str]
    run: PlanAnswer | None
    notes: list[str]


class LearnedAnswer(BaseModel):
    """What a log says of the prices."""

    steps: int
    factors: dict[str, float] = Field(description="On calls and host times; 1 leaves the price as it was.")
    errors_before: dict[str, float] = Field(description="Predicted over measured, less one, by stage.")
    errors_after: dict[str, float]
    mean_response_tokens: float | None
    lacks: list[str]
    calibration_file: str


def plan_answer(
    plan: Plan, timeline: Timeline, facts: Facts, proof: str = "", more: tuple[str, ...] = ()
) -> PlanAnswer:
    """A plan and its time as an answer."""
    low_s, high_s = interval_s(timeline)
    pools = []
    for pool in plan.pools:
        memory = timeline.memory[pool.name]
        layouts = {row[0]: " | ".join(text for text in row[1:] if text != "-") for row in role_rows(plan, pool)}
        pools.append(
            PoolAnswer(
                name=pool.name,
                num_gpus=pool.num_gpus,
                device=pool.device,
                roles=layouts,
                used_gib=memory.used_bytes / GIB,
                capacity_gib=memory.capacity_bytes / GIB,
            )
        )
    return PlanAnswer(
        placement=plan.placement,
        iteration_s=timeline.iteration_s,
        low_s=low_s,
        high_s=high_s,
        tokens_per_s=timeline.tokens_per_s,
        num_gpus=plan.num_gpus,
        stages_s={str(stage): s for stage, s in timeline.stages.items() if s},
        basis=timeline.basis,
        pools=pools,
        proof=proof,
        notes=[*notes(facts), *more],
    )


def proof_of(result: Result) -> str:
    """The proof of a search in one line."""
    return (
        f"{result.status} among {result.num_priced:,} priced configurations: no plan of this search beats "
        f"{result.bound_s:,.2f} s, gap {100 * result.gap:.2f} %"
    )


def compared_answer(row: Mapping[Any, Any]) -> ComparedAnswer:
    """A row of ``hybridmap.compare``; what is missing there is missing here."""
    known = {key: row.get(key) for key in ComparedAnswer.model_fields}
    return ComparedAnswer.model_validate({key: None if value != value else value for key, value in known.items()})
