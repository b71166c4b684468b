"""Engine configurations of the actor: priced, with what they need in memory, the dominated ones left out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates import layouts
from mapper.candidates.pareto import non_dominated_by_group
from mapper.candidates.plain import plain_engine
from mapper.pins import matching
from profiles.units import DTYPE_BYTES
from simulator.cost import engine_memory, generate, handover, pricing
from simulator.cost.kv_budget import longest_bytes, with_kv_budget
from simulator.cost.speculation import draft_weight_bytes
from simulator.plan.layouts import GenerationLayouts
from simulator.rollout.drain import most_segments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mapper.candidates.plain import Mask
    from mapper.pins import Pin
    from mapper.search_options import SearchOptions
    from profiles.records import Floats, Ints
    from simulator.facts import Facts


AT_ONCE = 1024
"""Layouts that are priced together: what they need of the tables then lies in the processor's cache."""


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

    @staticmethod
    def joined(parts: Sequence[EngineCandidates]) -> EngineCandidates:
        """Several lists after each other."""
        return EngineCandidates(
            engine=GenerationLayouts.joined([x.engine for x in parts]),
            seconds=np.concatenate([x.seconds for x in parts]),
            weight_bytes=np.concatenate([x.weight_bytes for x in parts]),
            working_bytes=np.concatenate([x.working_bytes for x in parts]),
            num_priced=sum(x.num_priced for x in parts),
            asked=np.concatenate([x.asked for x in parts]),
        )

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


KeptPrices = dict[tuple[str, str, int | None], "tuple[Ints, EngineCandidates]"]
"""Engine layouts that were priced, by device, role and steady steps: their numbers (``_packed``) in order, and rows.

For searches that differ in the number of nodes alone: an engine's price depends on its own GPUs.
"""


class EnginePrices:
    """Prices of a role's engine layouts; those in ``kept`` are not asked for again, and others are added to it."""

    def __init__(self, facts: Facts, role: str, steady_steps: int | None, kept: KeptPrices | None = None) -> None:
        self.facts, self.role, self._steady_steps = facts, role, steady_steps
        self._kept: KeptPrices = {} if kept is None else kept
        self._keeps = kept is not None

    def rows(self, engine: GenerationLayouts) -> EngineCandidates:
        """The rows of ``engine``, in order, each layout priced once; ``num_priced`` counts all of them."""
        numbers, first, of_all = np.unique(_packed(engine), return_index=True, return_inverse=True)
        priced = self._priced(numbers, engine.take(first))
        return replace(priced.take(of_all.reshape(-1)), num_priced=len(engine))

    def _priced(self, numbers: Ints, engine: GenerationLayouts) -> EngineCandidates:
        """Layouts by their ``numbers``, each once, in order."""
        if not self._keeps:
            return priced_engine(self.facts, self.role, engine, self._steady_steps)
        key = (self.facts.group.device, self.role, self._steady_steps)
        known, rows = self._kept.get(key, (numbers[:0], None))
        is_new = ~np.isin(numbers, known)
        fresh = priced_engine(self.facts, self.role, engine.take(np.flatnonzero(is_new)), self._steady_steps)
        joined = fresh if rows is None else EngineCandidates.joined([rows, fresh])
        all_numbers = np.concatenate([known, numbers[is_new]])
        order = np.argsort(all_numbers)
        self._kept[key] = known, rows = all_numbers[order], joined.take(order)
        return rows.take(np.searchsorted(known, numbers))


def _packed(engine: GenerationLayouts) -> Ints:
    """A number that tells listed layouts apart: they state no budget, and spreads are powers of two."""
    layout = ((engine.dp * 2**4 + _exponent(engine.tp)) * 2**5 + engine.pp) * 2**8 + spread_of(engine)
    return np.asarray(layout * 2**21 + engine.max_num_seqs, dtype=np.int64)


def spread_of(engine: GenerationLayouts) -> Ints:
    """A number below 2**8 for each row that is equal where experts and attention are spread alike."""
    return np.asarray(_exponent(engine.ep) * 2**4 + _exponent(engine.attention_dp), dtype=np.int64)


def _exponent(power_of_two: Ints) -> Ints:
    return np.asarray(np.rint(np.log2(power_of_two)), dtype=np.int64)


def engine_rows(
    prices: EnginePrices,
    used: Ints,
    last: Ints,
    pin: Pin,
    options: SearchOptions,
    prune: bool,
    worth: Mask | None = None,
    plain: Mask | None = None,
) -> EngineCandidates:
    """Every engine configuration on each of the numbers of GPUs ``used`` that fits beside nothing.

    Of those that are not ``worth`` it, only what a plain plan may have, and that where it may be ``plain``.

    Where one stands for all numbers up to the one in ``last`` too, also those on GPUs between (``generation_layouts``).
    With ``prune``, of the rows with the same GPUs, tensor and pipeline degrees those that no other beats in time and
    memory.
    """
    facts, shape = prices.facts, prices.facts.roles[prices.role].shape
    some = np.ones(len(used), dtype=np.bool_)
    if worth is not None and plain is not None:
        some, last = worth | plain, np.where(worth, last, used)
    ends = zip(used.tolist(), last.tolist(), strict=True)
    parts = [
        layouts.generation_layouts(facts, shape, n, options, most) if asked else _listed([])
        for (n, most), asked in zip(ends, some.tolist(), strict=True)
    ]
    engine = _listed(parts)
    asked = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    allowed = matching(pin, "generation", engine)
    if worth is not None:
        allowed = allowed[worth[asked[allowed]] | plain_engine(facts, engine.take(allowed))]
    room = facts.memory_room_bytes - facts.generation.memory_reserve_bytes
    allowed = allowed[_least_bytes(facts, prices.role, engine.take(allowed)) <= room]
    rows = replace(prices.rows(engine.take(allowed)), asked=asked[allowed])
    rows = rows.take(np.flatnonzero(rows.running_bytes <= room))
    if not prune:
        return rows
    alike = rows.asked * 2**48 + same_shards(rows.engine)
    # Of spread experts and attention copies a GPU holds more or less, which the transition and the pool's room go by.
    spread = facts.generation.mixture_parallel and np.any((rows.engine.ep > 1) | (rows.engine.attention_dp > 1))
    columns = [rows.seconds, rows.running_bytes, *([rows.weight_bytes] if spread else [])]
    values = np.stack(columns, axis=1)
    best = non_dominated_by_group(alike, values)
    if options.prefer_plain is None:
        return rows.take(best)
    simple = np.flatnonzero(plain_engine(facts, rows.engine))
    return rows.take(np.union1d(best, simple[non_dominated_by_group(alike[simple], values[simple])]))


def _least_bytes(facts: Facts, role: str, engine: GenerationLayouts) -> Floats:
    """Bytes per GPU that an engine needs whatever it runs.

    Working memory, the cache of the longest sequence, and its weights unless they may be the trainer's.
    """
    shape, precision = facts.roles[role].shape, facts.roles[role].precision
    own = 0.0 if facts.generation.shares_weights else 1.0
    weights = own * engine_memory.generation_weight_bytes(shape, engine, DTYPE_BYTES[precision])
    cache = longest_bytes(facts, shape, engine)
    return np.asarray(weights + cache + _working_bytes(facts, role, engine), dtype=np.float64)


def _working_bytes(facts: Facts, role: str, engine: GenerationLayouts) -> Floats:
    """Bytes per GPU of a running engine beside the model's weights and the cache: its workspace, and what drafts."""
    shape, precision = facts.roles[role].shape, facts.roles[role].precision
    drafts = draft_weight_bytes(facts, shape, engine, DTYPE_BYTES[precision])
    return np.asarray(engine_memory.generation_working_bytes(facts, shape, engine) + drafts, dtype=np.float64)


def _listed(parts: Sequence[GenerationLayouts]) -> GenerationLayouts:
    """The layouts of several listings after each other."""
    none = np.zeros(0, dtype=np.int64)
    columns = ("dp", "tp", "pp", "max_num_seqs", "ep", "attention_dp")
    return GenerationLayouts(*(np.concatenate([none, *(getattr(x, f) for x in parts)]) for f in columns))


def bytes_apart(facts: Facts, role: str, rows: EngineCandidates) -> Floats:
    """Most bytes per GPU of engines on a pool of their own: they run, or receive new weights."""
    spec = facts.roles[role]
    bucket = handover.receiving_bucket_bytes(spec.shape, rows.engine, spec.precision)
    return np.asarray(rows.weight_bytes + np.maximum(rows.running_bytes, bucket))


def same_shards(engine: GenerationLayouts) -> Ints:
    """A number for each row that is equal where GPUs, tensor and pipeline degrees are: what a transition depends on."""
    return (engine.num_gpus * 1024 + engine.tp) * 1024 + engine.pp


def priced_engine(facts: Facts, role: str, engine: GenerationLayouts, steady_steps: int | None) -> EngineCandidates:
    """Seconds and memory of given engine layouts, each with the KV budget that it is given under ``facts``."""
    parts = [engine.take(np.arange(i, min(i + AT_ONCE, len(engine)))) for i in range(0, max(len(engine), 1), AT_ONCE)]
    return EngineCandidates.joined([_priced_engine(facts, role, part, steady_steps) for part in parts])


def _priced_engine(facts: Facts, role: str, engine: GenerationLayouts, steady_steps: int | None) -> EngineCandidates:
    spec = facts.roles[role]
    engine = with_kv_budget(facts, spec.shape, engine, steady_steps)
    if steady_steps is None:
        width = most_segments(facts.workload.response)
        cost = generate.generation_cost(facts, spec.shape, engine, spec.precision, width)
    else:
        cost = generate.steady_generation_cost(facts, spec.shape, engine, spec.precision, steady_steps)
    called = pricing.as_called(facts, pricing.call_of_kind(facts, "generate"), cost, engine.num_gpus)
    return EngineCandidates(
        engine=engine,
        seconds=called.time.s,
        weight_bytes=engine_memory.generation_weight_bytes(spec.shape, engine, DTYPE_BYTES[spec.precision]),
        working_bytes=_working_bytes(facts, role, engine),
        num_priced=len(engine),
        asked=np.zeros(len(engine), dtype=np.int64),
    )
