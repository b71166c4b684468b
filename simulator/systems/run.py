"""run_system(name, facts) -> the fastest plan that a system can run for a job, and what ``simulate`` says of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement, permutations
from typing import TYPE_CHECKING

import numpy as np

from profiles.errors import InfeasibleError, UnknownNameError
from simulator.cost import pricing
from simulator.cost.kv_budget import with_kv_budget
from simulator.cost.pricing import controller_cost, is_controller
from simulator.cost.role_layouts import RoleLayouts
from simulator.cost.role_memory import role_memory
from simulator.plan.dataflow import CONTROLLER
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import Plan, Pool, RolePlan, placement_name
from simulator.play.schedule import play
from simulator.play.simulate import simulate
from simulator.systems.group import Group, best_group, engine_rows
from simulator.systems.system import SYSTEMS, ParallelDegrees, System

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulator.facts import Facts
    from simulator.plan.timeline import Timeline

GENERATOR = "generator"
EngineRow = tuple[int, int, int, int]
"""Replicas, tensor and pipeline degree, sequences in flight."""


@dataclass(frozen=True, eq=False)
class SystemRun:
    """A system's plan, the facts it ran on (its own engines), and its predicted timeline."""

    system: System
    plan: Plan
    facts: Facts
    timeline: Timeline

    @property
    def device_batch(self) -> int | None:
        """Sequences that a GPU generates at once, where the system's recipes state that."""
        engine = self.plan.role("actor").generation
        if not self.system.device_batches or engine is None:
            return None
        return engine.max_num_seqs // (engine.tp * engine.pp)


def run_system(name: str, facts: Facts, device_batch: int | None = None) -> SystemRun:
    """The fastest plan of a system for the job of ``facts``, with a given batch of a GPU where its recipes have one.

    Raises ``UnknownNameError`` for an unknown system and ``InfeasibleError`` where its plans do not fit.
    """
    if name not in SYSTEMS:
        raise UnknownNameError("system", name, SYSTEMS)
    system = SYSTEMS[name]
    if device_batch is not None and system.device_batches:
        system = replace(system, device_batches=(device_batch,))
    own = system.facts_of(facts)
    plan = fastest_plan(system, own)
    return SystemRun(system, plan, own, simulate(plan, own))


def fastest_plan(system: System, facts: Facts) -> Plan:
    """Try every allocation of GPUs to the system's pools and keep the one whose iteration is shortest."""
    pools = role_sets(system, facts)
    allocations = list(_allocations(system, facts, len(pools)))
    tried = _with_batches(system)
    best, shortest = None, float("inf")
    controller_s = {c.key: float(controller_cost(facts, c).time.s) for c in facts.dataflow.calls if is_controller(c)}
    for one in tried:
        groups = _PoolGroups(one, facts, pools, allocations)
        for sizes in allocations:
            chosen = [group for i in range(len(pools)) if (group := groups.of(i, sizes)) is not None]
            if len(chosen) == len(pools):
                seconds = _iteration_s(one, facts, pools, chosen, controller_s)
                if seconds < shortest:
                    best, shortest = (sizes, chosen), seconds
    if best is None:
        raise InfeasibleError(
            f"{system.title} does not fit: no allocation of {facts.group.num_gpus} x {facts.group.device} to its "
            f"{len(pools)} pool{'s' if len(pools) > 1 else ''} holds every model in its layouts"
        )
    return _plan(system, facts, pools, *best)


def _with_batches(system: System) -> list[System]:
    """The system with each batch that it asks for; where it scores what a GPU generates at once, that is the batch."""
    if system.scores_device_batches:
        return [replace(system, device_batches=(b,), rollout_batches=(b,)) for b in system.device_batches]
    return [replace(system, rollout_batches=(b,)) for b in system.rollout_batches] or [system]


@dataclass
class _PoolGroups:
    """The group of each pool by its size, found when first asked for; the generator's by the actor's pool, too."""

    system: System
    facts: Facts
    pools: tuple[tuple[str, ...], ...]
    allocations: list[tuple[int, ...]]
    found: dict[tuple[int, int, int], Group | None] = field(default_factory=dict)
    engines: dict[int, dict[EngineRow, Group]] = field(default_factory=dict)
    """By size of the generator's pool: the engines that any trainer asks for and that fit, priced at once."""

    def of(self, pool: int, sizes: tuple[int, ...]) -> Group | None:
        """Group of a pool where the pools have these sizes."""
        asking = self._asking(sizes)
        generates = self.pools[pool] == (GENERATOR,)
        key = (pool, sizes[pool], asking if generates else 0)
        if key not in self.found:
            self.found[key] = (
                self._generator(sizes[pool], asking)
                if generates
                else best_group(self.system, self.facts, self.pools[pool], sizes[pool])
            )
        return self.found[key]

    def _generator(self, num_gpus: int, asking: int) -> Group | None:
        """The engine on its own GPUs, of which ``asking`` ranks of the trainer ask for samples, each in its turn."""
        if num_gpus not in self.engines:
            every = {self._asking(sizes) for sizes in self.allocations}
            rows = sorted({row for one in every for row in self._rows(num_gpus, one)})
            self.engines[num_gpus] = _generators(self.system, self.facts, num_gpus, rows) if rows else {}
        fitting = self.engines[num_gpus]
        chosen = [fitting[row] for row in self._rows(num_gpus, asking) if row in fitting]
        return min(chosen, key=lambda group: sum(group.seconds.values()), default=None)

    def _rows(self, num_gpus: int, asking: int) -> list[EngineRow]:
        asked = self.system.rollout_batches[0] if self.system.rollout_batches else None
        return list(engine_rows(self.system, self.facts, "actor", ParallelDegrees(num_gpus, 1, 1), asked, asking))

    def _asking(self, sizes: tuple[int, ...]) -> int:
        return next(size for roles, size in zip(self.pools, sizes, strict=True) if "actor" in roles)


def role_sets(system: System, facts: Facts) -> tuple[tuple[str, ...], ...]:
    """Who shares a pool; the generator's own pool is ``(GENERATOR,)``."""
    roles = facts.dataflow.roles
    if system.placement == "colocate":
        sets: tuple[tuple[str, ...], ...] = (roles,)
    elif system.placement == "standalone":
        sets = tuple((role,) for role in roles)
    else:
        first = tuple(r for r in roles if r in ("actor", "reference"))
        sets = tuple(s for s in (first, tuple(r for r in roles if r not in first)) if s)
    return (*sets, (GENERATOR,)) if system.separate_generator else sets


def _allocations(system: System, facts: Facts, num_pools: int) -> Iterator[tuple[int, ...]]:
    """GPUs of each pool: whole nodes, and power-of-two slices where nodes are scarce; halves of a split are equal."""
    group = facts.group
    if num_pools == 1:
        yield (group.num_gpus,)
    elif system.placement == "split" and not system.separate_generator:
        yield (group.num_gpus // num_pools,) * num_pools
    else:
        sizes = [group.gpus_per_node * i for i in range(1, group.nodes + 1)]
        if group.nodes < 2 * num_pools:
            sizes = [2**i for i in range(group.gpus_per_node.bit_length() - 1)] + sizes
        for multiset in combinations_with_replacement(sizes, num_pools):
            if sum(multiset) == group.num_gpus:
                yield from sorted(set(permutations(multiset)))


def _generators(system: System, facts: Facts, num_gpus: int, rows: list[EngineRow]) -> dict[EngineRow, Group]:
    """The engines of ``rows`` that fit, each on ``num_gpus`` GPUs of its own.

    The weights come from a trainer of the engine's size (its own size hardly matters).
    """
    engine = with_kv_budget(facts, facts.roles["actor"].shape, GenerationLayouts(*np.asarray(rows, dtype=np.int64).T))
    trainer = _trainer(num_gpus, len(rows))
    layouts = RoleLayouts(training=trainer, inference=trainer, generation=engine, separate_generation=True)
    need = role_memory(facts, "actor", layouts, system.resharding).transient["generate_sequences"]
    room = facts.memory_room_bytes - facts.generation.memory_reserve_bytes
    costs = {
        call.key: pricing.call_cost(facts, call, layouts, system.resharding).time.s
        for call in facts.dataflow.calls_of("actor")
        if call.kind in ("generate", "transition")
    }
    fits = (sum(need.values()) <= room) & np.isfinite(sum(costs.values()))
    return {
        rows[i]: Group(
            (RolePlan(role="actor", pool="", generation=engine.record(i)),),
            {key: float(value[i]) for key, value in costs.items()},
        )
        for i in np.flatnonzero(fits).tolist()
    }


def _trainer(num_gpus: int, rows: int) -> Layouts:
    columns = np.asarray([[num_gpus, 1, 1, 1, 1, 3, 1, 0]] * rows, dtype=np.int64)
    return Layouts(*columns.T)


def _iteration_s(
    system: System,
    facts: Facts,
    pools: tuple[tuple[str, ...], ...],
    chosen: list[Group],
    controller_s: dict[str, float],
) -> float:
    """Play the calls on these pools; the generator's own times replace those of the trainer's pool."""
    seconds = dict(controller_s)
    for group in chosen:
        seconds |= group.seconds
    pool_of = {role: f"pool {i}" for i, roles in enumerate(pools) for role in roles} | {CONTROLLER: CONTROLLER}
    generator = pool_of.get(GENERATOR) if system.separate_generator else None
    return max(record.end_s for record in play(facts.dataflow, seconds, pool_of, generator))


def _plan(
    system: System, facts: Facts, pools: tuple[tuple[str, ...], ...], sizes: tuple[int, ...], chosen: list[Group]
) -> Plan:
    """Put the pools on GPUs, larger ones first, so that slices of a node never straddle two."""
    names = ["ABCDEFGH"[i] for i in range(len(pools))]
    first, at = {}, 0
    for i in sorted(range(len(pools)), key=lambda i: (-sizes[i], i)):
        first[i], at = at, at + sizes[i]
    entries: dict[str, RolePlan] = {}
    for name, roles, group in zip(names, pools, chosen, strict=True):
        for entry in group.entries:
            if roles == (GENERATOR,):
                update = {"generation": entry.generation, "generation_pool": name}
                entries["actor"] = entries["actor"].model_copy(update=update)
            else:
                entries[entry.role] = entry.model_copy(update={"pool": name})
    members = [() if roles == (GENERATOR,) else roles for roles in pools]
    return Plan(
        algorithm=facts.algorithm,
        placement=placement_name(tuple(roles for roles in members if roles)),
        pools=tuple(
            Pool(name=name, device=facts.group.device, first_gpu=first[i], num_gpus=sizes[i], roles=members[i])
            for i, name in enumerate(names)
        ),
        roles=tuple(entries[role] for role in facts.dataflow.roles),
        resharding=system.resharding,
    )
