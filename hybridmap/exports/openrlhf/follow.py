"""The plan that OpenRLHF runs when it is told one: DeepSpeed for all models alike, and who may share GPUs."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from hybridmap.exports.export import Points
from hybridmap.exports.follow import (
    all_in_tokens,
    as_ppo,
    by_the_trainer,
    degrees_text,
    even_micro_batch,
    in_one_unit,
    keeps_samples,
    require_it_fits,
    scored_as_trained,
    smallest,
    with_fitting_cache,
)
from hybridmap.exports.formats import Formats, in_formats_of
from hybridmap.exports.imported import newest
from hybridmap.exports.weights import note_own_weights, with_cache_of_its_share
from profiles.errors import InputError
from simulator.plan.algorithms import ALGORITHMS
from simulator.plan.plan import GenerationLayout, ParallelLayout, Pool, RolePlan, placement_name
from simulator.systems.targets import ENGINE_SEQUENCES, MAY_SHARE

if TYPE_CHECKING:
    from hybridmap.exports.export import Point, Source

SYSTEM = "OpenRLHF"
TRAINER = "deepspeed"


def followed(source: Source) -> tuple[Source, tuple[Point, ...]]:
    """The plan that OpenRLHF runs, for the job that it then runs, and what was changed.

    Raises ``InputError`` where nothing near the plan fits, or batches do not divide.
    """
    out = Points()
    source = _trained_there(_algorithm(as_ppo(source, out, SYSTEM), out), out)
    source = by_the_trainer(source, out, SYSTEM, may_bypass=False)
    source = in_formats_of(source, out, SYSTEM, Formats(source="openrlhf/trainer/ray/vllm_engine.py:264"))
    source = _generation(source, out)
    source = _apart(source, out)
    source = in_one_unit(source, out, SYSTEM) if keeps_samples(source) else all_in_tokens(source)
    return _fastest(source, _lead(source, out), out)


def _fastest(source: Source, lead: ParallelLayout, out: Points) -> tuple[Source, tuple[Point, ...]]:
    """All models in the actor's layout; what does not fit so, with more sharded or more computed again."""
    found: list[tuple[float, Source, Points]] = []
    refusal: InputError | None = None
    for zero, recompute in product(range(lead.zero_stage, 4), dict.fromkeys((lead.recompute, "full"))):
        points = Points(list(out.found))
        own = lead.model_copy(update={"zero_stage": zero, "recompute": recompute})
        if (zero, recompute) != (lead.zero_stage, lead.recompute):
            changed = f"ZeRO {zero}, recompute {recompute} in place of ZeRO {lead.zero_stage}, {lead.recompute}"
            points.cannot("actor.training", f"without pipeline stages it does not fit: {changed}")
        try:
            whole = with_cache_of_its_share(with_fitting_cache(_all_alike(source, own, points), points))
            found.append((require_it_fits(whole, SYSTEM), whole, points))
        except InputError as error:
            refusal = refusal or error
        if found and zero == lead.zero_stage:
            break  # it fits as it is
    if not found:
        assert refusal is not None, "something was tried"
        raise refusal
    _, best, points = min(found, key=lambda each: each[0])
    return best, tuple(points.found)


def _trained_there(source: Source, out: Points) -> Source:
    """The job with DeepSpeed as its trainer, whatever it has; one that was measured stays."""
    asked = str(source.job.engines.training)
    if asked.startswith(f"{TRAINER}@") or asked.endswith(".yaml"):
        return source
    there = newest("training", TRAINER)
    out.cannot("engines.training", f"OpenRLHF trains with DeepSpeed, the job with {asked}: priced as {there}")
    return source.with_job(engines=source.job.engines.model_copy(update={"training": there}))


def _all_alike(source: Source, lead: ParallelLayout, out: Points) -> Source:
    for entry in source.plan.roles:
        source = source.with_role(_as_the_actor(source, entry, lead, out))
    return source


def _algorithm(source: Source, out: Points) -> Source:
    if not source.has("reward"):
        out.cannot("reward", "a reward function is a Python file: put its path in place of REWARD_FUNCTION.py")
    if ALGORITHMS[source.facts.algorithm].drops_equal_groups:
        out.cannot("algorithm", "dynamic sampling is left off; add --algo.dynamic_filtering_enable")
    if not ALGORITHMS[source.facts.algorithm].greedy_baseline:
        return source
    out.cannot("algorithm", "no ReMax: the greedy baseline is not generated; exported as REINFORCE")
    return source.with_plan(algorithm="reinforce++").with_job(algorithm="reinforce++")


def _generation(source: Source, out: Points) -> Source:
    layout = source.actor.generation
    assert layout is not None, "the actor generates"
    tp, pool = layout.tp * layout.pp, source.plan.generation_pool_of("actor")
    if layout.pp > 1:
        out.cannot("actor.generation.pp", f"engines have tensor parallelism alone: {tp} ranks")
    if layout.ep > 1 or layout.attention_dp > 1:
        out.cannot("actor.generation.ep", "no flag for expert or attention parallelism inside an engine")
    if layout.max_num_seqs != ENGINE_SEQUENCES:
        out.cannot(
            "actor.generation.max_num_seqs",
            f"no flag for {layout.max_num_seqs} sequences in flight; vLLM takes {ENGINE_SEQUENCES} for such an engine",
        )
    if source.plan.schedule == "sync" and source.actor.separate_generation:
        out.cannot("schedule", "engines wait while the models train; only async training overlaps them")
    if source.plan.schedule == "one-step-off":
        out.cannot("schedule", "one step off becomes async training with a queue of one batch")
        source = source.with_plan(schedule="async", steps_in_flight=1)
    note_own_weights(source, out, SYSTEM)
    dp = pool.num_gpus // tp if len(source.plan.pools) == 1 else layout.dp  # sharing all, engines fill the pool
    kept = GenerationLayout(dp=dp, tp=tp, max_num_seqs=ENGINE_SEQUENCES, kv_cache_bytes=layout.kv_cache_bytes)
    return source.with_entry("actor", generation=kept)


def _apart(source: Source, out: Points) -> Source:
    """Pools that OpenRLHF makes: all share one, or two pairs do; engines beside them have GPUs of their own."""
    plan = source.plan
    if len(plan.pools) == 1:
        if source.has("critic"):
            out.cannot("schedule", "all models take turns; actor and critic are updated one after the other")
        return source
    groups: list[tuple[tuple[str, ...], int]] = []
    for pool in (pool for pool in plan.pools if pool.roles):
        if len(pool.roles) == 1 or frozenset(pool.roles) in MAY_SHARE:
            groups.append((pool.roles, pool.num_gpus))
            continue
        out.cannot(
            "pools",
            f"{', '.join(pool.roles)} share GPUs; OpenRLHF shares all, actor with reference, or critic with reward, so "
            f"each gets {pool.num_gpus} of its own",
        )
        groups += [((role,), pool.num_gpus) for role in pool.roles]
    layout = source.actor.generation
    assert layout is not None, "the actor generates"
    if not source.actor.separate_generation:
        out.cannot(
            "actor.generation.pool",
            f"without colocate_all the engines get GPUs of their own, {layout.num_gpus:,} on top of those of the plan",
        )
    return _on_pools(source, [*groups, ((), layout.num_gpus)])


def _on_pools(source: Source, groups: list[tuple[tuple[str, ...], int]]) -> Source:
    """The roles on these pools, in a cluster that is large enough for them."""
    device, node = source.plan.pools[0].device, source.facts.group.gpus_per_node
    pools, first = [], 0
    for i, (roles, size) in sorted(enumerate(groups), key=lambda each: -each[1][1]):
        pools.append(Pool(name="ABCDEFGH"[i], device=device, first_gpu=first, num_gpus=size, roles=roles))
        first += size
    names = {role: pool.name for pool in pools for role in pool.roles}
    engines = next(pool.name for pool in pools if not pool.roles)
    entries = tuple(
        entry.model_copy(
            update={"pool": names[entry.role], "generation_pool": engines if entry.role == "actor" else None}
        )
        for entry in source.plan.roles
    )
    (cluster,) = source.job.cluster
    grown = [cluster.model_copy(update={"nodes": max(cluster.nodes, -(-first // node))})]
    ordered = tuple(sorted(pools, key=lambda pool: pool.name))
    name = placement_name(tuple(pool.roles for pool in ordered if pool.roles))
    return source.with_plan(pools=ordered, roles=entries, placement=name).with_job(cluster=grown)


def _lead(source: Source, out: Points) -> ParallelLayout:
    """The actor's layout in DeepSpeed, which sets degrees, micro-batch and ZeRO stage of all."""
    layout = source.actor.training
    assert layout is not None, "the actor is trained"
    if layout.zero_stage == 0:
        out.cannot("actor.training.zero_stage", "DeepSpeed in OpenRLHF shards at least the optimizer: ZeRO 1")
    if layout.recompute == "selective":
        out.cannot("actor.training.recompute", "only whole layers are recomputed")
    recompute = "none" if layout.recompute == "none" else "full"
    update = {"pp": 1, "ep": 1, "vpp": 1, "zero_stage": max(layout.zero_stage, 1), "recompute": recompute}
    own = layout.model_copy(update=update)
    own = own.model_copy(update={"dp": _replicas(source.plan.pool_of("actor"), own)})
    return even_micro_batch("actor", "training", own, source.facts.workload.minibatch_samples, out, SYSTEM)


def _replicas(pool: Pool, layout: ParallelLayout) -> int:
    return max(pool.num_gpus // (layout.tp * layout.cp), 1)


def _as_the_actor(source: Source, entry: RolePlan, lead: ParallelLayout, out: Points) -> RolePlan:
    entry = scored_as_trained(entry, out)
    layout = entry.training or entry.inference
    assert layout is not None, f"{entry.role} trains or scores"
    for name, degree in (("pp", layout.pp), ("ep", layout.ep)):
        if degree > 1:
            out.cannot(
                f"{entry.role}.{name}",
                f"OpenRLHF trains with DeepSpeed, which has no {name} here; the plan has {degree}",
            )
    if entry.role != "actor" and (layout.tp, layout.cp) != (lead.tp, lead.cp):
        out.cannot(
            f"{entry.role}.layout",
            f"one TP and ring size for all models, the actor's; the plan has {degrees_text(layout)}",
        )
    spread = lead.model_copy(update={"dp": _replicas(source.plan.pool_of(entry.role), lead)})
    scores = [e.inference for e in source.plan.roles if e.inference is not None]
    forward: dict[str, object] = {"micro_batch": smallest(scores or [lead]), "recompute": "none"}
    if entry.training is None:
        forward["zero_stage"] = 3 if lead.zero_stage == 3 else 0
        offload = ("parameters",) if entry.offload and lead.zero_stage == 3 else ()
        if entry.offload and not offload:
            out.cannot(f"{entry.role}.offload", "DeepSpeed keeps parameters in host memory in ZeRO 3 alone")
        return entry.model_copy(update={"inference": spread.model_copy(update=forward), "offload": offload})
    inference = spread.model_copy(update=forward) if entry.inference is not None else None
    offloads = ("optimizer",) if _sleeps(source) else ()
    if "optimizer" in entry.offload and not offloads:
        out.cannot(f"{entry.role}.offload", "DeepSpeed's sleep would let critic and actor take turns; left off")
    return entry.model_copy(update={"training": spread, "inference": inference, "offload": offloads})


def _sleeps(source: Source) -> bool:
    """Whether optimizers wait in host memory: one flag for all, with which critic and actor train by turns.

    On the same GPUs they have to, since they would train at once without it; on others they are not to wait.
    """
    if source.has("critic"):
        return len(source.plan.pools) == 1
    return any("optimizer" in each.offload for each in source.plan.roles)
