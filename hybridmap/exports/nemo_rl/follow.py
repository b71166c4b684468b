"""The plan that NeMo-RL runs when it is told one: a policy and its reference in one layout, and engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.exports.export import Points
from hybridmap.exports.follow import (
    all_in_tokens,
    by_the_trainer,
    even_micro_batch,
    in_one_unit,
    keeps_samples,
    require_it_fits,
    scored_as_trained,
    smallest,
    whole_pool,
    with_fitting_cache,
)
from hybridmap.exports.formats import Formats, in_formats_of
from hybridmap.exports.one_policy import num_engines, on_the_actors_gpus, one_epoch, reference_in, rewarded_elsewhere
from hybridmap.exports.recompute import note_selective
from hybridmap.exports.verl.places import uses_fsdp
from hybridmap.exports.weights import note_own_weights, with_cache_of_its_share
from profiles.errors import InputError
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from hybridmap.exports.export import Point, Source
    from simulator.plan.plan import ParallelLayout

SYSTEM = "NeMo-RL"
RUNS = tuple(name for name, algorithm in ALGORITHMS.items() if "nemo-rl" in algorithm.estimators)
"""Algorithms that its GRPO loop runs."""


def require_runs(algorithm: str) -> None:
    """Refuse an algorithm that NeMo-RL's GRPO loop does not run."""
    if algorithm not in RUNS:
        raise InputError(
            f"this exports NeMo-RL's GRPO loop, which runs {', '.join(RUNS)}, not {algorithm}; "
            "export to verl or openrlhf"
        )


def followed(source: Source) -> tuple[Source, tuple[Point, ...]]:
    """The plan that NeMo-RL's GRPO runs, for the job that it then runs, and what was changed.

    Raises ``InputError`` for an algorithm with a critic, and where nothing near the plan fits.
    """
    require_runs(source.facts.algorithm)
    out = Points()
    source = _work(source, out)
    source = by_the_trainer(source, out, SYSTEM, may_bypass=False)
    source = in_one_unit(source, out, SYSTEM) if keeps_samples(source) else all_in_tokens(source)
    source = _policy(source, out)
    source = _generation(source, out)
    source = with_cache_of_its_share(with_fitting_cache(source, out))
    require_it_fits(source, SYSTEM)
    return source, tuple(out.found)


def _work(source: Source, out: Points) -> Source:
    trained = () if uses_fsdp(source) else ("fp8_block",)
    source = in_formats_of(source, out, SYSTEM, Formats(("fp8_block",), trained, ("own layers", "draft model")))
    source = rewarded_elsewhere(source, out, "becomes an environment; write env.* by hand")
    if ALGORITHMS[source.facts.algorithm].drops_equal_groups:
        out.cannot("algorithm", "dynamic sampling is left off; grpo.use_dynamic_sampling=true turns it on")
    return one_epoch(source, out, SYSTEM)


def _policy(source: Source, out: Points) -> Source:
    source = on_the_actors_gpus(source, out, "policy")
    entry = scored_as_trained(source.actor, out)
    layout = entry.training
    assert layout is not None, "the actor is trained"
    layout = (_for_dtensor if uses_fsdp(source) else for_megatron)(source, layout, out)
    layout = whole_pool("actor", "training", layout, source.plan.pool_of("actor"), out, SYSTEM)
    layout = even_micro_batch("actor", "training", layout, source.facts.workload.minibatch_samples, out, SYSTEM)
    # Sharing GPUs with engines it moves its states to host memory around generation (nemo_rl/algorithms/grpo.py:1876),
    # and the reference's weights wait there to swap with the policy's.
    offload = () if source.actor.separate_generation else ("parameters", "optimizer")
    score = [e.inference for e in source.plan.roles if e.inference is not None]
    scoring = layout.model_copy(update={"micro_batch": smallest(score), "recompute": "none"})
    scoring = even_micro_batch("actor", "inference", scoring, source.facts.workload.num_samples, out, SYSTEM)
    source = source.with_entry("actor", training=layout, inference=scoring, offload=offload)
    return reference_in(scoring, source, out, "policy")


def _for_dtensor(source: Source, layout: ParallelLayout, out: Points) -> ParallelLayout:
    for name in ("pp", "ep"):
        if getattr(layout, name) > 1:
            out.cannot(f"actor.{name}", f"its DTensor policy has no {name} here; the plan has {getattr(layout, name)}")
    if layout.recompute == "selective":
        out.cannot("actor.training.recompute", "activation checkpointing is of whole layers")
    if layout.zero_stage != 3:
        out.cannot("actor.training.zero_stage", f"FSDP2 shards parameters too (ZeRO 3), not stage {layout.zero_stage}")
    recompute = "none" if layout.recompute == "none" else "full"
    rest = {"dp": layout.num_gpus // (layout.tp * layout.cp)}
    return layout.model_copy(update={"pp": 1, "ep": 1, "vpp": 1, "zero_stage": 3, "recompute": recompute, **rest})


def for_megatron(source: Source, layout: ParallelLayout, out: Points, vpp: bool = False) -> ParallelLayout:
    """A layout as its Megatron-Core trainer has it; ``vpp``: whether stages may be cut into chunks."""
    note_selective("actor", layout, source.facts.roles["actor"].shape, out)
    if layout.zero_stage > 1:
        out.cannot("actor.training.zero_stage", f"Megatron's distributed optimizer is ZeRO 1, not {layout.zero_stage}")
    if layout.vpp > 1 and not vpp:
        out.cannot("actor.training.vpp", f"no key for {layout.vpp} chunks of a pipeline stage")
    return layout.model_copy(update={"vpp": layout.vpp if vpp else 1, "zero_stage": min(layout.zero_stage, 1)})


def _generation(source: Source, out: Points) -> Source:
    layout, pool = source.actor.generation, source.plan.generation_pool_of("actor")
    assert layout is not None, "the actor generates"
    num = num_engines(layout, pool, SYSTEM)
    if layout.num_gpus != pool.num_gpus:
        out.cannot(
            "actor.generation.dp", f"it starts engines on all {pool.num_gpus:,} GPUs, the plan on {layout.num_gpus:,}"
        )
    if layout.ep not in (1, layout.tp):
        out.cannot("actor.generation.ep", f"vLLM spreads experts over all {layout.tp} ranks, not {layout.ep}")
    if layout.attention_dp > 1:
        out.cannot("actor.generation.attention_dp", f"no key for attention as {layout.attention_dp} copies")
    if source.plan.schedule == "one-step-off":
        out.cannot("schedule", "one step off becomes async GRPO with trajectories of at most one step of age")
        source = source.with_plan(schedule="async", steps_in_flight=1)
    note_own_weights(source, out, SYSTEM)
    update = {"dp": num, "ep": layout.tp if layout.ep > 1 else 1, "attention_dp": 1}
    return source.with_entry("actor", generation=layout.model_copy(update=update))
