"""Changes that make a plan one that another system can run; each says what it changed and why."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmap.exports.export import Source, largest_divisor
from profiles.errors import InfeasibleError, InputError
from profiles.units import GIB, MIB
from simulator.cost.token_quantiles import TYPICAL, tokens_at
from simulator.plan.algorithms import ALGORITHMS
from simulator.plan.plan import ParallelLayout, Plan, Pool, RolePlan, TokenBudget, placement_name
from simulator.pool_memory import pool_memory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from hybridmap.exports.export import Points
    from hybridmap.job.job import Job

DEGREES = ("tp", "pp", "cp", "ep", "vpp")
"""What a parallel state fixes; data parallelism is the rest of a pool."""


def degrees_of(layout: ParallelLayout) -> dict[str, int]:
    """The degrees of a layout, less data parallelism."""
    return {name: getattr(layout, name) for name in DEGREES}


def degrees_text(layout: ParallelLayout) -> str:
    """A layout as plans print it, from tensor to data parallelism."""
    extra = "".join(f" {letter}{n}" for letter, n in (("c", layout.cp), ("e", layout.ep)) if n > 1)
    return f"t{layout.tp} p{layout.pp} d{layout.dp}{extra}"


def as_ppo(source: Source, out: Points, system: str) -> Source:
    """Safe-RLHF without what no other system has: its cost model, its pretraining loss, its multiplier."""
    if not ALGORITHMS[source.facts.algorithm].pretraining_loss:
        return source
    out.cannot(
        "cost",
        f"{system} has no Safe-RLHF: no cost model, no pretraining loss, no multiplier; exported as PPO without them",
    )
    work = {key: value for key, value in source.job.document["workload"].items() if key != "pretrain_update"}
    plan = without_role(source.plan, "cost").model_copy(update={"algorithm": "ppo"})
    return Source(plan, source.job).with_job(algorithm="ppo", workload=work, **job_without(source.job, "cost"))


def job_without(job: Job, role: str) -> dict[str, Any]:
    """The sections of a job that name a role, without it; pins of who shares GPUs go too."""
    models = {name: model for name, model in job.document["models"].items() if name != role}
    pins = {name: pin for name, pin in job.document["pin"].items() if name not in (role, "share")}
    return {"models": models, "pin": pins}


def without_role(plan: Plan, role: str) -> Plan:
    """The plan without a role; a pool that nobody is left on goes too."""
    pools = [p.model_copy(update={"roles": tuple(r for r in p.roles if r != role)}) for p in plan.pools]
    roles = tuple(entry for entry in plan.roles if entry.role != role)
    return _placed(plan, pools, roles)


def moved(plan: Plan, role: str, pool: Pool) -> Plan:
    """The plan with a role on another pool."""
    order = {entry.role: i for i, entry in enumerate(plan.roles)}

    def members(one: Pool) -> tuple[str, ...]:
        kept = [r for r in one.roles if r != role] + ([role] if one.name == pool.name else [])
        return tuple(sorted(kept, key=order.__getitem__))

    pools = [p.model_copy(update={"roles": members(p)}) for p in plan.pools]
    roles = tuple(e.model_copy(update={"pool": pool.name}) if e.role == role else e for e in plan.roles)
    return _placed(plan, pools, roles)


def _placed(plan: Plan, pools: list[Pool], roles: tuple[RolePlan, ...]) -> Plan:
    engines = {entry.generation_pool for entry in roles if entry.separate_generation}
    kept = tuple(pool for pool in pools if pool.roles or pool.name in engines)
    name = placement_name(tuple(pool.roles for pool in kept if pool.roles))
    return plan.model_copy(update={"pools": kept, "roles": roles, "placement": name})


def by_the_trainer(source: Source, out: Points, system: str, may_bypass: bool) -> Source:
    """Old log-probs from whom the system takes them, its trainer, unless the job asks for the engine and it can."""
    asked = source.asked_old_log_prob
    if asked == "engine" and may_bypass:
        return source
    if source.old_log_prob_by_engine:
        also = "" if not may_bypass else "; implementation: {old_log_prob: engine} in the job asks for the engine's"
        out.cannot(
            "actor.inference",
            f"{system} computes old log-probs in a pass of the trainer, which the plan does not have{also}",
        )
    changed = source.with_job(implementation=source.job.implementation.model_copy(update={"old_log_prob": "trainer"}))
    training = source.actor.training
    assert training is not None, "the actor is trained"
    if source.actor.inference is None:
        changed = changed.with_entry("actor", inference=training.model_copy(update={"recompute": "none"}))
    return changed


def whole_pool(role: str, stage: str, layout: ParallelLayout, pool: Pool, out: Points, system: str) -> ParallelLayout:
    """The layout spread over the whole pool: fewer pipeline stages where they do not divide it."""
    if layout.num_gpus == pool.num_gpus:
        return layout
    ranks, slice_ = pool.num_gpus, layout.tp * layout.cp
    if ranks % slice_:
        layout, slice_ = layout.model_copy(update={"tp": 1, "cp": 1, "ep": 1}), 1
    pp = next(n for n in range(layout.pp, 0, -1) if ranks % (slice_ * n) == 0)
    filled = layout.model_copy(update={"pp": pp, "dp": ranks // (slice_ * pp), "vpp": layout.vpp if pp > 1 else 1})
    out.cannot(
        f"{role}.{stage}",
        f"{system} uses all {ranks:,} GPUs of a pool, the plan {layout.num_gpus:,}; exported as {degrees_text(filled)}",
    )
    return filled


def with_degrees(layout: ParallelLayout, degrees: dict[str, int], pool: Pool) -> ParallelLayout:
    """The layout in other degrees, over the whole pool."""
    ranks = degrees["tp"] * degrees["pp"] * degrees["cp"]
    return layout.model_copy(update={**degrees, "dp": max(pool.num_gpus // ranks, 1)})


def scored_as_trained(entry: RolePlan, out: Points) -> RolePlan:
    """A trained role that scores with the shards that it trains, as these systems do."""
    a, b = entry.training, entry.inference
    if a is None or b is None:
        return entry
    if (a.dp, a.tp, a.pp, a.cp, a.ep) != (b.dp, b.tp, b.pp, b.cp, b.ep):
        out.cannot(
            f"{entry.role}.inference", f"it scores as it is trained; the plan scores on a copy in {degrees_text(b)}"
        )
    own = a.model_copy(update={"micro_batch": b.micro_batch, "recompute": "none"})
    return entry.model_copy(update={"inference": own})


def even_micro_batch(
    role: str, stage: str, layout: ParallelLayout, samples: int, out: Points, system: str
) -> ParallelLayout:
    """The layout with the largest micro-batch, up to the plan's, that cuts a rank's samples into equal ones.

    A budget of tokens stays: samples are dealt to its micro-batches whatever their number. Raises ``InputError`` where
    the samples do not divide among the ranks.
    """
    if samples % layout.dp:
        fitting = largest_divisor(layout.dp, samples)
        raise InputError(
            f"{role}.{stage}: {system} needs {samples:,} samples to divide into {layout.dp} data-parallel groups; "
            f"pin {role}.{stage}.dp to {fitting} or another divisor, or change the number of prompts"
        )
    if layout.token_budget is not None:
        return layout
    found = largest_divisor(layout.micro_samples, samples // layout.dp)
    if found != layout.micro_batch:
        out.cannot(
            f"{role}.{stage}.micro_batch",
            f"{system} cuts {samples // layout.dp:,} samples of a rank into equal micro-batches: {found} in place of "
            f"{layout.micro_batch}",
        )
    return layout.model_copy(update={"micro_batch": found})


def in_one_unit(source: Source, out: Points, system: str, served: Collection[str] = ()) -> Source:
    """All micro-batches in the unit in which the actor trains: the systems have one switch for all passes.

    Roles that are ``served`` by an inference engine have none.
    """
    training = source.actor.training
    in_samples = training is None or training.token_budget is None
    for entry in source.plan.roles:
        for stage in ("training", "inference"):
            layout: ParallelLayout | None = getattr(entry, stage)
            if entry.role in served or layout is None or (layout.token_budget is None) is in_samples:
                continue
            changed = _in_samples(source, layout) if in_samples else in_tokens(source, layout)
            unit = "samples" if in_samples else "tokens"
            out.cannot(
                f"{entry.role}.{stage}.micro_batch",
                f"{system} counts the micro-batches of all passes in one unit, here {unit}: "
                f"{_unit_text(changed)} in place of {_unit_text(layout)}",
            )
            source = source.with_entry(entry.role, **{stage: changed})
    return source


def _in_samples(source: Source, layout: ParallelLayout) -> ParallelLayout:
    """The layout with as many samples as a budget holds at their longest."""
    samples = max((layout.token_budget or 0) // source.facts.workload.padded_length, 1)
    return layout.model_copy(update={"micro_batch": samples})


def _unit_text(layout: ParallelLayout) -> str:
    budget = layout.token_budget
    return f"{layout.micro_batch} samples" if budget is None else f"{budget:,} tokens"


def keeps_samples(source: Source) -> bool:
    """Whether micro-batches stay numbers of samples; all systems count tokens by their own recipes.

    They do where the job pins one so, where prompts are padded, and in an interleaved pipeline, which must know how
    many micro-batches there are.
    """
    if source.facts.workload.pads_prompts or any(
        e.training is not None and e.training.vpp > 1 for e in source.plan.roles
    ):
        return True
    pins = source.job.document["pin"]
    stages = (pins.get(role) or {} for role in source.facts.roles)
    layouts = (each.get(stage) or {} for each in stages for stage in ("training", "inference"))
    return any(isinstance(layout.get("micro_batch"), int) for layout in layouts)


def all_in_tokens(source: Source, served: Collection[str] = ()) -> Source:
    """The plan with every micro-batch as a budget of tokens, but those of roles that an inference engine serves."""
    for entry in source.plan.roles:
        stages = {stage: getattr(entry, stage) for stage in ("training", "inference")}
        changed = {stage: in_tokens(source, x) for stage, x in stages.items() if x is not None}
        source = source if entry.role in served else source.with_entry(entry.role, **changed)
    return source


def in_tokens(source: Source, layout: ParallelLayout) -> ParallelLayout:
    """The layout with a budget of tokens for its packs, or for its samples as long as they typically are together.

    No budget is below the longest sample, which the systems refuse.
    """
    work = source.facts.workload
    tokens = source.tokens_of(layout)
    if tokens is None:
        typical = float(tokens_at(work, np.asarray(float(layout.micro_samples)), TYPICAL))
        tokens = max(math.ceil(typical), work.padded_length)
    return layout.model_copy(update={"micro_batch": TokenBudget(tokens=tokens)})


def smallest(layouts: Iterable[ParallelLayout]) -> int | TokenBudget:
    """The least micro-batch of layouts that count in one unit; one sample of none."""
    found = [layout.micro_batch for layout in layouts]
    return min(found, key=lambda x: x.tokens if isinstance(x, TokenBudget) else x, default=1)


def with_fitting_cache(source: Source, out: Points) -> Source:
    """The KV cache made as much smaller as other changes need; a plan gives it all that is left."""
    layout, pool = source.actor.generation, source.plan.generation_pool_of("actor")
    assert layout is not None, "the actor generates"
    peak = pool_memory(source.plan, pool, source.facts)
    over = peak.used_bytes - (peak.usable_bytes or peak.capacity_bytes)
    left = layout.kv_cache_bytes - over - MIB
    if over <= 0 or not peak.peak_call.startswith("generate") or left <= 0:
        return source
    out.cannot(
        "actor.generation.kv_cache_bytes",
        f"{left / GIB:.1f} GiB of KV cache on a GPU in place of {layout.kv_cache_bytes / GIB:.1f}, since the models "
        "take more there than planned",
    )
    return source.with_entry("actor", generation=layout.model_copy(update={"kv_cache_bytes": left}))


def require_it_fits(source: Source, system: str) -> float:
    """The time of what the system will run; ``InputError`` with the next step if it does not fit."""
    try:
        return source.iteration_s()
    except InfeasibleError as error:
        reason = str(error).removeprefix("this plan cannot run: ")
        raise InputError(
            f"what {system} would run of this plan does not fit: {reason}; plan again with layouts that {system} "
            f"follows pinned, such as pin: {pin_text(source)}"
        ) from None


def pin_text(source: Source) -> str:
    """Pins, as a job says them, of the degrees of everything that shares the actor's pool."""
    pins = []
    for entry in source.plan.roles:
        stage = "training" if entry.training is not None else "inference"
        layout = entry.training or entry.inference
        if layout is not None and entry.pool == source.actor.pool and entry.role != "reward":
            pins.append(f"{entry.role}: {{{stage}: {{tp: {layout.tp}, pp: {layout.pp}}}}}")
    return f"{{{', '.join(pins)}}}"
