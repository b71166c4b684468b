"""What NeMo-RL and slime share: a reference that is the actor's workers with other weights, engines on whole pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.exports.follow import degrees_of, degrees_text, job_without, moved, without_role
from profiles.errors import InputError

if TYPE_CHECKING:
    from hybridmap.exports.export import Points, Source
    from simulator.plan.plan import GenerationLayout, ParallelLayout, Pool


def one_epoch(source: Source, out: Points, system: str) -> Source:
    """The job with one pass over its samples, which is what the system makes."""
    epochs = source.facts.workload.epochs
    if epochs == 1:
        return source
    out.cannot("algorithm", f"{epochs} passes over the samples; {system} makes one")
    return source.with_job(workload=source.job.workload.model_copy(update={"epochs": 1}))


def rewarded_elsewhere(source: Source, out: Points, how: str) -> Source:
    """The run without a reward model, which no setting starts; ``how``: how the system is given one by hand."""
    if not source.has("reward"):
        return source
    out.cannot("reward", f"a reward model ({source.model('reward')}) {how}; it is not in these times")
    return source.with_plan(**dict(without_role(source.plan, "reward"))).with_job(**job_without(source.job, "reward"))


def on_the_actors_gpus(source: Source, out: Points, workers: str) -> Source:
    """The reference on the actor's pool; ``workers`` is what the system calls the actor."""
    for pool in (p for p in source.plan.pools if p.roles and "actor" not in p.roles):
        if "reference" in pool.roles:
            out.cannot("reference.pool", f"the reference is the {workers}'s workers with other weights, on their GPUs")
            source = source.with_plan(**dict(moved(source.plan, "reference", source.plan.pool_of("actor"))))
    return source


def reference_in(scoring: ParallelLayout, source: Source, out: Points, workers: str) -> Source:
    """The reference in the actor's scoring layout, its weights in host memory meanwhile; as it is without one."""
    if not source.has("reference"):
        return source
    planned = source.plan.role("reference").inference
    assert planned is not None, "the reference scores"
    if degrees_of(planned) != degrees_of(scoring):
        out.cannot(
            "reference.inference",
            f"the reference is the {workers}'s workers with other weights, in their layout {degrees_text(scoring)}; "
            f"the plan has {degrees_text(planned)}",
        )
    return source.with_entry("reference", inference=scoring, offload=("swap",))


def num_engines(layout: GenerationLayout, pool: Pool, system: str) -> int:
    """Engines that fill a pool; ``InputError`` where they leave GPUs over."""
    replica = layout.tp * layout.pp
    if pool.num_gpus % replica:
        raise InputError(
            f"{system} starts engines on all {pool.num_gpus:,} GPUs, which engines of {replica} do not fill; pin "
            "actor.generation.tp to a divisor"
        )
    return pool.num_gpus // replica
