"""The models of a run: a worker group per role, made from the plan, by name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from executor.controller.actor_group import ActorGroup
from executor.controller.pools import (
    CONTROLLER_POOL,
    degrees_of,
    generate_ahead,
    generator_degrees_of,
    scoring_degrees_of,
)
from executor.engines.entry import PLAIN, LayoutOptions
from executor.engines.function import FunctionSpec
from executor.engines.model_spec import ModelSpec, OptimizerConfig
from executor.engines.registry import GENERATION, TRAINING
from executor.engines.spec import EngineSpec
from executor.engines.support import require_device
from executor.rl.dynamic_sampling import DynamicSampling
from executor.rl.learning_rate import RateSchedule
from executor.rl.text import TextCodec
from executor.worker.controller_worker import ControllerWorker
from executor.worker.roles import WORKERS
from profiles.errors import InputError
from simulator.plan.dataflow import CONTROLLER, build_dataflow
from simulator.plan.groups import Degrees

if TYPE_CHECKING:
    from collections.abc import Mapping

    from executor.controller.controller import Controller
    from executor.controller.worker_group import WorkerGroup
    from executor.engines.interfaces import EngineChoice
    from executor.engines.model_spec import DraftSpec
    from executor.rl.hyperparameters import Hyperparameters
    from executor.run_config import RunConfig
    from executor.weights.architecture import Adapters
    from simulator.plan.plan import ParallelLayout, Plan, RolePlan

    Group = WorkerGroup | ActorGroup

ALONE = Degrees(1, 1, 1, 1, 1)


class Models:
    """Groups as attributes: ``models.actor.generate_sequences(prompts)``. ``"reference" in models`` asks for one.

    ``recomputes_log_probs``: whether the trainer gives the log-probs that policy ratios are taken against.
    ``dynamic_sampling``: whether groups that all score alike are replaced. ``first_turn_tokens``: most tokens of the
    first turn of responses that have several, 0 where they have one.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        *,
        recomputes_log_probs: bool = False,
        dynamic_sampling: DynamicSampling | None = None,
        first_turn_tokens: int = 0,
    ) -> None:
        self.first_turn_tokens = first_turn_tokens
        self.groups = dict(groups)
        self.recomputes_log_probs, self.dynamic_sampling = recomputes_log_probs, dynamic_sampling

    def __getattr__(self, role: str) -> Any:
        groups = self.__dict__.get("groups", {})
        if role not in groups:
            raise AttributeError(f"this run has no {role}; it has {', '.join(groups)}")
        return groups[role]

    def __contains__(self, role: str) -> bool:
        return role in self.groups

    def init(self) -> None:
        """Load all models, those of different pools at the same time; the first failure ends it with its reason."""
        futures = [future for group in self.groups.values() for future in group.init_model()]
        for future in futures:
            future.wait()

    def check_replicas(self) -> None:
        """Compare the copies that ranks hold of the same weights; ``RankFailedError`` names a weight that differs."""
        models = [group for role, group in self.groups.items() if role != CONTROLLER]
        for future in [future for group in models for future in group.check_replicas()]:
            future.wait()


# Long by what a role's group is given: a line for each.
def build_models(
    controller: Controller,
    plan: Plan,
    config: RunConfig,
    hyper: Hyperparameters,
    engines: Mapping[str, EngineChoice] | None = None,
    adapters: Adapters | None = None,
    draft: DraftSpec | None = None,
) -> Models:
    """Worker groups of the plan's roles, and the controller's own. ``engines`` replaces a role's engine (a fake).

    With ``adapters`` every trained role trains these alone; ``draft`` writes tokens ahead for the one that generates.
    """
    groups: dict[str, Group] = {}
    shared = {"algorithm": plan.algorithm, "hyper": hyper}
    device = "cuda" if controller.launcher.uses_gpus else "cpu"
    steps = hyper.epochs * hyper.minibatches
    controller.dealt_steps = hyper.minibatches if config.balance_batch else 0
    for entry in plan.roles:
        engine = (engines or {}).get(entry.role) or engine_of(entry, plan, config, device, steps, adapters, draft)
        if entry.separate_generation:
            groups[entry.role] = _on_two_pools(controller, plan, entry, engine, shared)
            continue
        degrees = degrees_of(entry, plan.pool_of(entry.role).num_gpus)
        options = {"engine": engine, **shared}
        made = controller.add_group(
            entry.role, entry.pool, WORKERS[entry.role], degrees, options, scoring_degrees_of(entry)
        )
        groups[entry.role] = made if entry.generation is None else ActorGroup(made, made)
    if "reward" not in groups:
        if config.reward is None:
            raise InputError(f"{plan.algorithm} without a reward model needs run.reward.function")
        options = {"engine": _function("reward", config, plan, device), **shared}
        groups["reward"] = controller.add_group("reward", CONTROLLER_POOL, WORKERS["reward"], ALONE, options)
    played = {"environment": config.environment, "codec": TextCodec(config.data.alphabet, config.data.tokenizer)}
    options = {**shared, **(played if config.environment is not None else {})}
    groups[CONTROLLER] = controller.add_group(CONTROLLER, CONTROLLER_POOL, ControllerWorker, ALONE, options)
    first = 0 if config.environment is None else config.environment.turn_tokens or hyper.max_tokens
    sampling = DynamicSampling(hyper.num_samples, hyper.most_batches) if hyper.dynamic_sampling else None
    return Models(
        groups,
        recomputes_log_probs=hyper.recomputes_log_probs,
        dynamic_sampling=sampling,
        first_turn_tokens=min(first, hyper.max_tokens),
    )


def _on_two_pools(
    controller: Controller, plan: Plan, entry: RolePlan, engine: EngineChoice, shared: dict[str, Any]
) -> ActorGroup:
    """An actor that learns on one pool and generates on another; both know where to meet."""
    assert entry.generation_pool is not None
    trains = degrees_of(entry, plan.pool_of(entry.role).num_gpus)
    generates = generator_degrees_of(entry, plan.generation_pool_of(entry.role).num_gpus)
    sending, receiving = engine.disaggregated(controller.meeting_place(entry.pool), trains, generates)
    worker, scoring = WORKERS[entry.role], scoring_degrees_of(entry)
    trainer = controller.add_group(entry.role, entry.pool, worker, trains, {"engine": sending, **shared}, scoring)
    options = {"engine": receiving, **shared}
    generator = controller.add_group(entry.role, entry.generation_pool, worker, generates, options)
    return ActorGroup(trainer, generator, generate_ahead(plan))


def engine_of(
    entry: RolePlan,
    plan: Plan,
    config: RunConfig,
    device: str,
    steps: int = 1,
    adapters: Adapters | None = None,
    draft: DraftSpec | None = None,
) -> EngineChoice:
    """The engine that plan and run section give a role; ``steps`` of the optimizer are made in an iteration."""
    function = config.function_of(entry.role)
    if function is not None:
        return _function(entry.role, config, plan, device)
    spec, engine = _model_spec(entry, plan, config, device, steps), config.engines.training_of(entry.role)
    if spec.optimizer is not None:
        spec = replace(spec, adapters=adapters)
    layout, scoring = entry.training or entry.inference, None
    if spec.scoring is not None and entry.inference is not None:
        at_once = _at_once(entry.inference)
        frozen = replace(spec, optimizer=None, scoring=None, offload=(), recompute="none")
        frozen = replace(frozen, micro_batch=at_once["micro_batch"], token_budget=at_once["token_budget"])
        scoring = EngineSpec(frozen, engine, options=replace(_options(entry.inference), recompute="none"))
    generation = config.engines.generation if entry.generation is not None else None
    require_device(entry.role, TRAINING[engine], device)
    if generation is not None:
        require_device(entry.role, GENERATION[generation], device)
        spec = replace(spec, draft=draft)
    return EngineSpec(spec, engine, generation, _options(layout), scoring=scoring)


def _options(layout: ParallelLayout | None) -> LayoutOptions:
    """What a layout says beyond the degrees."""
    if layout is None:
        return PLAIN
    return LayoutOptions(layout.vpp, layout.ep, layout.recompute, layout.sequence_parallel)


def _at_once(layout: ParallelLayout | None) -> dict[str, int]:
    """What of a batch runs at once: rows, or tokens."""
    if layout is None:
        return {"micro_batch": 1, "token_budget": 0}
    if layout.token_budget is not None:
        return {"micro_batch": 1, "token_budget": layout.token_budget}
    return {"micro_batch": layout.micro_samples, "token_budget": 0}


def _function(role: str, config: RunConfig, plan: Plan, device: str) -> FunctionSpec:
    section = {"reward": config.reward, "cost": config.cost}[role]
    assert section is not None, f"{role} is a function"
    workers = section.workers or (plan.num_gpus if device == "cuda" else 1)
    codec = TextCodec(config.data.alphabet, config.data.tokenizer)
    return FunctionSpec(section.function, codec, workers, section.isolation == "strict")


def _optimizer(role: str, config: RunConfig, steps: int) -> OptimizerConfig:
    """AdamW of a role, with the schedule of its learning rate; ``steps`` an iteration."""
    rate = config.critic_learning_rate if role == "critic" else None
    given = config.optimizer
    last = given.iterations or config.iterations
    schedule = RateSchedule(given.schedule, given.warmup, last, given.floor, steps)
    constants = (given.betas, given.eps, given.weight_decay, config.max_grad_norm)
    return OptimizerConfig(rate or config.learning_rate, *constants, schedule)


def _model_spec(entry: RolePlan, plan: Plan, config: RunConfig, device: str, steps: int) -> ModelSpec:
    layout = entry.training or entry.inference
    flow = build_dataflow(plan.algorithm, tuple(role.role for role in plan.roles))
    optimizer = _optimizer(entry.role, config, steps) if flow.is_trained(entry.role) else None
    generation, at_once = entry.generation, _at_once(layout)
    return ModelSpec(
        path=config.weights_of(entry.role),
        seed=config.seed,
        dtype=config.dtype,
        value_head=entry.role in ("critic", "reward", "cost"),
        micro_batch=at_once["micro_batch"],
        token_budget=at_once["token_budget"],
        zero_stage=entry.training.zero_stage if entry.training else 0,
        optimizer=optimizer,
        max_num_seqs=generation.max_num_seqs if generation else 1,
        kv_cache_bytes=generation.kv_cache_bytes if generation else 0,
        scoring=scoring_degrees_of(entry),
        offload=entry.offload,
        recompute=entry.training.recompute if entry.training else "none",
        device=device,
        collective_timeout_s=config.timeouts.collective_s,
        check_weights=config.checks.transitions,
    )
