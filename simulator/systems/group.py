"""The fastest way a system can run the models that share a pool: every role in the pool's degrees, what fits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from simulator.cost import memory, pricing
from simulator.cost.kv_budget import with_kv_budget
from simulator.cost.role_layouts import RoleLayouts
from simulator.cost.role_memory import role_memory
from simulator.legality import engine_fault, tensor_fault
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import RECOMPUTE_LEVELS, RolePlan
from simulator.systems.system import ParallelDegrees

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from profiles.records import Floats
    from simulator.facts import Facts
    from simulator.plan.dataflow import Call
    from simulator.plan.plan import Offload
    from simulator.systems.system import System

MAX_WAVES = 256
"""A replica works off its responses in at most this many waves."""


READ_BY: Mapping[str, tuple[int, ...]] = {"train": (0,), "forward": (0, 1), "generate": (2,), "transition": (0, 2)}
"""Of a row's training, scoring and engine, those that the price of a kind of call reads."""


@dataclass(frozen=True)
class Group:
    """Roles on one pool size: their entries (pool names still open) and the seconds of each of their calls."""

    entries: tuple[RolePlan, ...]
    seconds: dict[str, float]


def best_group(system: System, facts: Facts, roles: tuple[str, ...], num_gpus: int) -> Group | None:
    """The group with the least time in sum over its calls, or ``None`` if nothing fits.

    Generation is left out where the system generates elsewhere.
    """
    found = [
        group
        for degrees, offload in product(parallel_degrees(system, facts, roles, num_gpus), system.offloads)
        if (group := _group(system, facts, roles, degrees, offload)) is not None
    ]
    return min(found, key=lambda group: sum(group.seconds.values()), default=None)


def parallel_degrees(system: System, facts: Facts, roles: tuple[str, ...], num_gpus: int) -> list[ParallelDegrees]:
    """How the system may split models over ``num_gpus`` GPUs.

    All data parallel with ZeRO 3; else tensor parallelism inside a node and as many pipeline stages as it allows.
    """
    trained = any(facts.dataflow.is_trained(role) for role in roles)
    samples = facts.workload.minibatch_samples if trained else facts.workload.num_samples
    shapes = [facts.roles[role].shape for role in roles]
    if system.zero_stage == 3:
        return [ParallelDegrees(num_gpus, 1, 1)] if num_gpus <= samples else []
    out = []
    for tp, pp in product((1, 2, 4, 8), (1, 2, 4, 8, 16)):
        dp, rest = divmod(num_gpus, tp * pp)
        whole = all(not tensor_fault(shape, tp) and shape.num_layers % pp == 0 for shape in shapes)
        if not rest and 1 <= dp <= samples and pp <= system.max_pipeline and tp <= facts.group.gpus_per_node and whole:
            out.append(ParallelDegrees(dp, tp, pp))
    return out


def _group(
    system: System, facts: Facts, roles: tuple[str, ...], degrees: ParallelDegrees, offload: tuple[Offload, ...]
) -> Group | None:
    """Every role in ``degrees``; each call as fast as the memory that all of them leave allows."""
    candidates = {role: _candidates(system, facts, role, degrees, offload) for role in roles}
    kept = {r: role_memory(facts, r, c.layouts, system.resharding).resident_bytes for r, c in candidates.items()}
    resident = sum(float(np.max(size)) for size in kept.values())  # equal in all rows: they share the degrees
    left = facts.memory_room_bytes - resident
    entries: list[RolePlan] = []
    seconds: dict[str, float] = {}
    for role, candidate in candidates.items():
        layouts = candidate.layouts
        here = [c for c in facts.dataflow.calls_of(role) if _runs_here(system, c)]
        needs = role_memory(facts, role, layouts, system.resharding).transient
        need = np.max([memory.total(needs[c.key]) for c in here if c.key in needs], axis=0)
        costs = {c.key: candidate.seconds(system, facts, c) for c in here}
        total = np.where(need <= left, sum(costs.values()), np.inf)
        row = int(np.argmin(total))
        if not np.isfinite(total[row]):
            return None
        entries.append(_entry(role, layouts, row, offload))
        seconds |= {key: float(value[row]) for key, value in costs.items()}
    return Group(tuple(entries), seconds)


def _micro_batches(system: System, facts: Facts) -> tuple[int, ...]:
    """Samples of a training micro-batch that the system tries."""
    if system.micro_batch_tokens is None:
        return system.micro_batches
    return (max(1, int(system.micro_batch_tokens // facts.workload.trained_tokens_per_sample)),)


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Every combination of what is tried of a role: ``layouts`` by column, ``shape`` the number of each part."""

    layouts: RoleLayouts
    shape: tuple[int, int, int]

    def seconds(self, system: System, facts: Facts, call: Call) -> Floats:
        """Of a call, by column; columns that share all that its price reads are priced once."""
        reads = READ_BY[call.kind]
        columns = np.arange(math.prod(self.shape)).reshape(self.shape)
        few = columns[tuple(slice(None) if part in reads else slice(1) for part in range(3))]
        cost = pricing.call_cost(facts, call, self.layouts.take(few.reshape(-1)), system.resharding)
        return np.broadcast_to(cost.time.s.reshape(few.shape), self.shape).reshape(-1)


def _runs_here(system: System, call: Call) -> bool:
    """Whether a call runs on its role's own pool."""
    return not (system.separate_generator and call.kind in ("generate", "transition"))


def _candidates(
    system: System, facts: Facts, role: str, degrees: ParallelDegrees, offload: tuple[Offload, ...]
) -> _Candidates:
    """Every combination of micro-batch, recomputation and engine that the system tries for a role."""
    kinds = {call.kind for call in facts.dataflow.calls_of(role)}
    trained, zero = "train" in kinds, system.zero_stage if system.zero_stage == 3 or "train" in kinds else 0
    levels = [RECOMPUTE_LEVELS.index(name) for name in system.recompute]
    train = [(zero, b, level) for b, level in product(_micro_batches(system, facts), levels)]
    score = [(zero, b, 0) for b in system.rollout_batches or system.micro_batches]
    priced_here = "generate" in kinds and not system.separate_generator
    engines = list(engine_rows(system, facts, role, degrees)) if priced_here else [(1, 1, 1, 1)]
    parts = (train if trained else [(zero, 1, 0)], score if "forward" in kinds else [(zero, 1, 0)], engines)
    rows = list(product(*parts))
    dp, tp, pp = degrees

    def layouts(part: int) -> Layouts:
        columns = [(dp, tp, pp, 1, 1, *row[part]) for row in rows]
        return Layouts(*np.asarray(columns, dtype=np.int64).T)

    shape, engine = facts.roles[role].shape, GenerationLayouts(*np.asarray([r[2] for r in rows], dtype=np.int64).T)
    tried = RoleLayouts(
        training=layouts(0) if trained else None,
        inference=layouts(1) if "forward" in kinds else None,
        generation=with_kv_budget(facts, shape, engine) if "generate" in kinds else None,
        separate_generation=system.separate_generator and "generate" in kinds,
        offload=offload,
    )
    return _Candidates(tried, (len(parts[0]), len(parts[1]), len(parts[2])))


def engine_rows(
    system: System, facts: Facts, role: str, degrees: ParallelDegrees, asked: int | None = None, asking: int = 1
) -> Iterator[tuple[int, int, int, int]]:
    """``(dp, tp, pp, sequences in flight)`` of every engine layout that the system tries on ``degrees``' GPUs.

    Numbers in flight are those that whole waves need, halving down to one, or the batch that a trainer's rank has
    ``asked`` for: each of the ``asking`` ranks has one engine, and an engine works for one rank at a time.
    """
    dp, tp, pp = degrees
    n = dp * tp * pp
    shape, most = facts.roles[role].shape, int(facts.generation.max_num_seqs)
    tried = [(tp, pp)] if system.generates_as_trained else [(t, 1) for t in (1, 2, 4, 8)]
    for t, p in tried:
        replicas, rest = divmod(n, t * p)
        if rest or engine_fault(shape, t, p) or not 1 <= replicas <= facts.workload.num_samples:
            continue
        load = -(-facts.workload.num_samples // replicas)
        if system.device_batches:
            for slots in sorted({min(batch * t * p, load) for batch in system.device_batches}):
                yield (replicas, t, p, slots)
            continue
        if asked:
            if asking % replicas == 0:
                yield (replicas, t, p, min(asked, load, most))
            continue
        waves = [w for w in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, MAX_WAVES) if w <= load]
        for slots in sorted({min(-(-load // w), most) for w in waves}):
            yield (replicas, t, p, slots)


def _entry(role: str, layouts: RoleLayouts, row: int, offload: tuple[Offload, ...]) -> RolePlan:
    return RolePlan(
        role=role,
        pool="",
        offload=offload,
        generation=layouts.generation.record(row) if layouts.generation else None,
        training=layouts.training.record(row) if layouts.training else None,
        inference=layouts.inference.record(row) if layouts.inference else None,
    )
