"""Weights of a role beside its engines: what a pair costs, and which engines are worth pairing with which weights.

Transition and memory of a pair depend on the weights' degrees alone, not on micro-batches. So pairs are priced once for
each of the degrees, and an engine that another beats there, in the seconds from the transition to the last token and in
memory, is worth no row of these degrees.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates.pareto import non_dominated_by_group
from mapper.candidates.plain import plain_engine, plain_rows
from mapper.candidates.weights import pairs, smallest_pool
from mapper.search_options import OFFLOADS
from simulator.cost import handover, memory, pricing, reshard
from simulator.cost.role_layouts import head_of

if TYPE_CHECKING:
    from mapper.candidates.engine import EngineCandidates, EnginePrices
    from mapper.candidates.plain import Mask
    from mapper.candidates.table import RoleTable
    from mapper.problem import Problem
    from profiles.records import Floats, Ints
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts, Layouts

AWAY = np.asarray(["parameters" in option for option in OFFLOADS])
"""Whether the parameters of a trained role wait in host memory, by option."""


@dataclass(frozen=True, eq=False)
class Shards:
    """Rows of a table by all that a pair with an engine depends on.

    Parameters
    ----------
    of
        The shards of each row, ``[C]``.
    first
        The first row of each, ``[G]``.
    asked
        The engines that were asked for each, ``[G]``.
    most_s
        Seconds that transition and generation may take at most with one of its rows, ``[G]``.
    plain
        Whether one of its rows may be in a plain plan, ``[G]``.
    """

    of: Ints
    first: Ints
    asked: Ints
    most_s: Floats
    plain: Mask

    @staticmethod
    def of_rows(table: RoleTable, asked: Ints, most_s: Floats, plain: Mask) -> Shards:
        """Those of all rows; the rest is that of each row, ``[C]``."""
        columns = np.concatenate([_degrees(table.layouts.weights), table.offload[None]])
        _, first, of = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        of = of.reshape(-1)
        longest, some = np.full(len(first), -np.inf), np.zeros(len(first), dtype=np.bool_)
        np.maximum.at(longest, of, most_s)
        np.logical_or.at(some, of, plain)
        return Shards(of, first, asked[first], longest, some)


@dataclass(frozen=True, eq=False)
class Beside:
    """Engines beside shards, ``[P]``: positions of both, seconds of the transition, and bytes that the pair adds."""

    shards: Ints
    engine: Ints
    transition_s: Floats
    added_bytes: Floats

    def take(self, index: Ints | Mask) -> Beside:
        """The pairs at ``index``."""
        return Beside(self.shards[index], self.engine[index], self.transition_s[index], self.added_bytes[index])


def may_be_plain(facts: Facts, problem: Problem, table: RoleTable) -> Mask:
    """Rows, without engine, that a plain plan may have; none where no plain one is looked for."""
    if problem.options.prefer_plain is None:
        return np.zeros(len(table), dtype=np.bool_)
    return plain_rows(facts, table)


def engines_beside(
    engines: EnginePrices,
    table: RoleTable,
    shards: Shards,
    rows: EngineCandidates,
    few: Ints,
    best: bool,
) -> Beside:
    """The engines beside the shards ``few`` that are short enough or may be plain; with ``best`` the unbeaten ones."""
    first = shards.first[few]
    left, right = pairs(shards.asked[few], rows.asked)
    worth = rows.seconds[right] <= shards.most_s[few][left]
    worth |= shards.plain[few][left] & plain_engine(engines.facts, rows.engine)[right]
    left, right = left[worth], right[worth]
    alone = table.take(first)
    transition_s = _transition_s(engines.facts, engines.role, alone.layouts.weights, rows.engine, left, right)
    added = _engine_bytes(engines.facts, engines.role, alone.take(left), rows.take(right))
    beside = Beside(few[left], right, transition_s, added)
    return beside.take(_unbeaten(engines, shards, rows, beside)) if best else beside


def _unbeaten(engines: EnginePrices, shards: Shards, rows: EngineCandidates, beside: Beside) -> Ints:
    """Pairs that no other of the same shards on as many GPUs beats; of those that may be plain, on as many stages.

    A second generation of an iteration (ReMax's greedy one) needs no transition, so its seconds count by themselves.
    """
    engine, facts = rows.engine.take(beside.engine), engines.facts
    seconds = rows.seconds[beside.engine]
    again = sum(call.kind == "generate" for call in facts.dataflow.calls_of(engines.role)) > 1
    columns = [beside.transition_s + seconds, beside.added_bytes, *([seconds] if again else [])]
    values = np.stack(columns, axis=1)
    of_shards = beside.shards * 2**40
    best = non_dominated_by_group(of_shards + engine.num_gpus, values)
    plain = np.flatnonzero(shards.plain[beside.shards] & plain_engine(facts, engine))
    key = of_shards + engine.num_gpus * 2**12 + engine.pp
    return np.union1d(best, plain[non_dominated_by_group(key[plain], values[plain])])


def joined_with_engines(
    engines: EnginePrices,
    table: RoleTable,
    rows: EngineCandidates,
    left: Ints,
    beside: Beside,
    sizes: tuple[int, ...],
) -> RoleTable:
    """Weights configurations, the rows ``left`` of ``table``, each with one engine of ``beside``, ``[P]``."""
    facts, role = engines.facts, engines.role
    paired, rows = table.take(left), rows.take(beside.engine)
    training, calls = paired.layouts.weights, facts.dataflow.calls_of(role)
    transition = beside.transition_s + paired.durations_s.get("transition", 0.0)
    engine_s = {"transition": transition, "generate": rows.seconds}
    durations = paired.durations_s | {call.key: engine_s[call.kind] for call in calls if call.kind in engine_s}
    unlisted = paired.credit.unlisted | (rows.engine.num_gpus != training.num_gpus)
    return replace(
        paired,
        num_gpus=np.maximum(paired.num_gpus, smallest_pool(rows.engine.num_gpus, sizes)),
        credit=replace(paired.credit, unlisted=unlisted),
        durations_s=durations,
        resident_bytes=paired.resident_bytes + facts.generation.memory_reserve_bytes,
        transient_bytes=np.maximum(paired.transient_bytes, beside.added_bytes),
        layouts=replace(paired.layouts, generation=rows.engine),
        num_priced=len(left),
    )


def _degrees(weights: Layouts) -> Ints:
    """All that a transition asks of the weights, by column."""
    x = weights
    return np.stack([x.dp, x.tp, x.pp, x.cp, x.ep, x.zero_stage, x.vpp])


def _transition_s(
    facts: Facts, role: str, weights: Layouts, engine: GenerationLayouts, left: Ints, right: Ints
) -> Floats:
    """Seconds of the transition of the pairs ``(left, right)``; those of the same ranks are priced once."""
    spec = facts.roles[role]
    runs = np.stack([engine.dp, engine.tp, engine.pp, engine.ep, engine.attention_dp])
    (first_left, of_left), (first_right, of_right) = (
        np.unique(columns, axis=1, return_index=True, return_inverse=True)[1:] for columns in (_degrees(weights), runs)
    )
    distinct, of_pair = np.unique(
        of_left.ravel()[left] * len(first_right) + of_right.ravel()[right], return_inverse=True
    )
    i, j = np.divmod(distinct, max(len(first_right), 1))
    training, generation = weights.take(first_left[i]), engine.take(first_right[j])
    cost = reshard.transition_cost(facts, spec.shape, training, generation, spec.precision)
    called = pricing.as_called(facts, pricing.call_of_kind(facts, "transition"), cost, training.num_gpus)
    return np.asarray(called.time.s[of_pair.ravel()], dtype=np.float64)


def _engine_bytes(facts: Facts, role: str, paired: RoleTable, rows: EngineCandidates) -> Floats:
    """Most bytes per GPU that the transition or the generation of each pair adds, as ``pricing.role_memory`` counts."""
    spec, training = facts.roles[role], paired.layouts.weights
    alike, away = handover.shares_weights(facts, training, rows.engine), AWAY[paired.offload]
    bucket = handover.conversion_bucket_bytes(facts, spec.shape, training, rows.engine, spec.precision)
    converting = np.where(alike, 0.0, rows.weight_bytes) + bucket
    if np.any(away):  # what was away comes back to be converted
        states = memory.resident_bytes(facts, spec.shape, head_of(role), training, trained=True)
        converting = converting + np.where(away, states["parameters"], 0.0)
    running = np.where(alike & ~away, 0.0, rows.weight_bytes) + rows.running_bytes
    return np.asarray(np.maximum(converting, running))
