"""The sections of ``JOB.yaml``: which keys there are, what each may hold, its default and its meaning.

The same sections hold a job as it was written and in normal form: every default of a device's card filled in, and the
content of a file in place of its path. What the values mean together (does this name exist, does that divide) is for
those who read the job. ``hybridmap init --schema`` prints all of it as JSON Schema.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from hybridmap.job.leaves import (
    Expected,
    Flag,
    GpusPerNode,
    Name,
    Nodes,
    NotNegative,
    Number,
    OneOf,
    Positive,
    Samples,
    Section,
    Share,
    SparseSection,
    Tokens,
    Whole,
    refusal,
)
from hybridmap.job.lengths import ResponseLength
from profiles.models.catalogue import model_names
from profiles.store import device_names
from profiles.units import DTYPE_BYTES
from simulator.speculation import MOST_DRAFTED


class EmbeddedConfig(Section, title="Embedded model config"):
    """The content of a ``config.json`` and the model's name, as ``plan.json`` keeps them."""

    config: dict[str, Any] = Field(description="The content of the file.")
    name: Name = Field(description="What the model is called.")


Shape = Annotated[Name | EmbeddedConfig, Expected("a model name or the path of a config.json")]


class RoleSection(Section, title="Role"):
    """One role: its model, and the number format of its forward passes."""

    shape: Shape = Field(
        description="A name of `hybridmap models list`, a Hugging Face id, or the path of a config.json.",
        json_schema_extra=lambda schema: schema.update(examples=["my-model/config.json", *model_names()]),
    )
    precision: Annotated[str, OneOf(tuple(DTYPE_BYTES))] = Field(
        default="bf16", description="Number format of the weights in scoring and generation."
    )


def as_role(value: Any) -> Any:
    """``llama-3.1-8b`` alone stands for ``{shape: llama-3.1-8b}``."""
    if isinstance(value, (dict, BaseModel)):
        return value
    if not isinstance(value, str) or not value:
        raise refusal("a model name, the path of a config.json, or a mapping with shape and precision")
    return {"shape": value}


_LEFT_OUT = ("pretrain_update", "pads_prompts")
"""Flags of a workload that a job in normal form names only where they are set."""


class WorkloadSection(Section, title="Workload"):
    """The work of one iteration."""

    prompts: Samples = Field(description="Prompts of an iteration.", examples=[512])
    samples_per_prompt: Samples = Field(
        default=1, description="Responses that are drawn for each prompt.", examples=[8]
    )
    prompt_length: Tokens = Field(
        description="Tokens of the longest prompt.",
        examples=[1024],
    )
    response_length: ResponseLength = Field(
        description="Tokens of a response: one length for all, or better a distribution from your logs.",
        examples=[1024, {"distribution": "lognormal", "mean": 2500, "max": 8192}, {"histogram": "lengths.csv"}],
    )
    epochs: Annotated[int, Whole(1, 1000)] = Field(default=1, description="Passes over the samples of an iteration.")
    minibatches: Samples = Field(
        default=1, description="Optimizer steps of a pass; they divide prompts x samples_per_prompt.", examples=[8]
    )
    reward_s_per_sample: NotNegative = Field(
        default=0.0,
        description="Seconds of one CPU worker for each response, where the reward is a function and no model.",
    )
    prompt_tokens: Positive | None = Field(
        default=None,
        description="Mean tokens of a prompt; prompt_length if left out.",
    )
    pads_prompts: Flag = Field(
        default=False,
        description="Whether training and scoring work through prompts padded to prompt_length (engines never do).",
    )
    pretrain_update: Flag = Field(
        default=False, description="safe-rlhf alone: whether the actor's updates also learn from the pretraining text."
    )

    @model_serializer(mode="wrap")
    def _normal_form(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if key not in _LEFT_OUT or value}


class ClusterSection(Section, title="Nodes of one device"):
    """Identical nodes of one device; what is left out comes from the device's card."""

    device: Name = Field(
        description="A name of `hybridmap devices list`, or the path of a device folder.",
        json_schema_extra=lambda schema: schema.update(examples=list(device_names())),
    )
    nodes: Nodes = Field(description="Nodes.", examples=[4])
    gpus_per_node: GpusPerNode | None = Field(
        default=None, description="GPUs of a node; from the device's card if left out."
    )
    inter_node_gbps: (
        Annotated[float, Number("a positive number of Gbit/s per node, from 0.001 to 1e9", ge=1e-3, le=1e9)] | None
    ) = Field(
        default=None,
        description="Gbit/s of a node, all its network cards together; from the device's card if left out.",
        examples=[3200],
    )
    nvlink_domain_gpus: GpusPerNode | None = Field(
        default=None, description="GPUs that NVLink joins; those of a node, or of the rack, if left out."
    )
    nodes_per_pod: Nodes | None = Field(
        default=None, description="Nodes below one switch of the network; pools are laid so that few straddle pods."
    )

    @model_serializer(mode="wrap")
    def _normal_form(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if key != "nodes_per_pod" or value}


class EnginesSection(SparseSection, title="Engines"):
    """Engine and version, ``name@version``, or the path of an engine file."""

    training: Name | None = Field(
        default=None, description="Trains and scores; the newest default if left out.", examples=["megatron-core@0.16"]
    )
    generation: Name | None = Field(
        default=None, description="Generates; the newest default if left out.", examples=["vllm@0.32"]
    )
    generation_settings: dict[Name, Any] = Field(
        default={},
        description="How the generation engine is started where that is not its release's default: switches and facts "
        "of its file by name, such as kv_memory_share, max_batched_tokens, captured_tokens, plans_ahead, "
        "fp8_cache_with.",
        examples=[{"kv_memory_share": 0.8, "max_batched_tokens": 16384}],
    )


class MemorySection(Section, title="Memory"):
    """How full the search may make a GPU."""

    headroom: Annotated[float, Share(0.0, 0.9)] = Field(
        default=0.05,
        description="Share of the memory that a process sees which plans of the search leave free, beside the engines' "
        "reserves: for fragments of allocators and for what a job's lengths do not say. As 5% or 0.05.",
        json_schema_extra=lambda schema: schema.update(type=["number", "string"]),
        examples=["5%"],
    )


ShareOfSteps = Annotated[float, Number("a share from 0 to 1", ge=0, le=1)]


def as_shares(value: Any) -> Any:
    """``0.8`` alone stands for ``[0.8]``."""
    return [value] if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def as_lengths(value: Any) -> Any:
    """``3`` alone stands for ``[3]``."""
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


DraftLength = Annotated[int, Whole(0, MOST_DRAFTED)]
DraftLengths = Annotated[
    list[DraftLength],
    Field(min_length=1, max_length=MOST_DRAFTED + 1),
    BeforeValidator(as_lengths, json_schema_input_type=DraftLength | list[DraftLength]),
]

Acceptance = Annotated[
    list[ShareOfSteps],
    Field(min_length=1, max_length=MOST_DRAFTED),
    BeforeValidator(as_shares, json_schema_input_type=ShareOfSteps | list[ShareOfSteps]),
]


class SpeculationSection(Section, title="Speculation"):
    """Speculative decoding: the engine drafts tokens and checks all of them in one step."""

    draft: Name | None = Field(
        default=None,
        description="Model that drafts, by its name or Hugging Face id; if left out the actor's own prediction layers "
        "(MTP).",
    )
    draft_tokens: DraftLengths = Field(
        description="Tokens that a step drafts; several for the search to choose among, 0 for none.",
        examples=[3, [0, 1, 3]],
    )
    acceptance: Acceptance = Field(
        description="Share of steps that keep the token at each position, as vLLM prints it, of the longest draft; one "
        "share stands for a token whose forerunners were kept.",
        examples=[0.8, [0.886, 0.770, 0.663]],
    )
