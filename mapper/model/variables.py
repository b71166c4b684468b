"""Decision variables: which placement, which pool size for each set, which configuration for each role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mapper.model.cp_sat import cp_model
    from mapper.model.instance import Instance
    from mapper.problem import ColocationGroup, Placement

PoolKey = tuple["ColocationGroup", int]


@dataclass(frozen=True, eq=False)
class Variables:
    """What the solver decides, and what follows from it.

    Booleans ``partition``, ``shared[group]`` (it has a pool), ``pool[group, size]``, ``pick[role][row]``; integers
    ``resident[role]`` and ``transient[role]`` in MiB, ``duration[call]`` and ``end[call]`` in ticks.
    """

    partition: dict[Placement, cp_model.IntVar]
    shared: dict[ColocationGroup, cp_model.IntVar]
    pool: dict[PoolKey, cp_model.IntVar]
    pick: dict[str, list[cp_model.IntVar]]
    resident: dict[str, cp_model.IntVar]
    transient: dict[str, cp_model.IntVar]
    duration: dict[str, cp_model.IntVar]
    end: dict[str, cp_model.IntVar]
    makespan: cp_model.IntVar


def make_variables(model: cp_model.CpModel, instance: Instance) -> Variables:
    """Create the variables of ``instance`` in ``model``."""
    longest = {key: int(t.max(initial=0)) for calls in instance.ticks.values() for key, t in calls.items()}
    horizon = sum(longest.values())
    return Variables(
        partition={p: model.new_bool_var(f"partition {p}") for p in instance.partitions},
        shared={s: model.new_bool_var(f"set {s}") for s in instance.sizes},
        pool={(s, n): model.new_bool_var(f"pool {s} {n}") for s, sizes in instance.sizes.items() for n in sizes},
        pick={role: [model.new_bool_var(f"{role} {i}") for i in range(len(t))] for role, t in instance.tables.items()},
        resident={
            role: model.new_int_var(0, int(m.max(initial=0)), f"resident {role}")
            for role, m in instance.resident_mib.items()
        },
        transient={
            role: model.new_int_var(0, int(m.max(initial=0)), f"transient {role}")
            for role, m in instance.transient_mib.items()
        },
        duration={key: model.new_int_var(0, most, f"duration {key}") for key, most in longest.items()},
        end={call.key: model.new_int_var(0, horizon, f"end {call.key}") for call in instance.flow.calls},
        makespan=model.new_int_var(0, horizon, "makespan"),
    )


@dataclass(frozen=True)
class Choice:
    """What a search decides: pools as ``(group, GPUs)`` and the chosen row of each role's table."""

    pools: tuple[PoolKey, ...]
    rows: dict[str, int]


def extract(solver: cp_model.CpSolver, v: Variables) -> Choice:
    """Read the decision out of a solved model."""
    pools = tuple(key for key, var in v.pool.items() if solver.boolean_value(var))
    rows = {role: next(i for i, var in enumerate(picks) if solver.boolean_value(var)) for role, picks in v.pick.items()}
    return Choice(pools, rows)


def hint(model: cp_model.CpModel, v: Variables, choice: Choice) -> None:
    """Offer a known choice to the solver as a starting point."""
    for key, var in v.pool.items():
        model.add_hint(var, key in choice.pools)
    for role, picks in v.pick.items():
        for i, var in enumerate(picks):
            model.add_hint(var, choice.rows.get(role) == i)
