"""Engine configurations of the actor: priced, with what they need in memory, the dominated ones left out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates import layouts
from mapper.candidates.pareto import non_dominated_by_group
from mapper.pins import matching
from profiles.units import DTYPE_BYTES
from simulator.cost import generate, memory, pricing, reshard
from simulator.cost.kv_budget import with_kv_budget
from simulator.plan.layouts import GenerationLayouts

if TYPE_CHECKING:
    from mapper.pins import Pin
    from mapper.search_options import SearchOptions
    from profiles.records import Floats, Ints
    from simulator.facts import Facts


@dataclass(frozen=True, eq=False)
class EngineCandidates:
    """Engine layouts with their KV budgets, seconds of one generation, and bytes per GPU of weights and working memory.

    All ``[C]``. ``asked``: the position, in what was asked for, of the GPUs that a row is for.
    """

    engine: GenerationLayouts
    seconds: Floats
    weight_bytes: Floats
    working_bytes: Floats
    num_priced: int
    asked: Ints

    @property
    def running_bytes(self) -> Floats:
        """Bytes per GPU that a running engine needs beside its weights: KV cache and working memory, ``[C]``."""
        return self.engine.kv_cache_bytes + self.working_bytes

    def take(self, index: Ints) -> EngineCandidates:
        """The rows at ``index``."""
        return replace(
            self,
            engine=self.engine.take(index),
            seconds=self.seconds[index],
            weight_bytes=self.weight_bytes[index],
            working_bytes=self.working_bytes[index],
            asked=self.asked[index],
        )


def engine_rows(
    facts: Facts,
    role: str,
    used: Ints,
    last: Ints,
    pin: Pin,
    options: SearchOptions,
    steady_steps: int | None,
    prune: bool,
) -> EngineCandidates:
    """Every engine configuration on each of the numbers of GPUs ``used`` that fits beside nothing.

    Where one stands for all numbers up to the one in ``last`` too, also those on GPUs between (``generation_layouts``).
    ``steady_steps``: iterations of samples that are in the engines at any time, ``None`` where they drain. With
    ``prune``, of the rows with the same GPUs, tensor and pipeline degrees those that no other beats in time and memory.
    """
    spec = facts.roles[role]
    ends = zip(used.tolist(), last.tolist(), strict=True)
    parts = [layouts.generation_layouts(facts, spec.shape, n, options, most) for n, most in ends]
    columns = ("dp", "tp", "pp", "max_num_seqs")
    none = np.zeros(0, dtype=np.int64)
    engine = GenerationLayouts(*(np.concatenate([none, *(getattr(x, f) for x in parts)]) for f in columns))
    asked = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    allowed = matching(pin, "generation", engine)
    rows = replace(priced_engine(facts, role, engine.take(allowed), steady_steps), asked=asked[allowed])
    room = facts.memory_capacity_bytes - facts.generation.memory_reserve_bytes
    rows = rows.take(np.flatnonzero(rows.running_bytes <= room))
    if not prune:
        return rows
    alike = rows.asked * 2**48 + same_shards(rows.engine)
    return rows.take(non_dominated_by_group(alike, np.stack([rows.seconds, rows.running_bytes], axis=1)))


def bytes_apart(facts: Facts, role: str, rows: EngineCandidates) -> Floats:
    """Most bytes per GPU of engines on a pool of their own: they run, or receive new weights."""
    spec = facts.roles[role]
    bucket = reshard.receiving_bucket_bytes(spec.shape, rows.engine, spec.precision)
    return np.asarray(rows.weight_bytes + np.maximum(rows.running_bytes, bucket))


def same_shards(engine: GenerationLayouts) -> Ints:
    """A number for each row that is equal where GPUs, tensor and pipeline degrees are: what a transition depends on."""
    return (engine.num_gpus * 1024 + engine.tp) * 1024 + engine.pp


def priced_engine(facts: Facts, role: str, engine: GenerationLayouts, steady_steps: int | None) -> EngineCandidates:
    """Seconds and memory of given engine layouts, each with the KV budget that it is given under ``facts``."""
    spec = facts.roles[role]
    engine = with_kv_budget(facts, spec.shape, engine, steady_steps)
    if steady_steps is None:
        cost = generate.generation_cost(facts, spec.shape, engine, spec.precision)
    else:
        cost = generate.steady_generation_cost(facts, spec.shape, engine, spec.precision, steady_steps)
    called = pricing.as_called(facts, pricing.call_of_kind(facts, "generate"), cost, engine.num_gpus)
    return EngineCandidates(
        engine=engine,
        seconds=called.time.s,
        weight_bytes=memory.generation_weight_bytes(spec.shape, engine, DTYPE_BYTES[spec.precision]),
        working_bytes=memory.generation_working_bytes(facts, spec.shape, engine),
        num_priced=len(engine),
        asked=np.zeros(len(engine), dtype=np.int64),
    )
