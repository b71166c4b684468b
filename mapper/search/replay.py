"""Many plans under the same facts: priced together by role, played one by one.

The same price functions and the same event queue as ``simulate``, so the times are equal; only provenance, stages and
memory by class are left out, and layouts that several plans share are priced once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.cost.kv_budget import kv_budget_bytes
from simulator.cost.pricing import controller_cost, is_controller, role_costs
from simulator.cost.role_layouts import RoleLayouts, layouts_of
from simulator.feasibility import check_plan
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.play.schedule import scheduled
from simulator.play.simulate import simulate
from simulator.pool_memory import pool_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.facts import Facts
    from simulator.plan.plan import Plan, RolePlan


def layout_key(plan: Plan) -> str:
    """Equal for plans of the same pools and layouts, whatever the KV budget: that follows from the responses."""
    return plan.model_copy(update={"roles": tuple(_without_budget(entry) for entry in plan.roles)}).model_dump_json()


def _without_budget(entry: RolePlan) -> RolePlan:
    if entry.generation is None:
        return entry
    return entry.model_copy(update={"generation": entry.generation.model_copy(update={"kv_cache_bytes": 0})})


def with_room(plan: Plan, facts: Facts) -> Plan:
    """The plan with the KV budget that its engine would take under ``facts``.

    What the search gives it, or what the pool has left: engines take the memory that is
    there, so a budget that was cut to other responses is no reason for regret.
    """
    actor, facts = next((e for e in plan.roles if e.generation is not None), None), facts.drafting(plan.draft_tokens)
    if actor is None or actor.generation is None:
        return plan
    layouts, pool = layouts_of(actor, plan), plan.generation_pool_of(actor.role)
    assert layouts.generation is not None, "the actor generates"
    there, shape = facts.on(pool.device), facts.roles[actor.role].shape
    need = int(kv_budget_bytes(there, shape, layouts.generation, layouts.steady_steps)[0])
    whole = _budgeted(plan, actor, need)
    peak = pool_memory(whole, pool, facts)
    generates = any(c.key == peak.peak_call and c.kind == "generate" for c in facts.dataflow.calls)
    excess = peak.used_bytes - (peak.usable_bytes or peak.capacity_bytes)
    return _budgeted(plan, actor, max(need - excess, 0)) if excess > 0 and generates else whole


def _budgeted(plan: Plan, actor: RolePlan, num_bytes: int) -> Plan:
    assert actor.generation is not None, "the actor generates"
    engine = actor.generation.model_copy(update={"kv_cache_bytes": num_bytes})
    entry = actor.model_copy(update={"generation": engine})
    return plan.model_copy(update={"roles": tuple(entry if e is actor else e for e in plan.roles)})


def play_plans(plans: Sequence[Plan], facts: Facts) -> list[float | None]:
    """Iteration of each plan in seconds, in order; ``None`` for one that cannot run under ``facts``."""
    fitting = [plan for plan in plans if not check_plan(plan, facts)]
    plain = [plan for plan in fitting if is_plain(plan) and set(plan.gpus) == {facts.group.device}]
    durations = priced(plain, facts)
    times = {id(plan): _end_s(plan, facts, own) for plan, own in zip(plain, durations, strict=True)}
    times |= {id(plan): simulate(plan, facts).iteration_s for plan in fitting if id(plan) not in times}
    return [times.get(id(plan)) for plan in plans]


def is_plain(plan: Plan) -> bool:
    """Whether every role does everything on its own pool, in a synchronous iteration, without host memory."""
    moved = any(entry.separate_generation or entry.offload for entry in plan.roles)
    return plan.schedule == "sync" and plan.resharding == "hybridflow" and not moved


def priced(plans: Sequence[Plan], facts: Facts) -> list[dict[str, float]]:
    """Seconds of every call of each (plain) plan by call key."""
    if not plans:
        return []
    flow = facts.dataflow
    fixed = {call.key: float(controller_cost(facts, call).time.s) for call in flow.calls if is_controller(call)}
    out = [dict(fixed) for _ in plans]
    for role in flow.roles:
        entries = [plan.role(role).model_copy(update={"pool": ""}) for plan in plans]
        distinct = list(dict.fromkeys(entries))
        at = {entry: i for i, entry in enumerate(distinct)}
        for key, cost in role_costs(facts, role, stacked(distinct)).items():
            seconds = cost.time.s
            for mine, entry in zip(out, entries, strict=True):
                mine[key] = float(seconds[at[entry]])
    return out


def stacked(entries: Sequence[RolePlan]) -> RoleLayouts:
    """The layouts of one role in several plans by column; a stage is there in all of them or in none."""
    training = [entry.training for entry in entries if entry.training is not None]
    inference = [entry.inference for entry in entries if entry.inference is not None]
    generation = [entry.generation for entry in entries if entry.generation is not None]
    return RoleLayouts(
        training=Layouts.of(training) if training else None,
        inference=Layouts.of(inference) if inference else None,
        generation=GenerationLayouts.of(generation) if generation else None,
    )


def _end_s(plan: Plan, facts: Facts, durations: dict[str, float]) -> float:
    return max(record.end_s for record in scheduled(plan, facts, durations))
