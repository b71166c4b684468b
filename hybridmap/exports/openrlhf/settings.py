"""A plan that OpenRLHF can follow as flags of OpenRLHF 0.11.2 (``openrlhf.cli.train_ppo_ray``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.exports.export import Default, Settings
from hybridmap.exports.weights import utilization
from simulator.plan.algorithms import ALGORITHMS
from simulator.systems.targets import MAY_SHARE

if TYPE_CHECKING:
    from hybridmap.exports.export import Source

NAMES = {"actor": "actor", "critic": "critic", "reference": "ref", "reward": "reward"}
_FLAGS = {
    frozenset({"actor", "reference"}): "colocate_actor_ref",
    frozenset({"critic", "reward"}): "colocate_critic_reward",
}

_PARSER = "cli/train_ppo_ray.py"
ALGORITHM: dict[str, Default] = {
    "algo.advantage.estimator": Default("gae", f"{_PARSER}:515", "the job's algorithm says so"),
    "algo.kl.init_coef": Default(0.01, f"{_PARSER}:438", "the job has no reference"),
    "actor.eps_clip_low_high": Default(None, f"{_PARSER}:407", "the job's algorithm is dapo"),
    "train.max_epochs": Default(1, f"{_PARSER}:397", "the job's workload.epochs says so"),
    "train.async_enable": Default(False, f"{_PARSER}:293", "the plan's schedule trains on samples of an earlier step"),
    "train.async_queue_size": Default(1, f"{_PARSER}:294", "the plan's steps_in_flight says so"),
    "train.partial_rollout_enable": Default(False, f"{_PARSER}:296", "the plan updates weights while engines generate"),
    "ds.lora.rank": Default(0, f"{_PARSER}:384", "the job's implementation.lora_rank says so"),
}
"""What OpenRLHF 0.11.2 does about the algorithm by itself; another value is written where a job asks for it alone."""


def openrlhf_settings(source: Source) -> Settings:
    """Every flag that the plan decides; a flag without a value is ``True``."""
    out = Settings()
    _work(source, out)
    _placement(source, out)
    _training(source, out)
    _engine(source, out)
    return out


def _work(source: Source, out: Settings) -> None:
    work, algorithm = source.facts.workload, ALGORITHMS[source.facts.algorithm]
    out.put(
        {
            "algo.advantage.estimator": algorithm.estimators["openrlhf"],
            "rollout.batch_size": work.prompts,
            "rollout.n_samples_per_prompt": work.samples_per_prompt,
            "train.batch_size": work.minibatch_samples,
            "train.max_epochs": work.epochs,
            "data.max_len": work.padded_length,
            "rollout.max_new_tokens": work.response.maximum,
            "actor.model_name_or_path": source.model("actor"),
        }
    )
    out.put(
        {"reward.model_name_or_path": source.model("reward")}
        if source.has("reward")
        else {"reward.remote_url": "REWARD_FUNCTION.py"}
    )
    if source.has("critic"):
        out.put({"critic.model_name_or_path": source.model("critic")})
    if not source.has("reference"):
        out.put({"algo.kl.init_coef": 0})
    if algorithm.clip_high is not None:
        out.put({"actor.eps_clip_low_high": [0.2, algorithm.clip_high]})


def _placement(source: Source, out: Settings) -> None:
    """Who shares GPUs: all, actor with reference, critic with reward, or nobody."""
    plan = source.plan
    for role, name in NAMES.items():
        if source.has(role):
            nodes, gpus = source.nodes(plan.pool_of(role))
            out.put({f"{name}.num_nodes": nodes, f"{name}.num_gpus_per_node": gpus})
    if len(plan.pools) == 1:
        out.put({"train.colocate_all": True, "vllm.enable_sleep": True})
        return
    shared = {frozenset(pool.roles) for pool in plan.pools}
    out.put({f"train.{_FLAGS[pair]}": True for pair in MAY_SHARE if pair in shared})


def _training(source: Source, out: Settings) -> None:
    """One ZeRO stage, TP degree and micro-batch for actor and critic: the actor's."""
    layout, score = source.actor.training, source.actor.inference
    assert layout is not None and score is not None, "the actor is trained and gives the old log-probs"
    out.put(
        {
            "ds.zero_stage": layout.zero_stage,
            "ds.tensor_parallel_size": layout.tp,
            "ds.ring_attn_size": layout.cp,
            "train.micro_batch_size": 1 if layout.token_budget else layout.micro_samples,
            "rollout.micro_batch_size": 1 if score.token_budget else score.micro_samples,
            "ds.packing_samples": True,
            "ds.overlap_comm": True,
        }
    )
    budgets = {"train": source.tokens_of(layout), "rollout": source.tokens_of(score)}
    tokens = {name: num for name, num in budgets.items() if num is not None}
    if tokens:
        out.put({"train.dynamic_batch_enable": True})
        out.put({f"{name}.max_tokens_per_gpu": -(-num // layout.cp) for name, num in tokens.items()})
    if layout.recompute != "none":
        out.put({"actor.gradient_checkpointing_enable": True})
    if any("optimizer" in entry.offload for entry in source.plan.roles):
        out.put({"ds.enable_sleep": True})
    for role in ("reference", "reward"):
        if source.has(role) and source.plan.role(role).offload:
            out.put({f"{NAMES[role]}.offload": True})
    if source.facts.implementation.lora_rank:
        out.put({"ds.lora.rank": source.facts.implementation.lora_rank})


def _engine(source: Source, out: Settings) -> None:
    layout = source.actor.generation
    assert layout is not None, "the actor generates"
    out.put(
        {
            "vllm.num_engines": layout.dp,
            "vllm.tensor_parallel_size": layout.tp,
            "vllm.gpu_memory_utilization": utilization(source),
            "vllm.enable_prefix_caching": True,
            "vllm.sync_backend": "nccl",
        }
    )
    if source.plan.schedule != "sync":
        out.put({"train.async_enable": True, "train.async_queue_size": source.plan.steps_in_flight})
        if source.plan.in_flight_updates:
            out.put({"train.partial_rollout_enable": True})
