"""A choice made a plan: pools on concrete GPUs, layouts by role."""

from __future__ import annotations

from itertools import islice, permutations
from typing import TYPE_CHECKING

from mapper.execution_mode import GENERATOR
from mapper.problem import ColocationGroup
from mapper.search.cache_room import with_rest_in_cache
from mapper.search_options import FROZEN_OFFLOADS, OFFLOADS
from simulator.plan.plan import Plan, Pool, RolePlan, placement_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mapper.model.instance import Instance
    from mapper.model.variables import Choice
    from mapper.problem import Placement, Problem
    from profiles.hardware import ClusterGroup
    from simulator.facts import Facts
    from simulator.plan.plan import GenerationLayout, Offload


def build_plan(instance: Instance, choice: Choice, problem: Problem) -> Plan:
    """Put the chosen pools on GPUs of their kinds and the roles on the pools."""
    order = {group: min(instance.flow.roles.index(r) for r in group.roles) for group, _ in choice.pools}
    pools = sorted(choice.pools, key=lambda pool: order[pool[0]])
    names = {group: _letter(i) for i, (group, _) in enumerate(pools)}
    first = _first_gpus(instance, problem, pools)
    entries = _roles(instance, choice, problem, names)
    plan = Plan(
        algorithm=problem.facts.algorithm,
        placement=placement_name(tuple(group.roles for group, _ in pools)),
        pools=tuple(
            Pool(
                name=names[group],
                device=group.device_type,
                first_gpu=first[group],
                num_gpus=n,
                roles=tuple(r for r in group.roles if r != GENERATOR),
            )
            for group, n in pools
        ),
        roles=tuple(sorted(entries, key=lambda e: problem.facts.dataflow.roles.index(e.role))),
        schedule=problem.mode.schedule,
        steps_in_flight=problem.mode.steps_in_flight,
        in_flight_updates=problem.mode.in_flight_updates,
    )
    return with_rest_in_cache(plan, problem.facts)


def _roles(instance: Instance, choice: Choice, problem: Problem, names: dict[ColocationGroup, str]) -> list[RolePlan]:
    """The roles of all pools as they were chosen, each in the pool that ``names`` its group."""
    engine, where = _generator(instance, choice, names)
    entries = []
    for group, _ in choice.pools:
        for role in (r for r in group.roles if r != GENERATOR):
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
    return entries


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
    """Who shares GPUs with whom in a plan, and of which kind; an engine on a dedicated pool is the generator."""
    order = ("actor", GENERATOR, *(entry.role for entry in plan.roles if entry.role != "actor"))
    return tuple(ColocationGroup(tuple(sorted(plan.members(p), key=order.index)), p.device) for p in plan.pools)


def _first_gpus(
    instance: Instance, problem: Problem, pools: list[tuple[ColocationGroup, int]]
) -> dict[ColocationGroup, int]:
    """Where each pool starts among the GPUs of its kind."""
    first: dict[ColocationGroup, int] = {}
    for device_type in instance.device_types:
        of_kind = [(group, n) for group, n in pools if group.device_type == device_type]
        where = problem.facts.on(device_type).group
        starts = first_gpus([n for _, n in of_kind], where, problem.gpus[device_type] // where.gpus_per_node)
        first |= {group: start for (group, _), start in zip(of_kind, starts, strict=True)}
    return first


def _generator(
    instance: Instance, choice: Choice, names: dict[ColocationGroup, str]
) -> tuple[GenerationLayout | None, str | None]:
    """The engine of an actor that generates on a dedicated pool, and that pool's name."""
    for group, name in names.items():
        if GENERATOR in group.roles:
            return instance.tables[GENERATOR].records(choice.rows[GENERATOR])[2], name
    return None, None


def _letter(i: int) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i]


MOST_ORDERS = 5040
"""Orders of the pools that are tried: all of up to seven."""


def first_gpus(sizes: Sequence[int], group: ClusterGroup, nodes: int) -> list[int]:
    """The first GPU of each pool of ``sizes`` GPUs, of which ``nodes`` nodes of ``group`` hold all.

    Pools of whole nodes in the order that lets the fewest of them straddle more pods than they must, of several such
    orders the one nearest to largest first; slices of nodes behind them by size, so that none straddles a node.
    """
    per_node = group.gpus_per_node
    whole = sorted((i for i, n in enumerate(sizes) if n >= per_node), key=lambda i: (-sizes[i], i))
    slices = sorted((i for i, n in enumerate(sizes) if n < per_node), key=lambda i: (-sizes[i], i))
    rest = -(-sum(sizes[i] for i in slices) // per_node)
    starts = _best_order([sizes[i] // per_node for i in whole], nodes - rest, pod_nodes(group))
    first = {i: start * per_node for i, start in zip(whole, starts, strict=True)}
    at = max((first[i] + sizes[i] for i in whole), default=0)
    for i in slices:
        first[i], at = at, at + sizes[i]
    return [first[i] for i in range(len(sizes))]


def pod_nodes(group: ClusterGroup) -> int:
    """Nodes of a pod; 0 where nothing joins some nodes more closely than others."""
    if group.nodes_per_pod:
        return group.nodes_per_pod
    return group.nvlink_domain_gpus // group.gpus_per_node if group.nvlink_domain_gpus > group.gpus_per_node else 0


def pods_of(first_gpu: int, num_gpus: int, group: ClusterGroup) -> int:
    """How many pods a pool touches; 1 where there are none."""
    pod = pod_nodes(group) * group.gpus_per_node
    return (first_gpu + num_gpus - 1) // pod - first_gpu // pod + 1 if pod else 1


def straddles(first_gpu: int, num_gpus: int, group: ClusterGroup) -> bool:
    """Whether a pool touches more pods than its size needs."""
    pod = pod_nodes(group) * group.gpus_per_node
    return bool(pod) and pods_of(first_gpu, num_gpus, group) > -(-num_gpus // pod)


def _best_order(nodes_of: list[int], nodes: int, pod: int) -> list[int]:
    """Start node of each pool, for the best of the orders."""
    best: tuple[int, list[int]] | None = None
    for order in islice(permutations(range(len(nodes_of))), MOST_ORDERS):
        starts = _laid_out([nodes_of[i] for i in order], nodes, pod)
        split = sum(_extra_pods(s, nodes_of[i], pod) for i, s in zip(order, starts, strict=True))
        if best is None or split < best[0]:
            placed = dict(zip(order, starts, strict=True))
            best = (split, [placed[i] for i in range(len(nodes_of))])
        if best[0] == 0:
            break
    assert best is not None, "there is always one order"
    return best[1]


def _laid_out(sizes: list[int], nodes: int, pod: int) -> list[int]:
    """Starts of pools in a row, each moved to the next pod where that saves a split and there are nodes to skip."""
    spare, at, starts = nodes - sum(sizes), 0, []
    for size in sizes:
        gap = -at % pod if pod else 0
        if gap and gap <= spare and _extra_pods(at, size, pod):
            at, spare = at + gap, spare - gap
        starts.append(at)
        at += size
    return starts


def _extra_pods(start: int, size: int, pod: int) -> int:
    return (start + size - 1) // pod - start // pod + 1 - -(-size // pod) if pod else 0
