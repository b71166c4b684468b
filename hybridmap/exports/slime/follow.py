"""The plan that slime runs when it is told one: Megatron actors, a reference that swaps with them, SGLang engines."""

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
from hybridmap.exports.imported import newest
from hybridmap.exports.nemo_rl.follow import for_megatron
from hybridmap.exports.one_policy import num_engines, on_the_actors_gpus, one_epoch, reference_in, rewarded_elsewhere
from hybridmap.exports.weights import note_own_weights, with_cache_of_its_share
from profiles.errors import InputError
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from hybridmap.exports.export import Point, Source
    from simulator.plan.plan import GenerationLayout

SYSTEM = "slime"
RUNS = tuple(name for name, algorithm in ALGORITHMS.items() if "slime" in algorithm.estimators)
"""Algorithms that are exported to it."""


FORMATS = Formats(
    served=("fp8_block",),
    drafters=("own layers",),
    adapters=False,
    source="slime/utils/arguments.py, slime/backends/megatron_utils/arguments.py:151",
)
"""Engines in FP8 are given a checkpoint in it (scripts/run-qwen3-30B-A3B.sh:32); Megatron-Core is told bf16."""


def require_runs(algorithm: str) -> None:
    """Refuse an algorithm that slime does not run, or that is not exported to it."""
    if algorithm not in RUNS:
        raise InputError(f"slime runs {', '.join(RUNS)} here, not {algorithm}; export to verl or openrlhf")


def followed(source: Source) -> tuple[Source, tuple[Point, ...]]:
    """The plan that slime runs, for the job that it then runs, and what was changed.

    Raises ``InputError`` for an algorithm with a critic, and where nothing near the plan fits.
    """
    require_runs(source.facts.algorithm)
    out = Points()
    source = _work(source, out)
    source = by_the_trainer(source, out, SYSTEM, may_bypass=True)
    source = _policy(_batches(source, out), out)
    source = _scheduled(_generation(source, out), out)
    source = with_cache_of_its_share(with_fitting_cache(source, out), static=True)
    require_it_fits(source, SYSTEM)
    return source, tuple(out.found)


def _work(source: Source, out: Points) -> Source:
    source = in_formats_of(source, out, SYSTEM, FORMATS)
    source = _engines(source, out)
    source = rewarded_elsewhere(source, out, "is a server of its own; give --rm-url by hand")
    if ALGORITHMS[source.facts.algorithm].drops_equal_groups:
        out.cannot("algorithm", "dynamic sampling is left off; --dynamic-sampling-filter-path turns it on")
    return one_epoch(source, out, SYSTEM)


def _engines(source: Source, out: Points) -> Source:
    """Megatron-Core trains and SGLang generates, whatever the job has."""
    for kind, family in (("training", "megatron-core"), ("generation", "sglang")):
        asked = str(getattr(source.job.engines, kind))
        if not asked.startswith(f"{family}@"):
            out.cannot(f"engines.{kind}", f"slime has {family} there, the job {asked}")
            there: dict[str, object] = {kind: newest(kind, family)}
            if kind == "generation":  # how another engine is started says nothing of it
                there["generation_settings"] = {}
            source = source.with_job(engines=source.job.engines.model_copy(update=there))
    return source


def _batches(source: Source, out: Points) -> Source:
    return in_one_unit(source, out, SYSTEM) if keeps_samples(source) else all_in_tokens(source)


def _policy(source: Source, out: Points) -> Source:
    """Actor and reference in one layout; sharing GPUs with engines, the trainer's states wait in host memory."""
    source = on_the_actors_gpus(source, out, "actor")
    entry = scored_as_trained(source.actor, out)
    layout = entry.training
    assert layout is not None, "the actor is trained"
    layout = for_megatron(source, layout, out, vpp=True).model_copy(update={"zero_stage": 1})
    layout = whole_pool("actor", "training", layout, source.plan.pool_of("actor"), out, SYSTEM)
    layout = even_micro_batch("actor", "training", layout, source.facts.workload.minibatch_samples, out, SYSTEM)
    apart = source.actor.separate_generation
    offload = () if apart else ("parameters", "optimizer")
    score = [e.inference for e in source.plan.roles if e.inference is not None]
    scoring = layout.model_copy(update={"micro_batch": smallest([*score, layout]), "recompute": "none"})
    scoring = even_micro_batch("actor", "inference", scoring, source.facts.workload.num_samples, out, SYSTEM)
    if scoring.token_budget is None:
        scoring = scoring.model_copy(update={"micro_batch": layout.micro_batch})
    own = entry.inference is not None
    source = source.with_entry("actor", training=layout, inference=scoring if own else None, offload=offload)
    return reference_in(scoring, source, out, "actor")


def _generation(source: Source, out: Points) -> Source:
    layout, pool = source.actor.generation, source.plan.generation_pool_of("actor")
    assert layout is not None, "the actor generates"
    _note_engine(layout, out)
    num = num_engines(layout, pool, SYSTEM)
    note_own_weights(source, out, SYSTEM)
    return source.with_entry("actor", generation=layout.model_copy(update={"dp": num}))


def _note_engine(layout: GenerationLayout, out: Points) -> None:
    if layout.pp > 1:
        out.cannot(
            "actor.generation.pp", "pipeline stages of an engine are given as they are; slime's recipes have none"
        )


def _scheduled(source: Source, out: Points) -> Source:
    """Its loop waits for the engines, or runs one batch ahead of them (``train_async.py``)."""
    plan = source.plan
    if plan.schedule != "async":
        return source
    out.cannot("schedule", f"slime generates one batch ahead, not {plan.steps_in_flight} without a stop")
    return source.with_plan(schedule="one-step-off", steps_in_flight=1, in_flight_updates=False)
