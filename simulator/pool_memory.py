"""What a plan needs on the fullest GPU of each pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.cost.role_layouts import layouts_of
from simulator.cost.role_memory import ENGINE_RESERVE, RoleMemory, role_memory
from simulator.cost.token_quantiles import TYPICAL
from simulator.plan.timeline import PoolMemory

if TYPE_CHECKING:
    from profiles.records import Floats
    from simulator.facts import Facts
    from simulator.plan.plan import Plan, Pool


def pool_memory(plan: Plan, pool: Pool, facts: Facts, level: float = TYPICAL) -> PoolMemory:
    """Peak memory of a pool's fullest GPU: every role's resident part, the largest transient part, the reserve.

    ``level`` is the share of the micro-batches that need no more; ``token_quantiles.ALWAYS`` has all at full length.
    """
    return facts.kept.of(("pool", plan, pool, level), lambda: _pool_memory(plan, pool, facts, level))


def _pool_memory(plan: Plan, pool: Pool, facts: Facts, level: float) -> PoolMemory:
    memories, here = memories_on(plan, pool, facts, level), facts.on(pool.device)
    classes = {"reserve": facts.training.memory_reserve_bytes}
    for needs in memories.values():
        for name, value in needs.resident.items():
            classes[name] = classes.get(name, 0.0) + float(value[0])
    peak_call, transient = _largest_transient(memories)
    for name, size in transient.items():
        classes[name] = classes.get(name, 0.0) + size
    rounded = {name: int(np.ceil(size)) for name, size in classes.items() if size > 0}
    return PoolMemory(
        used_bytes=sum(rounded.values()),
        capacity_bytes=here.memory_capacity_bytes,
        usable_bytes=here.memory_usable_bytes,
        peak_call=peak_call,
        classes=rounded,
    )


def memories_on(plan: Plan, pool: Pool, facts: Facts, level: float = TYPICAL) -> dict[str, RoleMemory]:
    """What each role needs on a GPU of this pool, arrays of length one; its engine alone if it trains elsewhere."""
    out, facts = {}, facts.drafting(plan.draft_tokens)
    for entry in plan.roles:
        here, engine = entry.pool == pool.name, plan.generation_pool_of(entry.role).name == pool.name
        if not here and not (engine and entry.generation):
            continue
        whole = role_memory(facts.on(pool.device), entry.role, layouts_of(entry, plan), plan.resharding, level)
        calls = {c.key: c for c in facts.dataflow.calls_of(entry.role)}
        runs = {
            key: found
            for key, needs in whole.transient.items()
            if (found := _on_pool(calls[key].kind, needs, here, engine, entry.separate_generation))
        }
        resident = whole.resident if here else {}
        if engine and entry.separate_generation:
            resident = {ENGINE_RESERVE: np.full(1, facts.generation.memory_reserve_bytes)}
        out[entry.role] = RoleMemory(resident, runs)
    return out


def _on_pool(kind: str, needs: dict[str, Floats], here: bool, engine: bool, apart: bool) -> dict[str, Floats]:
    """The part of what a call needs that falls on a pool where the role is (``here``) or generates (``engine``).

    A transition between pools needs its weights and buckets where they arrive, and the rest where they come from.
    """
    if kind == "generate":
        return needs if engine else {}
    if kind != "transition" or not apart:
        return needs if here else {}
    arriving = ("generation weights", "conversion bucket")
    return {name: size for name, size in needs.items() if (engine if name in arriving else here)}


def _largest_transient(memories: dict[str, RoleMemory]) -> tuple[str, dict[str, float]]:
    best, best_call = {"": 0.0}, ""
    for needs in memories.values():
        for call, classes in needs.transient.items():
            sizes = {name: float(value[0]) for name, value in classes.items()}
            if sum(sizes.values()) > sum(best.values()):
                best, best_call = sizes, call
    return best_call, best
