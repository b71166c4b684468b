"""Candidate tables: for each role, every configuration on every kind and pool size, priced, filtered and pruned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates import layouts
from mapper.candidates.engine import EngineCandidates, bytes_apart, engine_rows, same_shards
from mapper.candidates.pareto import non_dominated, non_dominated_by_group
from mapper.candidates.relaxation import Credit, last_degrees, weights_slack
from mapper.candidates.scoring import NUM_ZERO_STAGES, PricedCandidates, Spreads, priced, with_copies
from mapper.candidates.table import RoleTable, joined, to_mib
from mapper.execution_mode import ROLLOUT
from mapper.pins import Pin, Stage, matching, pin_of
from mapper.search_options import FROZEN_OFFLOADS, OFFLOADS
from simulator.cost import memory, pricing, reshard
from simulator.cost.role_layouts import RoleLayouts, head_of
from simulator.cost.role_memory import role_memory
from simulator.plan.plan import RECOMPUTE_LEVELS

if TYPE_CHECKING:
    from mapper.execution_mode import ExecutionMode
    from mapper.problem import Problem
    from mapper.search_options import SearchOptions
    from profiles.records import Floats, Ints
    from simulator.facts import Facts
    from simulator.plan.dataflow import Dataflow
    from simulator.plan.layouts import GenerationLayouts, Layouts

RECOMPUTE_INDICES = tuple(range(len(RECOMPUTE_LEVELS)))
AWAY = np.asarray(["parameters" in option for option in OFFLOADS])
"""Whether the parameters of a trained role wait in host memory, by option."""


def role_table(problem: Problem, role: str, prune: bool = True) -> RoleTable:
    """Price every configuration of ``role`` on every kind and pool size.

    What cannot fit alone is dropped, and unless ``prune`` is off what another row of its kind dominates.
    """
    return bounding_table(problem, role, prune).listed()


def bounding_table(problem: Problem, role: str, prune: bool = True) -> RoleTable:
    """The rows of ``role_table`` and behind them those that are in no plan but in the bound of ``coarse``."""
    kinds = enumerate(problem.facts.device_types)
    table = joined([_on_kind(problem, role, i, kind, prune) for i, kind in kinds if problem.sizes[kind]])
    return table.take(np.argsort(table.credit.unlisted, kind="stable")) if np.any(table.credit.unlisted) else table


def _on_kind(problem: Problem, role: str, position: int, kind: str, prune: bool) -> RoleTable:
    facts, pin, sizes = problem.facts.on(kind), pin_of(problem.pins, role), problem.sizes[kind]
    if role == ROLLOUT:
        table = rollout_table(facts, sizes, pin, problem.mode, problem.options, prune)
    else:
        table = _weights_table(facts, problem.flow, role, sizes, pin, problem.options)
        if problem.options.offload:
            table = _with_offload(facts, problem, table)
        if problem.flow.generates(role):
            table = _with_generation(facts, role, table, sizes, pin, problem.options, prune)
    capacity = facts.memory_capacity_bytes - facts.generation.memory_reserve_bytes
    granted = table.relaxed() if table.credit.any else table
    fits = (granted.resident_bytes + granted.transient_bytes <= capacity) & (pin.device in (None, kind))
    only_granted = table.resident_bytes + table.transient_bytes > capacity
    credit = replace(table.credit, unlisted=table.credit.unlisted | (only_granted & fits))
    table = replace(table, credit=credit).take(np.flatnonzero(fits))
    table = replace(table, kind=np.full(len(table), position, dtype=np.int64))
    return table.take(_pruned(table)) if prune else table


def _weights_table(
    facts: Facts, flow: Dataflow, role: str, sizes: tuple[int, ...], pin: Pin, options: SearchOptions
) -> RoleTable:
    """Training and inference configurations, without generation.

    A spread is one (dp, tp, pp, cp, ep) on one pool size with one ZeRO stage. A trained role scores in the spread
    that it trains in, with a micro-batch of its own, or, if ``options`` allows, on a copy of its weights in another.
    """
    spec, work = facts.roles[role], facts.workload
    kinds = {call.kind: call for call in flow.calls_of(role)}
    trained = "train" in kinds
    samples = work.minibatch_samples if trained else work.num_samples
    dealt = {samples, work.num_samples} if len(kinds) > 1 else {samples}  # scoring and generation deal all at once
    degrees = layouts.degrees(facts, spec.shape, sizes[-1], *sorted(dealt), options=options)
    zero = facts.training.zero_stages if trained else tuple(z for z in facts.training.zero_stages if z == 3) or (0,)
    train = forward = None
    if trained:
        per_rank = np.asarray([-(-samples // x[0]) for x in degrees], dtype=np.int64)
        chunked = spec.shape.num_layers if options.interleaving else 0
        rows = layouts.cross(degrees, zero, RECOMPUTE_INDICES, per_rank, chunked)
        train = priced(facts, kinds["train"], *_pinned(pin, "training", *rows))
    if "forward" in kinds:
        per_rank = np.asarray([-(-work.num_samples // x[0]) for x in degrees], dtype=np.int64)
        rows = layouts.cross(degrees, zero, (0,), per_rank)
        forward = priced(facts, kinds["forward"], *_pinned(pin, "inference", *rows))
    if train is not None and forward is not None:
        if options.scoring_layouts:
            listed = _pinned(pin, "inference", *_copies(facts, role, sizes[-1], options))
            trained_in = Spreads.of(degrees, np.unique(train.spread), last_degrees(degrees))
            forward = with_copies(facts, kinds["forward"], forward, trained_in, listed)
        left, right = _pairs(train.spread, forward.spread)
        train, forward = train.take(left), forward.take(right)
    used = np.asarray([dp * tp * pp * cp for dp, tp, pp, cp, _ in degrees], dtype=np.int64)
    return _paired(facts, flow, role, train, forward, smallest_pool(used, sizes), last_degrees(degrees))


def _copies(facts: Facts, role: str, most_gpus: int, options: SearchOptions) -> tuple[Layouts, Ints]:
    """Layouts that a copy of a trained role's weights may score in, and the position of each one's spread."""
    samples = facts.workload.num_samples
    degrees = layouts.degrees(facts, facts.roles[role].shape, most_gpus, samples, options=options)
    per_rank = np.asarray([-(-samples // x[0]) for x in degrees], dtype=np.int64)
    return layouts.cross(degrees, (0,), (0,), per_rank)


def smallest_pool(used: Ints, sizes: tuple[int, ...]) -> Ints:
    """The smallest of ``sizes`` with at least ``used`` GPUs, elementwise."""
    ascending = np.asarray(sorted(sizes), dtype=np.int64)
    return ascending[np.searchsorted(ascending, used)]


def _pinned(pin: Pin, stage: Stage, layouts: Layouts, owner: Ints) -> tuple[Layouts, Ints]:
    """The layouts that a pin leaves, and their owners."""
    index = matching(pin, stage, layouts)
    return layouts.take(index), owner[index]


def _paired(
    facts: Facts,
    flow: Dataflow,
    role: str,
    train: PricedCandidates | None,
    forward: PricedCandidates | None,
    gpus_of_spread: Ints,
    last_dp: Ints,
) -> RoleTable:
    """One table of rows that pair training with inference in the same spread (or have only one of them)."""
    spec = facts.roles[role]
    present = [rows for rows in (train, forward) if rows is not None]
    by_kind = {"train": train, "forward": forward}
    durations = {call.key: rows.seconds for call in flow.calls_of(role) if (rows := by_kind.get(call.kind)) is not None}
    layouts = RoleLayouts(train.layouts if train else None, forward.layouts if forward else None)
    resident = memory.resident_bytes(facts, spec.shape, head_of(role), layouts.weights, flow.is_trained(role))
    spread = present[0].spread // NUM_ZERO_STAGES
    train_key = next((call.key for call in flow.calls_of(role) if call.kind == "train"), None)
    credit = weights_slack(facts, role, train_key, layouts.weights, last_dp[spread])
    if forward is not None and np.any(forward.gain_s > 0):
        gains = {call.key: forward.gain_s for call in flow.calls_of(role) if call.kind == "forward"}
        credit = replace(credit, seconds=credit.seconds | gains)
    return RoleTable(
        role=role,
        kind=np.zeros(len(present[0].seconds), dtype=np.int64),
        num_gpus=gpus_of_spread[spread],
        durations_s=durations,
        resident_bytes=memory.total(resident),
        transient_bytes=np.max([rows.need_bytes for rows in present], axis=0),
        layouts=layouts,
        num_priced=sum(len(rows.seconds) for rows in present),
        offload=np.zeros(len(present[0].seconds), dtype=np.int64),
        credit=credit,
    )


def _with_offload(facts: Facts, problem: Problem, table: RoleTable) -> RoleTable:
    """The rows as they are, and again with each choice of what waits in host memory; before they meet an engine.

    Copies are all that the times gain: those of the transition stand under its key until the rest of it is known.
    """
    apart = problem.mode.dedicated_rollout and facts.dataflow.generates(table.role)
    waits = problem.flow.generates(table.role)
    calls = [call for call in facts.dataflow.calls_of(table.role) if call.key in table.durations_s]
    calls += [call for call in facts.dataflow.calls_of(table.role) if call.kind == "transition" and waits]
    none = np.zeros(len(table))
    tables = []
    for i, option in enumerate(OFFLOADS if facts.dataflow.is_trained(table.role) else FROZEN_OFFLOADS):
        layouts = replace(table.layouts, offload=option, separate_generation=apart)
        needs = role_memory(facts, table.role, layouts)
        copies = {c.key: pricing.host_traffic(facts, c, layouts).time.s * facts.correction(c.api) for c in calls}
        tables.append(
            replace(
                table,
                durations_s={key: table.durations_s.get(key, none) + s for key, s in copies.items()},
                resident_bytes=np.broadcast_to(needs.resident_bytes, (len(table),)),
                transient_bytes=np.broadcast_to(needs.transient_bytes, (len(table),)),
                offload=np.full(len(table), i, dtype=np.int64),
            )
        )
    return joined(tables)


def _with_generation(
    facts: Facts, role: str, table: RoleTable, sizes: tuple[int, ...], pin: Pin, options: SearchOptions, prune: bool
) -> RoleTable:
    """Pair every weights configuration with every engine configuration of the same GPUs.

    Where it stands for more data-parallel ranks than it has, also with those of up to as many GPUs as these have: in no
    plan, but in the bound.
    """
    if prune:
        table = table.take(_pruned(table, keep_apart=True))
    weights = table.layouts.weights
    last = np.maximum(table.credit.last_dp, weights.dp) * (weights.num_gpus // weights.dp)
    ends, asked = np.unique(np.stack([weights.num_gpus, last]), axis=1, return_inverse=True)
    rows = engine_rows(facts, role, ends[0], ends[1], pin, options, None, prune)
    left, right = _pairs(asked.ravel(), rows.asked)
    transition = _transition_s(facts, role, weights, rows.engine, left, right)
    paired, rows = table.take(left), rows.take(right)
    training, calls = paired.layouts.weights, facts.dataflow.calls_of(role)
    transition = transition + paired.durations_s.get("transition", 0.0)
    engine_s = {"transition": transition, "generate": rows.seconds}
    durations = paired.durations_s | {call.key: engine_s[call.kind] for call in calls if call.kind in engine_s}
    unlisted = paired.credit.unlisted | (rows.engine.num_gpus != training.num_gpus)
    return replace(
        paired,
        num_gpus=np.maximum(paired.num_gpus, smallest_pool(rows.engine.num_gpus, sizes)),
        credit=replace(paired.credit, unlisted=unlisted),
        durations_s=durations,
        transient_bytes=np.maximum(paired.transient_bytes, _engine_bytes(facts, role, paired, rows)),
        layouts=replace(paired.layouts, generation=rows.engine),
        num_priced=paired.num_priced + rows.num_priced + len(left),
    )


def _transition_s(
    facts: Facts, role: str, weights: Layouts, engine: GenerationLayouts, left: Ints, right: Ints
) -> Floats:
    """Seconds of the transition of the pairs ``(left, right)``; those of the same ranks are priced once."""
    spec = facts.roles[role]
    trains = np.stack([weights.dp, weights.tp, weights.pp, weights.cp, weights.ep, weights.zero_stage, weights.vpp])
    runs = np.stack([engine.dp, engine.tp, engine.pp, engine.ep, engine.attention_dp])
    (first_left, of_left), (first_right, of_right) = (
        np.unique(columns, axis=1, return_index=True, return_inverse=True)[1:] for columns in (trains, runs)
    )
    kinds, of_pair = np.unique(of_left.ravel()[left] * len(first_right) + of_right.ravel()[right], return_inverse=True)
    i, j = np.divmod(kinds, max(len(first_right), 1))
    training, generation = weights.take(first_left[i]), engine.take(first_right[j])
    cost = reshard.transition_cost(facts, spec.shape, training, generation, spec.precision)
    called = pricing.as_called(facts, pricing.call_of_kind(facts, "transition"), cost, training.num_gpus)
    return np.asarray(called.time.s[of_pair.ravel()], dtype=np.float64)


def _engine_bytes(facts: Facts, role: str, paired: RoleTable, rows: EngineCandidates) -> Floats:
    """Most bytes per GPU that the transition or the generation of each pair adds, as ``role_memory`` counts."""
    spec, training = facts.roles[role], paired.layouts.weights
    alike, away = reshard.shares_weights(facts, training, rows.engine), AWAY[paired.offload]
    bucket = reshard.conversion_bucket_bytes(facts, spec.shape, training, rows.engine, spec.precision)
    converting = np.where(alike, 0.0, rows.weight_bytes) + bucket
    if np.any(away):  # what was away comes back to be converted
        states = memory.resident_bytes(facts, spec.shape, head_of(role), training, trained=True)
        converting = converting + np.where(away, states["parameters"], 0.0)
    running = np.where(alike & ~away, 0.0, rows.weight_bytes) + rows.running_bytes
    return np.asarray(np.maximum(converting, running))


def rollout_table(
    facts: Facts, sizes: tuple[int, ...], pin: Pin, mode: ExecutionMode, options: SearchOptions, prune: bool
) -> RoleTable:
    """Engine configurations of an actor that generates on a pool of its own; the transfer of weights is not priced.

    Any number of engine replicas up to one per sample: what the fullest has to do counts, as for data-parallel ranks.
    """
    role = next(role for role in facts.dataflow.roles if facts.dataflow.generates(role))
    used = np.asarray(layouts.rollout_gpus(facts, facts.roles[role].shape, sizes, options), dtype=np.int64)
    rows = engine_rows(facts, role, used, used, pin, options, mode.steady_steps, prune)
    calls = [call.key for call in facts.dataflow.calls_of(role) if call.kind == "generate"]
    return RoleTable(
        role=ROLLOUT,
        kind=np.zeros(len(rows.seconds), dtype=np.int64),
        num_gpus=smallest_pool(rows.engine.num_gpus, sizes),
        durations_s={"transition": np.zeros(len(rows.seconds))} | dict.fromkeys(calls, rows.seconds),
        resident_bytes=np.zeros(len(rows.seconds)),
        transient_bytes=bytes_apart(facts, role, rows),
        layouts=RoleLayouts(generation=rows.engine, separate_generation=True, steady_steps=mode.steady_steps),
        num_priced=rows.num_priced,
        offload=np.zeros(len(rows.seconds), dtype=np.int64),
        credit=Credit.none(len(rows.seconds)),
    )


def _pruned(table: RoleTable, keep_apart: bool = False) -> Ints:
    """Rows that no other row dominates in GPUs, every call's time and both memory needs.

    A pool fits if for each role what that one keeps and adds, plus what the others keep, fits; so what counts is what
    a role keeps, and that plus what it adds (in the whole MiB that the search adds up).
    ``keep_apart`` compares only rows of the same GPUs, tensor and pipeline degrees and offload, which generation and
    transition depend on.
    """
    values = _compared(table)
    if table.credit.any:  # a row that stands for others must not make way for one that is only better by itself
        values = np.where(table.credit.unlisted[:, None], np.inf, values)  # nor any for one that is in no plan
        values = np.concatenate([values, _compared(table.relaxed())], axis=1)
    if keep_apart:
        weights = table.layouts.weights
        key = ((weights.num_gpus * 1024 + weights.tp) * 1024 + weights.pp) * 64 + weights.cp * 4 + weights.zero_stage
        key = key * 4 + table.offload  # where parameters are away, an engine cannot run from them
        return non_dominated_by_group(key, values)
    if table.role == ROLLOUT:  # what the transfer of weights depends on
        engine = table.layouts.generation
        assert engine is not None, "the rollout generates"
        return non_dominated_by_group(same_shards(engine), values)
    rows = non_dominated_by_group(table.num_gpus, values)
    with_gpus = np.concatenate([table.num_gpus[rows, None].astype(np.float64), values[rows]], axis=1)
    return np.asarray(rows[non_dominated(with_gpus)], dtype=np.int64)


def _compared(table: RoleTable) -> Floats:
    resident = to_mib(table.resident_bytes)
    return np.stack([*_merged_durations(table), resident, resident + to_mib(table.transient_bytes)], axis=1)


def _merged_durations(table: RoleTable) -> list[Floats]:
    """Durations by call, the transition added to the generation that always follows it directly on the same pool."""
    out = dict(table.durations_s)
    if {"transition", "generate_sequences"} <= set(out):
        del out["transition"]
        out["generate_sequences"] = out["generate_sequences"] + table.durations_s["transition"]
    return list(out.values())


def _pairs(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Index pairs ``(i, j)`` with ``left[i] == right[j]``, in order of ``i``, then of ``j``."""
    order = np.argsort(right, kind="stable")
    first, beyond = (np.searchsorted(right[order], left, side=side) for side in ("left", "right"))
    num = beyond - first
    nth = np.arange(num.sum()) - np.repeat(np.cumsum(num) - num, num)
    return np.repeat(np.arange(len(left)), num), order[np.repeat(first, num) + nth]
