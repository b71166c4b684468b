"""A plan that verl can follow as keys of verl 0.9.1 (its Hydra configuration ``ppo_trainer``).

A key with ``+`` is one that verl adds to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import AlgorithmKey, Default, Settings, algorithm_keys
from hybridmap.exports.verl.engines import reward_keys, rollout_keys
from hybridmap.exports.verl.layouts import (
    fsdp_keys,
    kernel_keys,
    last_stage_layers,
    megatron_keys,
    token_budget,
    trained_keys,
)
from hybridmap.exports.verl.places import ACTOR, REF, ROLLOUT, home, needs_subclass, own_pools, uses_fsdp
from hybridmap.exports.verl.programs import FULLY_ASYNC, MAIN, program_for
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridmap.exports.export import Source
    from profiles.workload import Workload
    from simulator.plan.plan import Plan

_CONFIG = "trainer/config/_generated_ppo_trainer.yaml"
_BYPASS = "algorithm.rollout_correction.bypass_mode"
_ALWAYS_BYPASSED = Default(
    True,
    "experimental/one_step_off_policy/config/one_step_off_ppo_trainer.yaml:31, and :98 of fully_async_ppo_trainer.yaml",
    "the job says implementation: {old_log_prob: trainer}",
)
ALGORITHM: dict[str, Default] = {
    "algorithm.adv_estimator": Default("gae", f"{_CONFIG}:861", "the job's algorithm says so"),
    "algorithm.use_kl_in_reward": Default(False, f"{_CONFIG}:869", "the job has a reference, for a KL term"),
    f"{ACTOR}.use_kl_loss": Default(False, f"{_CONFIG}:106", "the job has a reference, for a KL term"),
    f"{ACTOR}.clip_ratio_high": Default(0.2, f"{_CONFIG}:87", "the job's algorithm is dapo"),
    f"{ACTOR}.ppo_epochs": Default(1, f"{_CONFIG}:111", "the job's workload.epochs says so"),
    "critic.ppo_epochs": Default(1, f"{_CONFIG}:614", "the job's workload.epochs says so"),
    _BYPASS: Default(False, f"{_CONFIG}:855", "the job says implementation: {old_log_prob: engine}"),
    "trainer.v1.trainer_mode": Default("sync", f"{_CONFIG}:981", "the plan has pools or a schedule of its own"),
    "trainer.v1.separate_async.parameter_sync_step": Default(
        4, f"{_CONFIG}:987", "weights go to the rollout once an iteration, after all its optimizer steps"
    ),
    "trainer.v1.sampler.max_off_policy_threshold": Default(8, f"{_CONFIG}:998", "the plan's steps_in_flight says so"),
    "actor_rollout_ref.model.lora_rank": Default(0, f"{_CONFIG}:447", "the job's implementation.lora_rank says so"),
    "actor_rollout_ref.model.lora.rank": Default(0, f"{_CONFIG}:475", "the job's implementation.lora_rank says so"),
    "critic.model.lora_rank": Default(0, f"{_CONFIG}:688", "the job's implementation.lora_rank says so"),
    "critic.model.lora.rank": Default(0, f"{_CONFIG}:716", "the job's implementation.lora_rank says so"),
}
"""What verl 0.9.1 does about the algorithm by itself; another value is written where a job asks for it alone."""


def algorithm_of(source: Source, values: Mapping[str, Any]) -> tuple[AlgorithmKey, ...]:
    """The settings that change verl's own algorithm, and the program that does where it is not the main one."""
    program = program_for(source.plan)
    if program is MAIN:
        return algorithm_keys(values, ALGORITHM)
    other = AlgorithmKey(
        "program", program.module, MAIN.module, "the plan's schedule trains on samples of an earlier step"
    )
    return (other, *algorithm_keys(values, {**ALGORITHM, _BYPASS: _ALWAYS_BYPASSED}))


def verl_settings(source: Source) -> Settings:
    """Every key that the plan decides; ``source`` is one that verl can follow."""
    out = Settings()
    out.put({"model_engine": "dp" if uses_fsdp(source) else "megatron"})
    _work(source, out)
    _cluster(source, out)
    trained_keys("actor", ACTOR, source, out)
    rollout_keys(source, out)
    _reference(source, out)
    _critic(source, out)
    reward_keys(source, out)
    _schedule(source, out)
    return out


def _work(source: Source, out: Settings) -> None:
    work, algorithm = source.facts.workload, ALGORITHMS[source.facts.algorithm]
    out.put({"algorithm.adv_estimator": algorithm.estimators["verl"]})
    out.put(
        {
            # A fully asynchronous run takes prompts one by one (fully_async_rollouter.py:351).
            "train_batch_size": 0 if program_for(source.plan) is FULLY_ASYNC else work.prompts,
            "max_prompt_length": work.prompt_length,
            "max_response_length": work.response.maximum,
        },
        "data",
    )
    out.put({f"{ROLLOUT}.n": work.samples_per_prompt})
    in_loss = source.has("reference") and algorithm.kl_in_loss
    out.put(
        {
            "algorithm.use_kl_in_reward": source.has("reference") and not in_loss,
            f"{ACTOR}.use_kl_loss": in_loss,
            _BYPASS: source.old_log_prob_by_engine,
        }
    )
    if algorithm.clip_high is not None:
        out.put({f"{ACTOR}.clip_ratio_high": algorithm.clip_high})
    out.put({"actor_rollout_ref.model.path": source.model("actor")})
    if work.pads_prompts:
        out.put({"actor_rollout_ref.model.use_remove_padding": False})
    if uses_fsdp(source) and source.facts.implementation.loss_head == "fused":
        out.put({"actor_rollout_ref.model.use_fused_kernels": True})


def _cluster(source: Source, out: Settings) -> None:
    nodes, gpus = source.nodes(home(source))
    out.put({"trainer.nnodes": nodes, "trainer.n_gpus_per_node": gpus})
    for role, pool in own_pools(source).items():
        nodes, gpus = source.nodes(pool)
        out.put({f"+hybridmap.{role}.nnodes": nodes, f"+hybridmap.{role}.n_gpus_per_node": gpus})


def _reference(source: Source, out: Settings) -> None:
    if not source.has("reference"):
        return
    entry = source.plan.role("reference")
    layout = entry.inference
    assert layout is not None, "the reference scores"
    fsdp = uses_fsdp(source)
    section = f"{REF}.{'fsdp_config' if fsdp else 'megatron'}"
    budget = token_budget(source, layout)
    if budget is None:
        out.put({f"{REF}.log_prob_micro_batch_size_per_gpu": layout.micro_batch})
    else:
        out.put({"log_prob_use_dynamic_bsz": True, "log_prob_max_token_len_per_gpu": budget}, REF)
    if fsdp:
        fsdp_keys(section, layout, out)
    else:
        megatron_keys(section, layout, out, forward=True)
        shape = source.facts.roles["reference"].shape
        last = last_stage_layers(shape.num_layers, layout.pp)
        uneven = {} if last is None else {"num_layers_in_last_pipeline_stage": last}
        # Left alone, the reference takes over what the actor's transformer is told, its recomputation too.
        out.put(
            {"override_transformer_config": {"attention_backend": "flash", **kernel_keys(shape), **uneven}}, section
        )
    out.put({"param_offload": bool(entry.offload)}, section)


def _critic(source: Source, out: Settings) -> None:
    out.put({"critic.enable": source.has("critic")})
    if not source.has("critic"):
        return
    out.put({"critic.model.path": source.model("critic")})
    trained_keys("critic", "critic", source, out)
    entry = source.plan.role("critic")
    assert entry.training is not None and entry.inference is not None, "the critic is trained and scores"
    budget = token_budget(source, entry.training)
    if budget is not None:
        out.put({"+critic.ppo_infer_max_token_len_per_gpu": budget})
        return
    # The trainer does not pass critic.ppo_micro_batch_size_per_gpu on to the engine, whose own keys default to
    # dynamic batches of 32,768 tokens; so they are set as well.
    out.put(
        {
            "use_dynamic_bsz": False,
            "micro_batch_size_per_gpu": entry.training.micro_batch,
            "infer_micro_batch_size_per_gpu": entry.inference.micro_batch,
        },
        f"+critic.{'fsdp' if uses_fsdp(source) else 'megatron'}",
    )


def _schedule(source: Source, out: Settings) -> None:
    plan, work = source.plan, source.facts.workload
    if not source.actor.separate_generation:
        out.put({"trainer.v1.trainer_mode": "hybridmap_pools" if needs_subclass(source) else "sync"})
        return
    nodes, gpus = source.nodes(plan.generation_pool_of("actor"))
    if program_for(plan) is not MAIN:
        out.put({"actor_rollout_ref.hybrid_engine": False, "rollout.nnodes": nodes, "rollout.n_gpus_per_node": gpus})
        if program_for(plan) is FULLY_ASYNC:
            out.put(_one_batch_an_update(plan, work))
        return
    out.put(
        {
            "trainer.v1.trainer_mode": "hybridmap_pools_async" if needs_subclass(source) else "separate_async",
            "actor_rollout_ref.hybrid_engine": False,
            f"{ROLLOUT}.nnodes": nodes,
            f"{ROLLOUT}.n_gpus_per_node": gpus,
            f"{ROLLOUT}.checkpoint_engine.backend": "nccl",
            "trainer.v1.separate_async.parameter_sync_step": work.minibatches,
            "trainer.v1.sampler.max_off_policy_threshold": plan.steps_in_flight,
        }
    )


def _one_batch_an_update(plan: Plan, work: Workload) -> dict[str, Any]:
    """Keys of a fully asynchronous run that takes a whole batch at once, then gives the engines its weights.

    So old log-probs, where the trainer computes them, are of the weights that the batch begins with; between smaller
    takes verl would bring those back from host memory (fully_async_trainer.py:654).
    """
    return {
        "async_training.require_batches": work.minibatches,
        "async_training.trigger_parameter_sync_step": 1,
        "async_training.staleness_threshold": plan.steps_in_flight - 1,
        "async_training.partial_rollout": plan.in_flight_updates,
        "rollout.total_rollout_steps": None,  # else 100 prompts, and then it ends (fully_async_ppo_trainer.yaml:64)
    }
