"""The schema of ``JOB.yaml``: which keys there are, and what each may hold.

Every leaf checks itself and fails with what it expects, so that a message can say "got x, expected y" and nothing
else. What the values mean together (does this name exist, does that divide) is for ``config`` to find out.
"""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, Discriminator, Tag

from hybridmap.job import choices
from hybridmap.job.leaves import (
    EXPECTED,
    MOST_GPUS_PER_NODE,
    MOST_NODES,
    Name,
    NotNegative,
    Positive,
    Samples,
    Section,
    Tokens,
    is_name,
    is_number,
    leaf,
    number,
    one_of,
    refusal,
    whole,
)
from profiles.units import DTYPE_BYTES
from profiles.workload import MOST_TOKENS
from simulator.facts import TRAINING_DTYPES, AttentionKernel, Kernels, LossHead, OldLogProb, SleepingEngine


def _is_shape(value: Any) -> bool:
    if isinstance(value, dict):  # the embedded form of plan.json
        return set(value) == {"config", "name"} and isinstance(value["config"], dict) and is_name(value["name"])
    return is_name(value)


def _as_role(value: Any) -> Any:
    if isinstance(value, dict):
        return value
    if not is_name(value):
        expected = "a model name, the path of a config.json, or a mapping with shape and precision"
        raise refusal(expected)
    return {"shape": value}


class RoleSection(Section):
    """One role: its model, and the number format of its forward passes."""

    shape: Annotated[Any, leaf("a model name or the path of a config.json", _is_shape)]
    precision: Annotated[Any, one_of(tuple(DTYPE_BYTES))] = "bf16"


class LognormalSection(Section):
    """Log-normal response lengths, clipped at ``max``."""

    distribution: Annotated[Any, leaf("lognormal", lambda v: v == "lognormal")]
    mean: Positive
    max: Tokens
    p99: Annotated[Any, number("a positive number", lambda v: v > 0)] | None = None


def _is_histogram(value: Any) -> bool:
    if not isinstance(value, dict):
        return is_name(value)
    return set(value) == {"lengths", "counts"} and all(
        isinstance(column, list) and all(map(is_number, column)) for column in value.values()
    )  # the embedded form of plan.json


class HistogramSection(Section):
    """Measured response lengths, from a CSV file."""

    histogram: Annotated[Any, leaf("the path of a CSV file with columns length and count", _is_histogram)]


RESPONSE_TAGS = ("fixed", "lognormal", "histogram")
"""Kinds of response length; they show up in the places that pydantic reports, and mean nothing to a user there."""


def _response_tag(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "fixed" if type(value) is int else None
    return "histogram" if "histogram" in value else "lognormal"


ResponseLength = Annotated[
    Annotated[Tokens, Tag("fixed")]
    | Annotated[LognormalSection, Tag("lognormal")]
    | Annotated[HistogramSection, Tag("histogram")],
    Discriminator(
        _response_tag,
        custom_error_type=EXPECTED,
        custom_error_message=(
            "a whole number of tokens, {distribution: lognormal, mean: .., max: ..} or {histogram: file.csv}"
        ),
    ),
]


class WorkloadSection(Section):
    """The work of one iteration."""

    prompts: Samples
    prompt_length: Tokens
    response_length: ResponseLength
    samples_per_prompt: Samples = 1
    epochs: Annotated[Any, whole(1000)] = 1
    minibatches: Samples = 1
    reward_s_per_sample: NotNegative = 0.0
    prompt_tokens: Annotated[Any, number("a positive number", lambda v: v > 0)] | None = None
    pretrain_update: Annotated[Any, leaf("true or false", lambda v: type(v) is bool)] = False


class ClusterSection(Section):
    """Identical nodes of one device; what is left out comes from the device's card."""

    device: Name
    nodes: Annotated[Any, whole(MOST_NODES)]
    gpus_per_node: Annotated[Any, whole(MOST_GPUS_PER_NODE)] | None = None
    inter_node_gbps: (
        Annotated[Any, number("a positive number of Gbit/s per node, from 0.001 to 1e9", lambda v: 1e-3 <= v <= 1e9)]
        | None
    ) = None
    nvlink_domain_gpus: Annotated[Any, whole(MOST_GPUS_PER_NODE)] | None = None
    nodes_per_pod: Annotated[Any, whole(MOST_NODES)] | None = None


class EnginesSection(Section):
    """Engine and version, ``name@version``; the newest profiled default where left out."""

    training: Name | None = None
    generation: Name | None = None


class ImplementationSection(Section):
    """How the trainer is built, where builds differ; the meaning of each is at ``simulator.facts.Implementation``."""

    loss_head: Annotated[Any, one_of(get_args(LossHead))] = "parallel"
    attention_kernel: Annotated[Any, one_of(get_args(AttentionKernel))] = "newest"
    kernels: Annotated[Any, one_of(get_args(Kernels))] = "fused"
    tensor_parallel_overlap: Annotated[Any, leaf("true or false", lambda v: type(v) is bool)] = False
    training_dtype: Annotated[Any, one_of(TRAINING_DTYPES)] = "bf16"
    lora_rank: Annotated[Any, whole(MOST_TOKENS, 0)] = 0
    packed_tokens: Tokens | None = None
    expert_imbalance: Annotated[Any, number("a ratio of at least 1", lambda v: v >= 1)] = 1.0
    old_log_prob: Annotated[Any, one_of(get_args(OldLogProb))] | None = None  # priced as engine; exported as theirs
    sleeping_engine: Annotated[Any, one_of(get_args(SleepingEngine))] = "drops-weights"
    fsdp_exposure: Annotated[Any, number("a share from 0 to 1", lambda v: 0 <= v <= 1)] = 0.0


class JobFile(Section):
    """The whole file."""

    algorithm: Name
    models: dict[Name, Annotated[RoleSection, BeforeValidator(_as_role)]]
    workload: WorkloadSection
    cluster: list[ClusterSection]
    engines: EnginesSection = EnginesSection()
    implementation: ImplementationSection = ImplementationSection()
    objective: choices.Objective = choices.ObjectiveSection(minimise="time")
    pin: choices.Pins = choices.PinSection()
    schedule: choices.Schedule = choices.ScheduleSection()
    search: choices.SearchSection = choices.SearchSection()
    run: Any = None


_SECTIONS: dict[tuple[str, ...], type[Section]] = {
    (): JobFile,
    ("workload",): WorkloadSection,
    ("workload", "response_length", "lognormal"): LognormalSection,
    ("workload", "response_length", "histogram"): HistogramSection,
    ("cluster",): ClusterSection,
    ("engines",): EnginesSection,
    ("implementation",): ImplementationSection,
}


def keys_at(place: tuple[str, ...]) -> tuple[str, ...]:
    """The keys of the section at ``place``, a path of keys and response kinds without list positions."""
    if place[:2] == ("pin", "roles"):
        place = (*place[:2], *place[3:])  # without the name of the role
    if place == ("pin",):
        return ("share", "spare_nodes")
    section = RoleSection if place[:1] == ("models",) else {**_SECTIONS, **choices.SECTIONS}[place]
    return tuple(section.model_fields)
