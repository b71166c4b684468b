"""The sections of ``JOB.yaml`` that say what is asked of the search: objective, schedule, opt-in layouts and pins."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field

from hybridmap.job.leaves import (
    MOST_GPUS_PER_NODE,
    MOST_NODES,
    Expected,
    Flag,
    Name,
    Number,
    Positive,
    Section,
    Share,
    SparseSection,
    Tokens,
    Whole,
    refusal,
)
from mapper.search_options import USUAL
from simulator.plan.plan import RECOMPUTE_LEVELS
from simulator.plan.plan import Recompute as RecomputeLevel

MOST_GPUS = MOST_NODES * MOST_GPUS_PER_NODE
MOST_STEPS = 64

Minimised = Literal["time", "cost", "gpus"]
Maximised = Literal["throughput_per_gpu"]
ScheduleKind = Literal["sync", "one-step-off", "async", "any"]
GenerationPool = Literal["shared", "own", "any"]


class ObjectiveSection(SparseSection, title="Objective"):
    """What is minimised, or maximised; exactly one of the two."""

    minimise: Minimised | None = Field(
        default=None,
        description="time: seconds of an iteration. cost: its price. gpus: GPUs that reach target_iteration_s.",
    )
    maximise: Maximised | None = Field(default=None, description="Tokens per second and GPU.")
    price_per_gpu_hour: dict[Name, Annotated[float, Number("a positive price", gt=0)]] = Field(
        default_factory=dict,
        description="Price of a GPU-hour of each device of the cluster, in any currency.",
        examples=[{"h100-80gb-sxm": 2.5}],
    )
    target_iteration_s: Positive | None = Field(
        default=None, description="For gpus: the longest iteration that will do, in seconds.", examples=[200]
    )


def as_objective(value: Any) -> Any:
    """``cost`` alone stands for ``{minimise: cost}``."""
    if isinstance(value, str) and value in get_args(Minimised):
        return {"minimise": value}
    if isinstance(value, str) and value in get_args(Maximised):
        return {"maximise": value}
    if not isinstance(value, (dict, BaseModel)):
        names = ", ".join((*get_args(Minimised), *get_args(Maximised)))
        raise refusal(f"one of {names}, or a mapping such as {{minimise: gpus, target_iteration_s: ..}}")
    return value


class ScheduleSection(SparseSection, title="Schedule"):
    """How iterations follow each other, and where the actor generates."""

    kind: ScheduleKind = Field(
        default="sync",
        description="sync: train on what this iteration generated. one-step-off: generate the next samples meanwhile. "
        "async: engines never drain. any: the best that trains on samples at most one step old.",
    )
    generation_pool: GenerationPool | None = Field(
        default=None,
        description="Where the actor generates: on the GPUs that it trains on (shared), on a dedicated rollout pool "
        "(own), or whichever is faster (any). Left out: shared for sync, any for any, else own.",
    )
    steps_in_flight: Annotated[int, Whole(1, MOST_STEPS)] | None = Field(
        default=None, description="async alone: iterations of samples in the engines at once; 1 if left out."
    )
    in_flight_updates: Flag = Field(default=False, description="New weights reach engines while they generate.")


def as_schedule(value: Any) -> Any:
    """``one-step-off`` alone stands for ``{kind: one-step-off}``."""
    if isinstance(value, str) and value in get_args(ScheduleKind):
        return {"kind": value}
    if not isinstance(value, (dict, BaseModel)):
        kinds = ", ".join(get_args(ScheduleKind))
        raise refusal(f"one of {kinds}, or a mapping such as {{kind: async, steps_in_flight: 2}}")
    return value


class SearchSection(Section, title="Search"):
    """Opt-in layouts, beyond what every trainer has, and how much plain plans are preferred."""

    interleaving: Flag = Field(default=USUAL.interleaving, description="Several model chunks per pipeline stage.")
    offload: Flag = Field(
        default=USUAL.offload, description="States of a role wait in host memory while other roles have the GPUs."
    )
    tensor_parallel_across_nodes: Flag = Field(
        default=USUAL.tensor_parallel_across_nodes, description="Tensor-parallel groups may leave the NVLink domain."
    )
    scoring_layouts: Flag = Field(
        default=USUAL.scoring_layouts,
        description="A trained role may score in a layout of its own, on a copy of its weights.",
    )
    prefer_plain: Annotated[float, Share(0.0, 1.0)] = Field(
        default=0.01,
        description="What a plain plan may cost: the best is taken if its iteration is at most this share longer than "
        "the fastest one's. Plain: powers of two, tensor parallel inside a node, no pipeline that is not needed. For "
        "the objective time. As 1% or 0.01.",
        json_schema_extra=lambda schema: schema.update(type=["number", "string"]),
        examples=["1%"],
    )


def _or_list(expected: str) -> Expected:
    return Expected(f"{expected}, or a list of them")


_Degree = Annotated[int, Whole(1, MOST_GPUS)]
_Stage = Annotated[int, Whole(0, 3)]
Degree = Annotated[
    _Degree | Annotated[list[_Degree], Field(min_length=1)], _or_list(f"a whole number from 1 to {MOST_GPUS:,}")
]
ZeroStage = Annotated[_Stage | Annotated[list[_Stage], Field(min_length=1)], _or_list("a whole number from 0 to 3")]
Recompute = Annotated[
    RecomputeLevel | Annotated[list[RecomputeLevel], Field(min_length=1)],
    _or_list(f"one of {', '.join(RECOMPUTE_LEVELS)}"),
]


class TokenBudgetPin(Section, title="Token budget"):
    """A micro-batch counted in tokens."""

    tokens: Tokens = Field(description="Tokens of a micro-batch at most.", examples=[16384])


_MicroBatch = Annotated[_Degree | TokenBudgetPin, Expected("a whole number, or {tokens: N}")]
MicroBatch = Annotated[
    _MicroBatch | Annotated[list[_MicroBatch], Field(min_length=1)],
    _or_list(f"a whole number from 1 to {MOST_GPUS:,}, {{tokens: N}}"),
]


def _degree(what: str) -> Any:
    return Field(default=None, description=f"{what}; a list allows any of its values.")


class LayoutPin(SparseSection, title="Pinned layout"):
    """Degrees of training or of forward passes."""

    dp: Degree | None = _degree("Data-parallel ranks")
    tp: Degree | None = _degree("Tensor-parallel ranks")
    pp: Degree | None = _degree("Pipeline stages")
    cp: Degree | None = _degree("Context-parallel ranks")
    ep: Degree | None = _degree("Expert-parallel ranks")
    zero_stage: ZeroStage | None = _degree("ZeRO stage, 3 is FSDP")
    micro_batch: MicroBatch | None = _degree(
        "Samples of a micro-batch on a data-parallel rank, or {tokens: N}: as many as hold N tokens at most"
    )
    recompute: Recompute | None = _degree("Activation recomputation")


class GenerationPin(SparseSection, title="Pinned generation"):
    """Degrees of the engine's replicas."""

    dp: Degree | None = _degree("Engine replicas")
    tp: Degree | None = _degree("Tensor-parallel ranks of a replica")
    pp: Degree | None = _degree("Pipeline stages of a replica")
    max_num_seqs: Degree | None = _degree("Sequences of a replica that run at once")
    ep: Degree | None = _degree("Expert-parallel ranks of a mixture's replica")
    attention_dp: Degree | None = _degree("Copies of a mixture's attention in a replica")


class RolePin(SparseSection, title="Pinned role"):
    """What is fixed about one role."""

    gpus: Annotated[int, Whole(1, MOST_GPUS)] | None = Field(default=None, description="GPUs of the role's pool.")
    device: Name | None = Field(default=None, description="Device of the role's pool.")
    training: LayoutPin | None = Field(default=None, description="Layout of training.")
    inference: LayoutPin | None = Field(default=None, description="Layout of scoring.")
    generation: GenerationPin | None = Field(default=None, description="Layout of generation.")


Group = Annotated[list[Name], Field(min_length=2), Expected("a list of two roles or more")]


class ShareSection(SparseSection, title="Sharing"):
    """Roles that share their GPUs, and roles that do not; any others may."""

    require: list[Group] = Field(default_factory=list, description="Groups of roles that share their GPUs.")
    forbid: list[Group] = Field(default_factory=list, description="Groups of roles that do not.")


_Spare = Annotated[int, Whole(0, MOST_NODES)]
SpareNodes = Annotated[
    _Spare | Annotated[dict[Name, _Spare], Field(min_length=1)],
    Expected("a whole number of nodes, or {device: nodes} where there are several"),
]


class PinSection(SparseSection, title="Pins", extra="allow"):
    """What is decided already; the search chooses the rest. Roles stand beside ``share`` and ``spare_nodes``."""

    __pydantic_extra__: dict[str, RolePin] = Field(init=False)
    share: ShareSection = Field(default=ShareSection(), description="Who shares GPUs, and who does not.")
    spare_nodes: SpareNodes | None = Field(default=None, description="Nodes that stay free, for each device or in all.")

    @property
    def roles(self) -> dict[str, RolePin]:
        """What is fixed, by role."""
        return self.__pydantic_extra__
