"""Safe pruning against a known choice: leave out what cannot be part of anything better.

Every rule is a necessary condition for an iteration of at most ``limit`` ticks, so the best choice, if it beats the
known one, survives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.makespan import waiting_ticks

if TYPE_CHECKING:
    from mapper.instance import Instance
    from profiles.records import Ints


def prune_beyond(x: Instance, limit: int) -> tuple[Instance, dict[str, Ints]]:
    """``x`` without rows and pool sizes that no choice within ``limit`` can use, and the kept rows by role.

    First rows go that make any path through one of their calls too long, then what the pools rule out. A set on a size stays if the shortest loads of its roles, one after another, and what the pool must wait for
    end by ``limit``, and if the GPUs that are left could hold the other roles' smallest pools. A row stays if it
    does so in some set that stays, in time and in memory.
    """
    x, on_time = _on_time(x, limit)
    load = {role: np.sum(list(ticks.values()), axis=0) for role, ticks in x.ticks.items() if role in x.tables}
    keep = {role: np.zeros(len(table), dtype=bool) for role, table in x.tables.items()}
    sizes: dict[tuple[str, ...], tuple[int, ...]] = {}
    fewest = {role: _fewest_gpus(x, role, load[role], limit) for role in x.tables}
    for roles, candidates in x.sizes.items():
        wait = waiting_ticks(x, roles)
        outside = max((fewest[role] for role in x.tables if role not in roles), default=0)
        sizes[roles] = tuple(
            n for n in candidates if n <= x.num_gpus - outside and _mark(x, roles, n, load, limit - wait, keep)
        )
    kept = {role: np.flatnonzero(mask) for role, mask in keep.items()}
    whole = {role: on_time[role][rows] for role, rows in kept.items()}
    return _restricted(replace(x, sizes=sizes), kept), whole


def _on_time(x: Instance, limit: int) -> tuple[Instance, dict[str, Ints]]:
    """``x`` without rows with a call that cannot be on a path of at most ``limit``, whatever else is chosen.

    What must come before and after a call takes at least the shortest duration that any row has for it. Dropping rows
    raises those, so it is done twice.
    """
    kept = {role: np.arange(len(table)) for role, table in x.tables.items()}
    for _ in range(2):
        shortest = {key: int(t.min(initial=limit + 1)) for calls in x.ticks.values() for key, t in calls.items()}
        before, after = _shortest_before(x, shortest), _shortest_after(x, shortest)
        good = {
            role: np.flatnonzero(
                np.all([before[key] + t + after[key] <= limit for key, t in x.ticks[role].items()], axis=0)
            )
            for role in x.tables
        }
        x, kept = _restricted(x, good), {role: kept[role][rows] for role, rows in good.items()}
    return x, kept


def _shortest_before(x: Instance, shortest: dict[str, int]) -> dict[str, int]:
    """Ticks that pass at least before each call starts: the longest path of shortest durations to it."""
    out: dict[str, int] = {}
    for call in x.flow.calls:
        out[call.key] = max((out[key] + shortest[key] for key in call.inputs), default=0)
    return out


def _shortest_after(x: Instance, shortest: dict[str, int]) -> dict[str, int]:
    """Ticks that pass at least after each call has ended."""
    out = {call.key: 0 for call in x.flow.calls}
    for call in reversed(x.flow.calls):
        for key in call.inputs:
            out[key] = max(out[key], shortest[call.key] + out[call.key])
    return out


def _fewest_gpus(x: Instance, role: str, load: Ints, limit: int) -> int:
    """The smallest pool on which the role alone could end by ``limit``."""
    fast = load + waiting_ticks(x, (role,)) <= limit
    return int(x.tables[role].num_gpus[fast].min(initial=x.num_gpus))


def _mark(
    x: Instance, roles: tuple[str, ...], num_gpus: int, load: dict[str, Ints], limit: int, keep: dict[str, np.ndarray]
) -> bool:
    """Mark the rows that could serve this set on this size; whether every role has one."""
    rows = {role: x.rows(role, num_gpus) for role in roles}
    least = {role: int(load[role][r].min()) for role, r in rows.items()}
    resident = {role: int(x.resident_mib[role][r].min()) for role, r in rows.items()}
    transient = {role: int(x.transient_mib[role][r].min()) for role, r in rows.items()}
    good = {}
    for role, r in rows.items():
        others = [o for o in roles if o != role]
        time = load[role][r] + sum(least[o] for o in others)
        peak = np.maximum(x.transient_mib[role][r], max((transient[o] for o in others), default=0))
        need = x.resident_mib[role][r] + sum(resident[o] for o in others) + peak
        good[role] = r[(time <= limit) & (need <= x.capacity_mib)]
    if any(len(g) == 0 for g in good.values()):
        return False
    for role, g in good.items():
        keep[role][g] = True
    return True


def _restricted(x: Instance, kept: dict[str, Ints]) -> Instance:
    """``x`` with only the kept rows of each table."""
    return replace(
        x,
        tables={role: table.take(kept[role]) for role, table in x.tables.items()},
        ticks={
            role: {key: t[kept[role]] if role in kept else t for key, t in calls.items()}
            for role, calls in x.ticks.items()
        },
        resident_mib={role: m[kept[role]] for role, m in x.resident_mib.items()},
        transient_mib={role: m[kept[role]] for role, m in x.transient_mib.items()},
    )
