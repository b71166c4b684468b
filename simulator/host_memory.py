"""Host memory of one node that a plan needs: what is offloaded, what sleeps, what a checkpoint stages.

Only what follows from the plan is counted. Loading weights, data loaders, the object store and the pinned buffers of
the engines come on top; a job does not state them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiles.units import DTYPE_BYTES
from simulator.cost import engine_memory, memory
from simulator.cost.role_layouts import head_of, layouts_of

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import Plan, Pool, RolePlan


def host_bytes_per_node(plan: Plan, facts: Facts) -> dict[str, float]:
    """Bytes of host memory that the fullest node needs, by class.

    ``offloaded parameters`` and ``offloaded optimizer``: the shards that wait there, of every rank of the node.
    ``sleeping engine``: generation weights that an engine copies out instead of dropping. ``checkpoint``: parameters
    and optimizer states of the trained roles, which asynchronous saving stages once per rank
    (``torch.distributed.checkpoint.async_save`` keeps a whole copy of each rank's state until it is on disk).
    """
    nodes: dict[tuple[str, int], dict[str, float]] = {}
    for pool in plan.pools:
        per_gpu = _host_bytes_per_gpu(plan, pool, facts.on(pool.device))
        gpus_per_node = facts.on(pool.device).group.gpus_per_node
        for gpu in range(pool.first_gpu, pool.first_gpu + pool.num_gpus):
            node = nodes.setdefault((pool.device, gpu // gpus_per_node), {})
            for name, size in per_gpu.items():
                node[name] = node.get(name, 0.0) + size
    return max(nodes.values(), key=lambda classes: sum(classes.values()), default={})


def checkpoint_bytes(facts: Facts) -> dict[str, float]:
    """Bytes of a whole checkpoint by trained role: parameters as they rest and optimizer states, each once."""
    per_param = facts.training.param_bytes + facts.training.optimizer_bytes_per_param
    return {
        role: spec.shape.num_params_of(head_of(role)) * per_param
        for role, spec in facts.roles.items()
        if facts.dataflow.is_trained(role)
    }


def _host_bytes_per_gpu(plan: Plan, pool: Pool, facts: Facts) -> dict[str, float]:
    out: dict[str, float] = {}

    def add(name: str, size: float) -> None:
        out[name] = out.get(name, 0.0) + size

    for entry in plan.roles:
        if entry.pool == pool.name:
            for name, size in _states(entry, plan, facts).items():
                add(name, size)
        if entry.generation and not entry.separate_generation and entry.pool == pool.name:
            add("sleeping engine", _asleep(entry, plan, facts))
    return {name: size for name, size in out.items() if size > 0}


def _states(entry: RolePlan, plan: Plan, facts: Facts) -> dict[str, float]:
    trained = facts.dataflow.is_trained(entry.role)
    layouts = layouts_of(entry, plan).weights
    shape = facts.roles[entry.role].shape
    resident = memory.resident_bytes(facts, shape, head_of(entry.role), layouts, trained)
    states = {name: float(size[0]) for name, size in resident.items()}
    away = ("parameters", *entry.offload) if "swap" in entry.offload else entry.offload
    out = {f"offloaded {name}": states[name] for name in away if name in states}
    if trained:
        out["checkpoint"] = states["parameters"] + states["optimizer"]
    return out


def _asleep(entry: RolePlan, plan: Plan, facts: Facts) -> float:
    if facts.implementation.sleeping_engine != "keeps-weights":
        return 0.0
    spec, layout = facts.roles[entry.role], layouts_of(entry, plan).generation
    assert layout is not None, f"{entry.role} generates"
    return float(engine_memory.generation_weight_bytes(spec.shape, layout, DTYPE_BYTES[spec.precision])[0])
