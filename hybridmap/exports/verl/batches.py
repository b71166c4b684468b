"""Micro-batches of a verl run: so many samples, or so many tokens; and the degrees that tokens are cut by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.exports.verl.places import ACTOR, REF, ROLLOUT
from profiles.errors import InputError
from simulator.plan.plan import TokenBudget

if TYPE_CHECKING:
    from hybridmap.exports.verl.read import VerlConfig

_PLACES = {"actor": ACTOR, "critic": "critic", "reference": REF}
_BUDGETS = {
    ("actor", "training"): f"{ACTOR}.ppo_max_token_len_per_gpu",
    ("actor", "inference"): f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
    ("reference", "inference"): f"{REF}.log_prob_max_token_len_per_gpu",
    # The trainer gives the critic's engine this one for both passes (trainer/ppo/v1/trainer_base.py:267).
    ("critic", "training"): "critic.ppo_infer_max_token_len_per_gpu",
    ("critic", "inference"): "critic.ppo_infer_max_token_len_per_gpu",
}


def trains_with_fsdp(config: VerlConfig) -> bool:
    """Whether the run trains with FSDP; else with Megatron-Core."""
    strategy = config.get(f"{ACTOR}.strategy")
    return config.get("model_engine") != "megatron" if strategy is None else str(strategy).startswith("fsdp")


def section_of(config: VerlConfig, role: str) -> str:
    """Where the keys of a role's engine stand."""
    engine = ("fsdp" if role == "critic" else "fsdp_config") if trains_with_fsdp(config) else "megatron"
    return f"{_PLACES[role]}.{engine}"


def context_degree(config: VerlConfig, role: str) -> int:
    """Ranks that share a sequence: Megatron's context parallelism, or Ulysses."""
    if not trains_with_fsdp(config):
        return config.whole(f"{section_of(config, role)}.context_parallel_size")
    old = f"{_PLACES[role]}.ulysses_sequence_parallel_size"
    # The deprecated key still wins for actor and reference (workers/config/actor.py:328), not for the critic.
    if role != "critic" and config.whole(old) > 1:
        return config.whole(old)
    return config.whole(f"{section_of(config, role)}.ulysses_sequence_parallel_size")


def is_dynamic(config: VerlConfig, role: str, stage: str) -> bool:
    """Whether a pass packs tokens; ``InputError`` where verl refuses a mixture."""
    if role == "critic":
        return bool(config.get(f"{section_of(config, role)}.use_dynamic_bsz"))
    if role == "reference":
        return bool(config.get(f"{REF}.log_prob_use_dynamic_bsz"))
    actor, rollout = (f"{ACTOR}.use_dynamic_bsz", f"{ROLLOUT}.log_prob_use_dynamic_bsz")
    if bool(config.get(actor)) is not bool(config.get(rollout)):
        raise InputError(f"{config.source}: {actor} and {rollout} differ, which verl refuses; give both one value")
    return bool(config.get(actor))


def token_budget(config: VerlConfig, role: str, stage: str) -> int:
    """Tokens of one micro-batch of a pass that packs them, over the ranks that share its sequences."""
    return config.whole(_BUDGETS[role, stage]) * context_degree(config, role)


def micro_batch(config: VerlConfig, role: str, stage: str) -> int | TokenBudget:
    """The micro-batch of a pass: samples, or a budget of tokens."""
    if is_dynamic(config, role, stage):
        return TokenBudget(tokens=token_budget(config, role, stage))
    return _samples(config, role, stage)


def _samples(config: VerlConfig, role: str, stage: str) -> int:
    if role == "actor":
        place = f"{ACTOR}.ppo" if stage == "training" else f"{ROLLOUT}.log_prob"
        return _stated(config, f"{place}_micro_batch_size_per_gpu")
    if role == "reference":
        return _stated(config, f"{REF}.log_prob_micro_batch_size_per_gpu")
    section = section_of(config, "critic")
    names = (
        ["micro_batch_size_per_gpu"]
        if stage == "training"
        else ["infer_micro_batch_size_per_gpu", "micro_batch_size_per_gpu"]
    )
    own = next((f"{section}.{name}" for name in names if config.get(f"{section}.{name}") is not None), None)
    return _stated(config, own or "critic.ppo_micro_batch_size_per_gpu")


def _stated(config: VerlConfig, key: str) -> int:
    if config.get(key) is None:
        raise InputError(f"{config.source}: {key} is not set, and use_dynamic_bsz is off; verl refuses that too")
    return config.whole(key)
