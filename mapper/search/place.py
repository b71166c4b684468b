"""A choice made a plan: pools on concrete GPUs, layouts by role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mapper.execution_mode import ROLLOUT
from mapper.problem import Group
from mapper.search.packing import first_gpus, pods_of, straddles
from mapper.search_options import FROZEN_OFFLOADS, OFFLOADS
from simulator.plan.plan import Plan, Pool, RolePlan, placement_name

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from mapper.model.variables import Choice
    from mapper.problem import Placement, Problem
    from simulator.facts import Facts
    from simulator.plan.plan import GenerationLayout, Offload


def build_plan(instance: Instance, choice: Choice, problem: Problem) -> Plan:
    """Put the chosen pools on GPUs of their kinds and the roles on the pools."""
    order = {group: min(instance.flow.roles.index(r) for r in group.roles) for group, _ in choice.pools}
    pools = sorted(choice.pools, key=lambda pool: order[pool[0]])
    names = {group: _letter(i) for i, (group, _) in enumerate(pools)}
    first = _first_gpus(instance, problem, pools)
    engine, where = _rollout(instance, choice, names)
    entries = []
    for group, _ in pools:
        for role in (r for r in group.roles if r != ROLLOUT):
            training, inference, generation = instance.tables[role].records(choice.rows[role])
            elsewhere = engine is not None and problem.facts.dataflow.generates(role)
            entries.append(
                RolePlan(
                    role=role,
                    pool=names[group],
                    training=training,
                    inference=inference,
                    generation=engine if elsewhere else generation,
                    generation_pool=where if elsewhere else None,
                    offload=offload_of(instance, problem, role, choice.rows[role]),
                )
            )
    return Plan(
        algorithm=problem.facts.algorithm,
        placement=placement_name(tuple(group.roles for group, _ in pools)),
        pools=tuple(
            Pool(
                name=names[group],
                device=group.kind,
                first_gpu=first[group],
                num_gpus=n,
                roles=tuple(r for r in group.roles if r != ROLLOUT),
            )
            for group, n in pools
        ),
        roles=tuple(sorted(entries, key=lambda e: problem.facts.dataflow.roles.index(e.role))),
        schedule=problem.mode.schedule,
        steps_in_flight=problem.mode.steps_in_flight,
        in_flight_updates=problem.mode.in_flight_updates,
    )


def straddling(plan: Plan, facts: Facts) -> tuple[str, ...]:
    """Which pools touch more pods than their size needs, one line each."""
    groups = {pool.name: facts.on(pool.device).group for pool in plan.pools}
    return tuple(
        f"pool {p.name} lies in {pods_of(p.first_gpu, p.num_gpus, groups[p.name])} pods, since no order of the pools "
        "keeps all inside; its price does not know"
        for p in plan.pools
        if straddles(p.first_gpu, p.num_gpus, groups[p.name])
    )


def offload_of(instance: Instance, problem: Problem, role: str, row: int) -> tuple[Offload, ...]:
    """What waits in host memory in a row of a role's table."""
    options = OFFLOADS if problem.facts.dataflow.is_trained(role) else FROZEN_OFFLOADS
    return options[int(instance.tables[role].offload[row])]


def placement_of(plan: Plan) -> Placement:
    """Who shares GPUs with whom in a plan, and of which kind; an engine with a pool of its own is the rollout."""
    order = ("actor", ROLLOUT, *(entry.role for entry in plan.roles if entry.role != "actor"))
    return tuple(Group(tuple(sorted(plan.members(p), key=order.index)), p.device) for p in plan.pools)


def _first_gpus(instance: Instance, problem: Problem, pools: list[tuple[Group, int]]) -> dict[Group, int]:
    """Where each pool starts among the GPUs of its kind."""
    first: dict[Group, int] = {}
    for kind in instance.kinds:
        of_kind = [(group, n) for group, n in pools if group.kind == kind]
        where = problem.facts.on(kind).group
        starts = first_gpus([n for _, n in of_kind], where, problem.gpus[kind] // where.gpus_per_node)
        first |= {group: start for (group, _), start in zip(of_kind, starts, strict=True)}
    return first


def _rollout(instance: Instance, choice: Choice, names: dict[Group, str]) -> tuple[GenerationLayout | None, str | None]:
    """The engine of an actor that generates on a pool of its own, and that pool's name."""
    for group, name in names.items():
        if ROLLOUT in group.roles:
            return instance.tables[ROLLOUT].records(choice.rows[ROLLOUT])[2], name
    return None, None


def _letter(i: int) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i]
