"""Where things stand in verl's configuration, and which pools it has no key for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridmap.exports.export import Source
    from simulator.plan.plan import Pool

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
REWARD = "reward.reward_model"


def uses_fsdp(source: Source) -> bool:
    """Whether the job trains with FSDP; anything else is exported as Megatron-Core."""
    return str(source.job.engines.training).startswith("fsdp")


def home(source: Source) -> Pool:
    """The pool that verl calls ``global_pool``: the actor's."""
    return source.plan.pool_of("actor")


def needs_subclass(source: Source) -> bool:
    """Whether a pool exists that verl has no key for."""
    return bool(own_pools(source))


def own_pools(source: Source) -> dict[str, Pool]:
    """Roles on a pool that no key of verl gives them: a critic apart from the actor, a reward model beside it."""
    out = {}
    if source.has("critic") and source.plan.pool_of("critic") != home(source):
        out["critic"] = source.plan.pool_of("critic")
    if source.has("reward"):
        pool = source.plan.pool_of("reward")
        if pool != home(source) and len(pool.roles) > 1 and "critic" in pool.roles:
            out["reward"] = pool
    return out
