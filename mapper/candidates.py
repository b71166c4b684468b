"""Candidate tables: for each role, every configuration on every pool size, priced, filtered and pruned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mapper import layout_space
from mapper.pareto import non_dominated
from mapper.pins import Pin, Stage, matching, pin_of
from profiles.units import DTYPE_BYTES, MIB
from simulator import generation, memory, pricing, resharding
from simulator.layouts import GenerationLayouts, Layouts
from simulator.plan import RECOMPUTE_LEVELS, GenerationLayout, ParallelLayout
from simulator.pricing import RoleLayouts

if TYPE_CHECKING:
    from mapper.problem import Problem
    from profiles.records import Floats, Ints
    from simulator.dataflow import Call
    from simulator.facts import Facts

RECOMPUTE_INDICES = tuple(range(len(RECOMPUTE_LEVELS)))
NUM_ZERO_STAGES = 4


@dataclass(frozen=True, eq=False)
class RoleTable:
    """Configurations of one role, one per row ``[C]``, for all pool sizes together.

    Parameters
    ----------
    num_gpus
        The smallest pool that holds the row; it runs on larger ones as well and leaves GPUs idle there.
    durations_s
        Seconds of each of the role's calls, by call key.
    resident_bytes, transient_bytes
        What the role keeps on each GPU, and the most that one of its calls adds.
    layouts
        The layouts themselves, row by row; ``kv_bytes`` the KV budget where the role generates.
    num_priced
        Configurations priced before filtering and pruning.
    """

    role: str
    num_gpus: Ints
    durations_s: dict[str, Floats]
    resident_bytes: Floats
    transient_bytes: Floats
    layouts: RoleLayouts
    kv_bytes: Floats
    num_priced: int

    def __len__(self) -> int:
        return len(self.num_gpus)

    def take(self, index: Ints) -> RoleTable:
        """The rows at ``index``."""
        x = self.layouts
        return replace(
            self,
            num_gpus=self.num_gpus[index],
            durations_s={key: value[index] for key, value in self.durations_s.items()},
            resident_bytes=self.resident_bytes[index],
            transient_bytes=self.transient_bytes[index],
            layouts=RoleLayouts(
                None if x.training is None else x.training.take(index),
                None if x.inference is None else x.inference.take(index),
                None if x.generation is None else x.generation.take(index),
            ),
            kv_bytes=self.kv_bytes[index],
        )

    def records(self, row: int) -> tuple[ParallelLayout | None, ParallelLayout | None, GenerationLayout | None]:
        """The row's training, inference and generation layouts as a plan carries them."""
        x, made = self.layouts, None
        if x.generation is not None:
            made = GenerationLayout(
                dp=int(x.generation.dp[row]), tp=int(x.generation.tp[row]), pp=int(x.generation.pp[row]),
                max_num_seqs=int(x.generation.max_num_seqs[row]), kv_cache_bytes=int(np.ceil(self.kv_bytes[row])),
            )  # fmt: skip
        return (x.training.record(row) if x.training else None, x.inference.record(row) if x.inference else None, made)


def role_table(problem: Problem, role: str, prune: bool = True) -> RoleTable:
    """Price every configuration of ``role`` on every pool size; drop what cannot fit alone and what is dominated."""
    facts, pin = problem.facts, pin_of(problem.pins, role)
    table = _weights_table(facts, role, problem.sizes, pin)
    if facts.dataflow.generates(role):
        table = _with_generation(facts, role, problem.sizes, table, pin, prune)
    fits = (
        table.resident_bytes + table.transient_bytes + facts.generation.memory_reserve_bytes
        <= facts.memory_capacity_bytes
    )
    table = table.take(np.flatnonzero(fits))
    return table.take(_pruned(table)) if prune else table


@dataclass(frozen=True, eq=False)
class _PricedRows:
    """Layouts of one call, what each costs, and which spread of the weights it belongs to; all ``[C]``."""

    layouts: Layouts
    spread: Ints
    seconds: Floats
    need_bytes: Floats

    def take(self, index: Ints) -> _PricedRows:
        return _PricedRows(self.layouts.take(index), self.spread[index], self.seconds[index], self.need_bytes[index])


def _weights_table(facts: Facts, role: str, sizes: tuple[int, ...], pin: Pin) -> RoleTable:
    """Training and inference configurations, without generation.

    A spread is one (dp, tp, pp, cp, ep) on one pool size with one ZeRO stage. A trained role scores in the spread
    that it trains in, with a micro-batch of its own.
    """
    flow, spec, work = facts.dataflow, facts.roles[role], facts.workload
    kinds = {call.kind: call for call in flow.calls_of(role)}
    trained = "train" in kinds
    samples = work.minibatch_samples if trained else work.num_samples
    dealt = {samples, work.num_samples} if len(kinds) > 1 else {samples}  # scoring and generation deal all at once
    degrees = layout_space.degrees(facts, spec.shape, sizes[-1], *sorted(dealt))
    zero = facts.training.zero_stages if trained else tuple(z for z in facts.training.zero_stages if z == 3) or (0,)
    train = forward = None
    if trained:
        per_rank = np.asarray([-(-samples // x[0]) for x in degrees], dtype=np.int64)
        rows = layout_space.cross(degrees, zero, RECOMPUTE_INDICES, per_rank)
        train = _priced(facts, kinds["train"], *_pinned(pin, "training", *rows))
    if "forward" in kinds:
        per_rank = np.asarray([-(-work.num_samples // x[0]) for x in degrees], dtype=np.int64)
        rows = layout_space.cross(degrees, zero, (0,), per_rank)
        forward = _priced(facts, kinds["forward"], *_pinned(pin, "inference", *rows))
    if train is not None and forward is not None:
        left, right = _pairs(train.spread, forward.spread)
        train, forward = train.take(left), forward.take(right)
    used = np.asarray([dp * tp * pp * cp for dp, tp, pp, cp, _ in degrees], dtype=np.int64)
    return _joined(facts, role, train, forward, _smallest_pool(used, sizes))


def _smallest_pool(used: Ints, sizes: tuple[int, ...]) -> Ints:
    """The smallest of ``sizes`` with at least ``used`` GPUs, elementwise."""
    ascending = np.asarray(sorted(sizes), dtype=np.int64)
    return ascending[np.searchsorted(ascending, used)]


def _pinned(pin: Pin, stage: Stage, layouts: Layouts, owner: Ints) -> tuple[Layouts, Ints]:
    """The layouts that a pin leaves, and their owners."""
    index = matching(pin, stage, layouts)
    return layouts.take(index), owner[index]


def _priced(facts: Facts, call: Call, layouts: Layouts, owner: Ints) -> _PricedRows:
    """Price a call in every layout that fits; keep per spread what no other row beats in time and memory."""
    shape, logits = facts.roles[call.role].shape, pricing.head_of(call.role) == "lm"
    need_of = memory.training_bytes if call.kind == "train" else memory.inference_bytes
    need = memory.total(need_of(facts, shape, layouts, logits))
    fits = np.flatnonzero(need + facts.generation.memory_reserve_bytes <= facts.memory_capacity_bytes)
    layouts, need = layouts.take(fits), need[fits]
    given = RoleLayouts(training=layouts) if call.kind == "train" else RoleLayouts(inference=layouts)
    seconds = pricing.call_cost(facts, call, given).time.s
    rows = _PricedRows(layouts, owner[fits] * NUM_ZERO_STAGES + layouts.zero_stage, seconds, need)
    return rows.take(_non_dominated_by_group(rows.spread, np.stack([seconds, need], axis=1)))


def _joined(
    facts: Facts, role: str, train: _PricedRows | None, forward: _PricedRows | None, gpus_of_spread: Ints
) -> RoleTable:
    """One table of rows that pair training with inference in the same spread (or have only one of them)."""
    flow, spec = facts.dataflow, facts.roles[role]
    present = [rows for rows in (train, forward) if rows is not None]
    by_kind = {"train": train, "forward": forward}
    durations = {call.key: rows.seconds for call in flow.calls_of(role) if (rows := by_kind.get(call.kind)) is not None}
    layouts = RoleLayouts(train.layouts if train else None, forward.layouts if forward else None)
    resident = memory.resident_bytes(facts, spec.shape, pricing.head_of(role), layouts.weights, flow.is_trained(role))
    return RoleTable(
        role=role,
        num_gpus=gpus_of_spread[present[0].spread // NUM_ZERO_STAGES],
        durations_s=durations,
        resident_bytes=memory.total(resident),
        transient_bytes=np.max([rows.need_bytes for rows in present], axis=0),
        layouts=layouts,
        kv_bytes=np.zeros(len(present[0].seconds)),
        num_priced=sum(len(rows.seconds) for rows in present),
    )


def _with_generation(
    facts: Facts, role: str, sizes: tuple[int, ...], table: RoleTable, pin: Pin, prune: bool
) -> RoleTable:
    """Pair every weights configuration with every engine configuration of the same GPUs."""
    spec, flow = facts.roles[role], facts.dataflow
    if prune:
        table = table.take(_pruned(table, keep_apart=True))
    engine = _engines(facts, role, np.unique(table.layouts.weights.num_gpus), pin)
    copy = memory.generation_weight_bytes(spec.shape, engine, DTYPE_BYTES[spec.precision])
    kv = generation.kv_cache_bytes(facts, spec.shape, engine)
    work = memory.generation_working_bytes(facts, spec.shape, engine)
    room = facts.memory_capacity_bytes - facts.generation.memory_reserve_bytes
    index = np.flatnonzero(kv + work <= room)
    engine, copy, kv, work = engine.take(index), copy[index], kv[index], work[index]
    seconds = generation.generation_cost(facts, spec.shape, engine, spec.precision).time.s
    if prune:
        key = (engine.num_gpus * 1024 + engine.tp) * 1024 + engine.pp
        index = _non_dominated_by_group(key, np.stack([seconds, kv + work], axis=1))
        engine, copy, kv, work, seconds = engine.take(index), copy[index], kv[index], work[index], seconds[index]
    left, right = _pairs(table.layouts.weights.num_gpus, engine.num_gpus)
    paired, chosen = table.take(left), engine.take(right)
    training = paired.layouts.weights
    shared = resharding.shares_weights(facts, training, chosen)
    transition = resharding.transition_cost(facts, spec.shape, training, chosen, spec.precision).time.s
    durations = dict(paired.durations_s)
    for call in flow.calls_of(role):
        if call.kind == "transition":
            durations[call.key] = transition
        elif call.kind == "generate":
            durations[call.key] = seconds[right]
    need = np.where(shared, 0.0, copy[right]) + kv[right] + work[right]
    return replace(
        paired,
        durations_s=durations,
        transient_bytes=np.maximum(paired.transient_bytes, need),
        layouts=replace(paired.layouts, generation=chosen),
        kv_bytes=kv[right],
        num_priced=paired.num_priced + len(engine) + len(left),
    )


def _engines(facts: Facts, role: str, used: Ints, pin: Pin) -> GenerationLayouts:
    """Engine configurations on each of the numbers of GPUs ``used``."""
    parts = [layout_space.generation_layouts(facts, facts.roles[role].shape, int(n)) for n in used]
    columns = ("dp", "tp", "pp", "max_num_seqs")
    none = np.zeros(0, dtype=np.int64)
    engine = GenerationLayouts(*(np.concatenate([none, *(getattr(x, f) for x in parts)]) for f in columns))
    return engine.take(matching(pin, "generation", engine))


def _pruned(table: RoleTable, keep_apart: bool = False) -> Ints:
    """Rows that no other row dominates in GPUs, every call's time and both memory needs.

    A pool fits if for each role what that one keeps and adds, plus what the others keep, fits; so what counts is what
    a role keeps, and that plus what it adds (in the whole MiB that the search adds up).
    ``keep_apart`` compares only rows of the same GPUs, tensor and pipeline degrees, which generation and transition
    depend on.
    """
    resident = to_mib(table.resident_bytes)
    values = np.stack([*_merged_durations(table), resident, resident + to_mib(table.transient_bytes)], axis=1)
    if keep_apart:
        weights = table.layouts.weights
        key = ((weights.num_gpus * 1024 + weights.tp) * 1024 + weights.pp) * 64 + weights.cp * 4 + weights.zero_stage
        return _non_dominated_by_group(key, values)
    rows = _non_dominated_by_group(table.num_gpus, values)
    with_gpus = np.concatenate([table.num_gpus[rows, None].astype(np.float64), values[rows]], axis=1)
    return np.asarray(rows[non_dominated(with_gpus)], dtype=np.int64)


def _merged_durations(table: RoleTable) -> list[Floats]:
    """Durations by call, the transition added to the generation that always follows it directly on the same pool."""
    out = {key: value for key, value in table.durations_s.items() if key != "transition"}
    if "transition" in table.durations_s:
        out["generate_sequences"] = out["generate_sequences"] + table.durations_s["transition"]
    return list(out.values())


def _non_dominated_by_group(key: Ints, values: Floats) -> Ints:
    """Rows that no other row of equal key dominates, ascending."""
    kept = [rows[non_dominated(values[rows])] for rows in _by_group(key)]
    return np.sort(np.concatenate(kept)) if kept else np.zeros(0, dtype=np.int64)


def _by_group(key: Ints) -> list[Ints]:
    """Row indices by equal key."""
    order = np.argsort(key, kind="stable")
    cuts = np.flatnonzero(np.diff(key[order])) + 1
    return [part for part in np.split(order, cuts) if len(part)]


def _pairs(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Index pairs ``(i, j)`` with ``left[i] == right[j]``."""
    at: dict[int, list[int]] = {}
    for j, key in enumerate(right.tolist()):
        at.setdefault(key, []).append(j)
    pairs = [(i, j) for i, key in enumerate(left.tolist()) for j in at.get(key, ())]
    array = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def to_mib(num_bytes: Floats) -> Ints:
    """Whole MiB, rounded up, so that what fits in MiB fits in bytes."""
    return np.asarray(np.ceil(num_bytes / MIB), dtype=np.int64)
