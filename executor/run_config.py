"""The ``run:`` section of a job file: what a plan needs to run that planning does not ask. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from executor.engines.registry import (
    AS_PLANNED,
    GENERATION,
    TRAINING,
    generation_engine_name,
    training_engine_name,
)
from executor.faults import Fault
from executor.rl.data_section import DataSection, ValidationSection
from executor.rl.environment_section import EnvironmentSection
from executor.rl.hyperparameters import Hyperparameters
from executor.rl.optimizer_section import OptimizerSection
from executor.section import Positive, Section
from profiles.errors import InputError
from profiles.relative_paths import inside

if TYPE_CHECKING:
    from pathlib import Path


class FunctionSection(Section):
    """A reward or cost that is a function: a built-in name, ``module:function``, or the URL of a service.

    It judges ``workers`` responses at once, each in a process of its own; unless given one a GPU of the plan, which is
    what is priced, and one where there are none. ``isolation: strict``, of programs that a model wrote, refuses to run
    them behind anything but the strongest walls, filter and count (docs/security.md).
    """

    function: str
    workers: Annotated[int, Field(ge=1)] | None = None
    isolation: Literal["strongest", "strict"] = "strongest"

    @model_validator(mode="after")
    def _isolates_what_it_knows(self) -> FunctionSection:
        if self.isolation == "strict" and self.function != "unit-tests" and "://" not in self.function:
            raise ValueError(f"isolation is of the programs of unit-tests, {self.function} runs in our own processes")
        return self


TrainingEngineName = Annotated[
    str, AfterValidator(training_engine_name), Field(json_schema_extra={"enum": [*TRAINING, AS_PLANNED]})
]
GenerationEngineName = Annotated[
    str, AfterValidator(generation_engine_name), Field(json_schema_extra={"enum": [*GENERATION, AS_PLANNED]})
]


class EnginesSection(Section):
    """Which engine trains and scores, and which one generates; the embedded one unless said otherwise.

    ``roles`` gives single roles a training (or scoring) engine of their own. ``as-planned`` is the engine of the job's
    own ``engines:``, whose prices the plan rests on.
    """

    training: TrainingEngineName = "torch-native"
    generation: GenerationEngineName = "torch-native"
    roles: dict[str, TrainingEngineName] = Field(default_factory=dict)

    def training_of(self, role: str) -> str:
        """The engine that trains a role, or scores with it."""
        return self.roles.get(role, self.training)


class TimeoutsSection(Section):
    """When a rank that does not answer counts as lost.

    ``collective_s``: how long a rank waits for others in a collective. The controller waits for a call ``call_least_s``
    and ``call_factor`` times its slowest so far, and ``first_call_s`` for the first of its kind, which may load or
    compile.
    """

    collective_s: Positive = 600.0
    call_least_s: Positive = 60.0
    call_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 10.0
    first_call_s: Positive = 3_600.0


class ChecksSection(Section):
    """What a run checks of its weights.

    ``replicas_every``: iterations between comparisons of the copies that ranks hold of trained weights, 0 for never.
    ``transitions``: whether what generates is compared with what was trained after each transition.
    """

    replicas_every: Annotated[int, Field(ge=0)] = 10
    transitions: bool = True


class CheckpointSection(Section):
    """Save the run's state after ``every`` iterations (and after the last), keep the newest ``keep`` of these.

    ``dir`` must be seen by every machine of the run; left out, it is the folder ``checkpoints`` of the run's output.
    """

    every: Annotated[int, Field(ge=1)]
    keep: Annotated[int, Field(ge=1)] = 2
    dir: str | None = None


class RunConfig(Section):
    """How to run a plan.

    ``weights`` gives each role a folder (``config.json`` and ``*.safetensors``) or a ``config.json`` alone, whose
    weights are then random; a role without an entry has the actor's. ``draft`` among them is the folder of the model
    that drafts, where the plan's engines do. ``reward`` and ``cost`` replace the model of that
    role by a function. ``cpu_ranks``: without GPUs, how many ranks this machine runs; with ``pin_cores`` each
    stays on one core (see ``executor.cores``). ``validation`` scores held-out prompts now and then. ``lora_alpha`` over
    the job's ``lora_rank`` scales what adapters add.
    ``environment`` answers the policy in responses of several turns. ``balance_batch`` deals rows to data-parallel
    ranks so that all have about equally many tokens, as is priced; losses are the same without. ``faults`` are
    injected into the run, to see that it survives them. ``on_failure`` and ``max_restarts``: see
    ``recovery.supervisor.Policy``. ``transport``: whether ranks read columns from each other (``direct``, which needs
    NIXL) or from Ray's object store; ``auto`` is direct between several nodes that have it.
    """

    weights: dict[str, str]
    data: DataSection
    reward: FunctionSection | None = None
    cost: FunctionSection | None = None
    learning_rate: Positive = 1e-6
    critic_learning_rate: Positive | None = None
    max_grad_norm: Positive = 1.0
    lora_alpha: Positive = 16.0
    optimizer: OptimizerSection = OptimizerSection()
    iterations: Annotated[int, Field(ge=1)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    dtype: Literal["fp32", "bf16"] = "bf16"
    plan: str | None = None
    launcher: Literal["auto", "local", "ray"] = "auto"
    ray_address: str | None = None
    transport: Literal["auto", "store", "direct"] = "auto"
    cpu_ranks: Annotated[int, Field(ge=1)] = 8
    pin_cores: bool = False
    on_failure: Literal["stop", "restart", "replan"] = "stop"
    max_restarts: Annotated[int, Field(ge=1)] = 3
    checkpoint: CheckpointSection | None = None
    learning: Hyperparameters = Hyperparameters()
    validation: ValidationSection | None = None
    environment: EnvironmentSection | None = None
    balance_batch: bool = True
    engines: EnginesSection = EnginesSection()
    timeouts: TimeoutsSection = TimeoutsSection()
    checks: ChecksSection = ChecksSection()
    faults: tuple[Fault, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _one_preset(cls, given: Any) -> Any:
        """``learning.defaults`` is about the optimizer, too."""
        if not isinstance(given, dict) or not isinstance(given.get("learning"), dict):
            return given
        defaults, optimizer = given["learning"].get("defaults"), given.get("optimizer", {})
        if defaults is None or not isinstance(optimizer, dict):
            return given
        return {**given, "optimizer": {"defaults": defaults, **optimizer}}

    @model_validator(mode="after")
    def _actor_has_weights(self) -> RunConfig:
        if "actor" not in self.weights:
            raise ValueError("weights needs an entry for actor")
        return self

    @model_validator(mode="after")
    def _functions_have_no_engine(self) -> RunConfig:
        for role in self.engines.roles:
            if (function := self.function_of(role)) is not None:
                raise ValueError(f"engines.roles names {role}, which is the function {function} and needs no engine")
        return self

    @model_validator(mode="after")
    def _resumes_from_checkpoints(self) -> RunConfig:
        if self.on_failure != "stop" and self.checkpoint is None:
            raise ValueError(f"on_failure {self.on_failure} resumes from checkpoints: add checkpoint: {{every: N}}")
        return self

    def weights_of(self, role: str) -> str:
        """Path of a role's weights."""
        return self.weights.get(role, self.weights["actor"])

    def function_of(self, role: str) -> str | None:
        """The function that stands for a role, if one does."""
        section = {"reward": self.reward, "cost": self.cost}.get(role)
        return section.function if section else None


def parse_run(document: Any, source: str = "run", base: Path | None = None) -> RunConfig:
    """Check a ``run:`` section; ``InputError`` names every key that is wrong, in one message.

    Paths in it start from ``base``, the folder of the job file.
    """
    try:
        config = RunConfig.model_validate(document)
    except ValidationError as error:
        problems = []
        for found in error.errors():
            place = ".".join(str(part) for part in found["loc"])
            message = found["msg"].removeprefix("Value error, ")
            problems.append(f"{place + ': ' if place else ''}{message}")
        raise InputError(f"{source}: {'; '.join(problems)}") from None
    try:
        return config if base is None else _based(config, base)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _based(config: RunConfig, base: Path) -> RunConfig:
    data = config.data.model_copy(
        update={name: str(inside(base, path)) for name in ("file", "tokenizer") if (path := getattr(config.data, name))}
    )
    validation = config.validation
    if validation is not None and validation.file is not None:
        validation = validation.model_copy(update={"file": str(inside(base, validation.file))})
    weights = {role: str(inside(base, path)) for role, path in config.weights.items()}
    plan = str(inside(base, config.plan)) if config.plan else None
    checkpoint = config.checkpoint
    if checkpoint is not None and checkpoint.dir is not None:
        checkpoint = checkpoint.model_copy(update={"dir": str(inside(base, checkpoint.dir))})
    changed = {"data": data, "validation": validation, "weights": weights, "plan": plan, "checkpoint": checkpoint}
    return config.model_copy(update=changed)
