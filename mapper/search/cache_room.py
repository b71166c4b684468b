"""What a pool has left goes to the KV cache of the engine on it: longer responses than expected then need not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.cost.kv_budget import most_bytes
from simulator.cost.memory import total
from simulator.cost.role_layouts import layouts_of
from simulator.pool_memory import memories_on

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import Plan


def with_rest_in_cache(plan: Plan, facts: Facts) -> Plan:
    """The plan whose engines take what their pools leave usable, up to what their sequences could ever fill."""
    facts = facts.drafting(plan.draft_tokens)
    for entry in plan.roles:
        if entry.generation is None:
            continue
        pool, layouts = plan.generation_pool_of(entry.role), layouts_of(entry, plan)
        assert layouts.generation is not None, f"{entry.role} generates"
        here, needs = facts.on(pool.device), memories_on(plan, pool, facts)
        running = max(float(total(c)[0]) for c in needs[entry.role].transient.values() if "kv cache" in c)
        kept = sum(float(need.resident_bytes[0]) for need in needs.values())
        left = int(here.memory_room_bytes - kept - running) - len(needs) * 16  # classes are rounded up one by one
        most = int(most_bytes(here, facts.roles[entry.role].shape, layouts.generation, layouts.steady_steps)[0])
        budget = entry.generation.kv_cache_bytes
        given = entry.generation.model_copy(update={"kv_cache_bytes": max(budget, min(budget + left, most))})
        roles = tuple(e.model_copy(update={"generation": given}) if e is entry else e for e in plan.roles)
        plan = plan.model_copy(update={"roles": roles})
    return plan
