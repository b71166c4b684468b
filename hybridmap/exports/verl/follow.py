"""The plan that verl runs when it is told one: its pools, its layouts, its batches, its schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.exports.export import Points
from hybridmap.exports.follow import (
    as_ppo,
    by_the_trainer,
    moved,
    require_it_fits,
    scored_as_trained,
    whole_pool,
    with_fitting_cache,
)
from hybridmap.exports.formats import Drafter, Formats, in_formats_of
from hybridmap.exports.recompute import note_selective
from hybridmap.exports.verl.engines import REWARD_TOKENS, served_by, serving_degrees
from hybridmap.exports.verl.layouts import FP8_RECIPES
from hybridmap.exports.verl.places import home, own_pools, uses_fsdp
from hybridmap.exports.verl.process import SYSTEM, equal_batches, one_layout
from hybridmap.exports.verl.schedule import scheduled
from hybridmap.exports.weights import note_own_weights
from hybridmap.text.notation import micro_batch_text
from profiles.errors import InputError
from simulator.plan.algorithms import ALGORITHMS
from simulator.plan.plan import GenerationLayout, ParallelLayout, RolePlan
from simulator.systems.targets import VERL_BYPASSES

if TYPE_CHECKING:
    from hybridmap.exports.export import Point, Source


def followed(source: Source, critic_apart: bool = True) -> tuple[Source, tuple[Point, ...]]:
    """The nearest plan that verl runs as it is written, for the job that it then runs, and what was changed.

    ``critic_apart``: whether a critic may have GPUs of its own, which takes the trainer subclass of an export.

    Raises
    ------
    InputError
        verl cannot run anything near it: nothing fits, or batches do not divide; says what to pin.
    """
    refusal: InputError | None = None
    for tp in serving_degrees(source):  # a reward model over more GPUs where it leaves the others no room
        try:
            return _followed(source, critic_apart, tp)
        except InputError as error:
            refusal = refusal or error
    assert refusal is not None, "there is a degree to try"
    raise refusal


def _followed(source: Source, critic_apart: bool, reward_tp: int) -> tuple[Source, tuple[Point, ...]]:
    out, planned = Points(), source.plan
    source = as_ppo(source, out, SYSTEM)
    source = _work(source, out)
    source = _placed(source, out, critic_apart)
    source = scheduled(source, out)
    source = _old_log_probs(source, out)
    for entry in source.plan.roles:
        changed = _reward(source, entry, reward_tp, out) if entry.role == "reward" else _own_layout(source, entry, out)
        source = source.with_role(changed)
    source = _generation(source, out)
    source = source if uses_fsdp(source) else one_layout(source, planned, out)
    source = with_fitting_cache(equal_batches(source, out), out)
    require_it_fits(source, SYSTEM)
    return source, tuple(out.found)


def _work(source: Source, out: Points) -> Source:
    """Optimizer steps of whole prompts; and what of the job has no key here."""
    work, engine = source.facts.workload, served_by(source)
    if engine[0] != engine[1]:
        out.cannot("actor.generation", f"the job generates with {engine[0]}; exported for {engine[1]}")
    source = in_formats_of(source, out, SYSTEM, _formats(source, engine[1]))
    if ALGORITHMS[source.facts.algorithm].drops_equal_groups:
        out.cannot("algorithm", "dynamic sampling is left off; algorithm.filter_groups.enable=True turns it on")
    steps = -(-work.prompts // source.minibatch_prompts)
    if work.minibatch_samples % work.samples_per_prompt:
        out.cannot(
            "workload.minibatches",
            f"an optimizer step is {work.minibatch_samples:,} samples; verl counts it in prompts of "
            f"{work.samples_per_prompt} samples each, so it is {source.minibatch_prompts:,} prompts",
        )
    if steps == work.minibatches or work.num_samples % steps:
        return source
    return source.with_job(workload=source.job.workload.model_copy(update={"minibatches": steps}))


def _formats(source: Source, engine: str) -> Formats:
    """Megatron-Core alone trains in FP8 and loads prediction layers; a draft model is an argument of vLLM."""
    megatron = not uses_fsdp(source)
    drafters: tuple[Drafter, ...] = ("own layers",) if megatron else ()
    if engine == "vllm":
        drafters += ("draft model",)
    return Formats(("fp8_block",), tuple(FP8_RECIPES) if megatron else (), drafters)


def _placed(source: Source, out: Points, critic_apart: bool) -> Source:
    actor_pool = home(source)
    if source.has("reference") and source.plan.role("reference").pool != actor_pool.name:
        pool = source.plan.pool_of("reference")
        out.cannot(
            "reference.pool",
            f"verl keeps the reference in the actor's workers; the plan gives it pool {pool.name} of "
            f"{pool.num_gpus:,} GPUs",
        )
        source = source.with_plan(**dict(moved(source.plan, "reference", actor_pool)))
    if not critic_apart and source.has("critic") and source.plan.role("critic").pool != actor_pool.name:
        out.cannot("critic.pool", "verl itself keeps the critic in the actor's workers")
        source = source.with_plan(**dict(moved(source.plan, "critic", actor_pool)))
    if source.has("reward") and source.plan.pool_of("reward") != actor_pool and "reward" not in own_pools(source):
        others = [role for role in source.plan.pool_of("reward").roles if role != "reward"]
        if others:
            raise InputError(
                f"verl gives a reward model its pool alone, or shares it with the critic; the plan shares it with "
                f"{', '.join(others)}; pin: {{share: {{forbid: [[reward, {others[0]}]]}}}}"
            )
    return source


def _old_log_probs(source: Source, out: Points) -> Source:
    """Old log-probs from whom the plan's program takes them, unless the job says from whom."""
    plan = source.plan
    if source.asked_old_log_prob is None and (plan.schedule, plan.in_flight_updates) in VERL_BYPASSES:
        built = source.job.implementation.model_copy(update={"old_log_prob": "engine"})
        return source.with_job(implementation=built)
    return by_the_trainer(source, out, SYSTEM, may_bypass=True)


def _own_layout(source: Source, entry: RolePlan, out: Points) -> RolePlan:
    """A role in an engine of verl's, over its whole pool; an engine of the reference only goes forward."""
    entry = scored_as_trained(entry, out)
    stage = "training" if entry.training is not None else "inference"
    layout = entry.training or entry.inference
    assert layout is not None, f"{entry.role} trains or scores"
    pool = source.plan.pool_of(entry.role)
    fit = _for_fsdp if uses_fsdp(source) else _for_megatron
    layout = fit(entry.role, layout, stage == "inference", out)
    if stage == "training" and not uses_fsdp(source):
        note_selective(entry.role, layout, source.facts.roles[entry.role].shape, out)
    layout = whole_pool(entry.role, stage, layout, pool, out, SYSTEM)
    if stage == "inference":
        if "swap" in entry.offload:
            out.cannot(
                "reference.offload", "a reference that swaps with the actor; verl offloads its parameters instead"
            )
        waits = bool(entry.offload) or uses_fsdp(source)
        if waits and not entry.offload:
            out.cannot("reference.offload", "verl's FSDP always keeps a reference's parameters in host memory")
        return entry.model_copy(update={"inference": layout, "offload": ("parameters",) if waits else ()})
    kept = tuple(state for state in ("parameters", "optimizer") if state in entry.offload)
    return scored_as_trained(entry.model_copy(update={"training": layout, "offload": kept}), Points())


def _for_fsdp(role: str, layout: ParallelLayout, forward: bool, out: Points) -> ParallelLayout:
    for name in ("tp", "pp", "ep"):
        if getattr(layout, name) > 1:
            out.cannot(f"{role}.{name}", f"verl's FSDP has no {name}; the plan has {getattr(layout, name)}")
    if layout.zero_stage < 3 and not forward:
        out.cannot(
            f"{role}.training.zero_stage",
            f"FSDP shards parameters too (ZeRO 3); the plan has stage {layout.zero_stage}",
        )
    if layout.recompute == "selective":
        out.cannot(f"{role}.training.recompute", "only whole layers are recomputed")
    recompute = "full" if layout.recompute != "none" else "none"
    update = {
        "tp": 1,
        "pp": 1,
        "ep": 1,
        "vpp": 1,
        "zero_stage": 2 if layout.zero_stage == 2 else 3,
        "recompute": recompute,
    }
    return layout.model_copy(update={**update, "dp": layout.num_gpus // layout.cp})


def _for_megatron(role: str, layout: ParallelLayout, forward: bool, out: Points) -> ParallelLayout:
    if forward:
        return layout.model_copy(update={"zero_stage": 1, "recompute": "none"})
    if layout.zero_stage == 2:
        out.cannot(
            f"{role}.training.zero_stage", "verl's Megatron shards the optimizer (ZeRO 1), not the gradients too"
        )
        layout = layout.model_copy(update={"zero_stage": 1})
    return layout


def _reward(source: Source, entry: RolePlan, tp: int, out: Points) -> RolePlan:
    """An inference engine serves the reward model in verl: replicas of tensor-parallel ranks."""
    pool, layout = source.plan.pool_of("reward"), entry.inference
    assert layout is not None, "the reward model scores"
    degrees = f"t{layout.tp} p{layout.pp} d{layout.dp} {micro_batch_text(layout)}"
    out.cannot(
        "reward.inference",
        f"verl serves the reward model with an inference engine in tp {tp}; the plan scores in {degrees} of a trainer",
    )
    micro = max(1, REWARD_TOKENS // source.facts.workload.padded_length)
    served = ParallelLayout(dp=pool.num_gpus // tp, tp=tp, zero_stage=0, micro_batch=micro)
    return entry.model_copy(update={"inference": served, "offload": ()})


# Long by what verl does not run of a layout: a point for each.
def _generation(source: Source, out: Points) -> Source:
    layout, pool = source.actor.generation, source.plan.generation_pool_of("actor")
    assert layout is not None, "the actor generates"
    tp = layout.tp * layout.pp
    if layout.pp > 1:
        out.cannot(
            "actor.generation.pp",
            f"verl refuses pipeline stages of a rollout engine; {tp} tensor-parallel ranks instead",
        )
    if pool.num_gpus % tp:
        raise InputError(
            f"verl starts replicas on all {pool.num_gpus:,} GPUs of a pool, which replicas of {tp} do not fill; pin "
            "actor.generation.tp to a divisor"
        )
    if layout.num_gpus != pool.num_gpus:
        used = f"verl starts replicas on all {pool.num_gpus:,} GPUs, the plan on {layout.num_gpus:,}"
        out.cannot("actor.generation.dp", used)
    if layout.ep not in (1, tp):
        out.cannot("actor.generation.ep", f"verl spreads experts over all {tp} ranks of a replica, not {layout.ep}")
    if layout.attention_dp > 1:
        out.cannot(
            "actor.generation.attention_dp", f"no key for attention as {layout.attention_dp} copies in a replica"
        )
    note_own_weights(source, out, SYSTEM)
    kept = GenerationLayout(
        dp=pool.num_gpus // tp,
        tp=tp,
        ep=tp if layout.ep > 1 else 1,
        max_num_seqs=layout.max_num_seqs,
        kv_cache_bytes=layout.kv_cache_bytes,
    )
    return source.with_entry("actor", generation=kept)
