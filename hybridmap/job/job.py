"""A job, one typed record: read from ``JOB.yaml``, made complete, and turned into facts and a search.

As ``load`` hands it out a job is complete: every default of a device's card is filled in, roles are in dataflow order,
the content of each file stands in place of its path, and nothing in it cannot be.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from executor.run_config import RunConfig
from hybridmap.job.choices import (
    Maximised,
    Minimised,
    ObjectiveSection,
    PinSection,
    ScheduleKind,
    ScheduleSection,
    SearchSection,
    as_objective,
    as_schedule,
)
from hybridmap.job.facts import facts_of
from hybridmap.job.implementation import ImplementationSection
from hybridmap.job.leaves import EXPECTED, Name, Section
from hybridmap.job.request import request_of, schedule_of
from hybridmap.job.schema import (
    ClusterSection,
    EnginesSection,
    MemorySection,
    RoleSection,
    SpeculationSection,
    WorkloadSection,
    as_role,
)
from mapper.execution_mode import mode_of
from profiles.calibration import CalibrationFile
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from mapper.request import SearchRequest
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

Role = Annotated[RoleSection, BeforeValidator(as_role, json_schema_input_type=Name | RoleSection)]
Objective = Annotated[
    ObjectiveSection,
    BeforeValidator(as_objective, json_schema_input_type=Minimised | Maximised | ObjectiveSection),
]
Schedule = Annotated[
    ScheduleSection, BeforeValidator(as_schedule, json_schema_input_type=ScheduleKind | ScheduleSection)
]

Layer = Annotated[
    Annotated[Name, Tag("path")] | Annotated[CalibrationFile, Tag("layer")],
    Discriminator(
        lambda value: "path" if isinstance(value, str) else "layer" if isinstance(value, dict | BaseModel) else None,
        custom_error_type=EXPECTED,
        custom_error_message="the path of a file that `hybridmap calibrate` wrote",
    ),
    WithJsonSchema({"type": "string"}),
]

ROLES = dict.fromkeys(
    role
    for roles in (*(a.roles for a in ALGORITHMS.values()), *(a.optional_roles for a in ALGORITHMS.values()))
    for role in roles
)


class Job(Section, title="hybridmap job"):
    """A job of hybridmap: RL post-training of language models on a cluster."""

    algorithm: Name = Field(description="RL algorithm.", json_schema_extra={"enum": [*sorted(ALGORITHMS)]})
    models: dict[Name, Role] = Field(
        description="The model of each role that the algorithm has.",
        json_schema_extra={"propertyNames": {"enum": list(ROLES)}},
        examples=[{"actor": "qwen2.5-7b", "reference": "qwen2.5-7b"}],
    )
    workload: WorkloadSection
    cluster: Annotated[list[ClusterSection], Field(min_length=1)] = Field(
        description="The GPUs there are: an entry for each device."
    )
    engines: EnginesSection = EnginesSection()
    implementation: ImplementationSection = ImplementationSection()
    speculation: SpeculationSection | None = Field(
        default=None, description="Speculative decoding in generation; none if left out."
    )
    memory: MemorySection = MemorySection()
    objective: Objective = Field(
        default=ObjectiveSection(minimise="time"),
        description="What the plan is to be good at.",
        examples=["time", "throughput_per_gpu"],
    )
    schedule: Schedule = Field(
        default=ScheduleSection(), description="How iterations follow each other.", examples=["sync", "one-step-off"]
    )
    target: Name | None = Field(
        default=None,
        description="The system that is to run it, whose rules hold the search: what `plan --target` names.",
        examples=["verl/megatron", "verl@0.9/fsdp", "nemo-rl/megatron", "openrlhf", "slime@0.3", "hybridmap"],
    )
    search: SearchSection = SearchSection()
    pin: PinSection = PinSection()
    calibration: list[Layer] = Field(
        default=[],
        description="What runs on this cluster said of the prices: files that `hybridmap calibrate` wrote.",
        examples=[["calibration.yaml"]],
    )
    run: RunConfig | None = Field(
        default=None, description="How to run a plan of this job; planning does not look at it."
    )

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """What a job file may hold, as JSON Schema, for editors: titles, meanings with units, defaults, examples."""
        return {"$schema": GenerateJsonSchema.schema_dialect, **cls.model_json_schema()}

    @property
    def document(self) -> dict[str, Any]:
        """The job in normal form, a plain JSON-able mapping without its run section: what ``plan.json`` embeds.

        Two jobs mean the same if their documents are equal.
        """
        return self.model_dump(mode="json" if self.calibration else "python", exclude=self._left_out)

    @property
    def _left_out(self) -> set[str]:
        unsaid = {name for name in ("calibration", "target", "speculation") if not getattr(self, name)}
        return {"run", *unsaid}

    def facts(self) -> Facts:
        """Everything a price may look at; the same object each time."""
        return self._facts

    def request(self) -> SearchRequest:
        """All that the job asks of a search; a command puts what is its own (seed, time limit) with ``replace``.

        Raises ``InputError`` for an objective, a schedule or a pin that this job cannot have.
        """
        return request_of(self, self.facts())

    def scheduled_as(self, plan: Plan) -> Job:
        """The same job with the schedule and the generation pool of ``plan``."""
        return Job(**{**dict(self), "schedule": schedule_of(mode_of(plan))})

    @cached_property
    def _facts(self) -> Facts:
        return facts_of(self)
