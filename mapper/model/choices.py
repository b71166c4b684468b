"""What a choice is worth, and whether an instance contains it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.execution_mode import ROLLOUT
from mapper.model.makespan import makespan

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from mapper.model.variables import Choice
    from mapper.problem import Group
    from profiles.records import Ints


def ticks_of(x: Instance, choice: Choice) -> int:
    """Ticks of an iteration of ``choice``."""
    if x.neighbours is not None:
        return x.neighbours.ticks(x, choice)
    durations = {
        key: np.asarray(t[choice.rows.get(role, 0)], dtype=np.float64)
        for role, calls in x.ticks.items()
        for key, t in calls.items()
    }
    if x.sync is not None:
        durations["transition"] = np.asarray(transfer_ticks(x, choice), dtype=np.float64)
    return int(makespan(x, tuple(group for group, _ in choice.pools), durations))


def transfer_ticks(x: Instance, choice: Choice) -> int:
    """Ticks of the transfer of weights between the pools of a choice."""
    assert x.sync is not None, "the actor generates on a pool of its own"
    row = choice.rows[ROLLOUT]
    kind = next(group.kind for group, _ in choice.pools if "actor" in group.roles)
    engine = x.tables[ROLLOUT].take(np.asarray([row]))
    return int(x.sync.ticks(engine, kind, int(senders(x)[choice.rows["actor"]]))[0])


def senders(x: Instance) -> Ints:
    """GPUs that hold the actor's weights for each of its rows: those that send them to another pool."""
    return x.tables["actor"].layouts.weights.num_gpus


def fits(x: Instance, choice: Choice) -> bool:
    """Whether the pools of ``choice`` are there, and hold their rows and their memory."""
    if {group for group, _ in choice.pools} not in [set(p) for p in x.partitions]:
        return False
    used = {kind: sum(n for group, n in choice.pools if group.kind == kind) for kind in x.kinds}
    if any(n > x.gpus[kind] for kind, n in used.items()) or x.spent(choice.pools) > x.budget:
        return False
    if x.equal_sizes and len({n for _, n in choice.pools}) > 1:
        return False
    return all(n in x.sizes[group] and _pool_holds(x, group, n, choice) for group, n in choice.pools)


def _pool_holds(x: Instance, group: Group, num_gpus: int, choice: Choice) -> bool:
    rows, kind = {role: choice.rows[role] for role in group.roles}, x.kinds.index(group.kind)
    if any(int(x.tables[r].kind[i]) != kind for r, i in rows.items()):
        return False
    need = sum(int(x.resident_mib[r][i]) for r, i in rows.items()) + max(
        int(x.transient_mib[r][i]) for r, i in rows.items()
    )
    return need <= x.capacity_mib[group.kind] and all(int(x.tables[r].num_gpus[i]) <= num_gpus for r, i in rows.items())


def with_budget(x: Instance, budget: int) -> Instance:
    """The same priced tables where all pools together may count at most ``budget``."""
    left = {g: tuple(n for n in sizes if n * x.weight[g.kind] <= budget) for g, sizes in x.sizes.items()}
    return replace(x, budget=min(budget, x.budget), sizes=left)


def gpus_of(choice: Choice) -> int:
    """GPUs of all pools of a choice."""
    return sum(n for _, n in choice.pools)
