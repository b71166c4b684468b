"""Brute force over the exact space of the solver: every placement, allocation and combination that fits in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mapper.analysis.algorithm1 import allocations
from mapper.candidates.pareto import non_dominated_by_group
from mapper.execution_mode import GENERATOR
from mapper.model.choices import senders
from mapper.model.makespan import makespan
from mapper.model.variables import Choice
from simulator.plan.dataflow import CONTROLLER

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from mapper.problem import ColocationGroup, Placement
    from profiles.records import Floats, Ints


@dataclass(frozen=True, eq=False)
class _Combos:
    """Configurations of one set on one size that fit together: durations ``[K, calls]`` and rows ``[K, roles]``."""

    ticks: Ints
    rows: Ints


def exhaustive(instance: Instance, limit_ticks: int | None = None) -> tuple[Choice | None, int]:
    """The best choice of ``instance`` and its ticks, by brute force; ``(None, 0)`` if nothing fits.

    Inside a set, a combination that is no faster in any call than another is left out: the makespan never falls
    when a duration grows, so nothing is lost. With ``limit_ticks`` only choices that take no longer are looked
    for, which is what it takes to confirm or refute a claimed optimum; without it everything is.
    """
    best = min(best_by_gpus(instance, limit_ticks).values(), key=lambda found: found[1], default=(None, 0))
    return best[0], max(best[1], 0)


def best_by_gpus(instance: Instance, limit_ticks: int | None = None) -> dict[int, tuple[Choice, int]]:
    """The best choice on exactly so many GPUs and its ticks, where there is one; all in one pass."""
    limit = int(sum(max(t.max(), 0) for c in instance.ticks.values() for t in c.values() if len(t)))
    limit = limit if limit_ticks is None else limit_ticks
    best: dict[int, tuple[Choice, int]] = {}
    combos: dict[tuple[ColocationGroup, int], _Combos] = {}
    for partition in instance.partitions:
        for sizes in allocations(instance, partition):
            pools = tuple(zip(partition, sizes, strict=True))
            for pool in pools:
                if pool not in combos:
                    combos[pool] = _combine(instance, *pool, limit)
            if any(len(combos[pool].rows) == 0 for pool in pools):
                continue
            ticks, rows = _best_of(instance, partition, [combos[pool] for pool in pools])
            if ticks <= limit and (sum(sizes) not in best or ticks < best[sum(sizes)][1]):
                best[sum(sizes)] = Choice(pools, rows), ticks
    return best


def _combine(instance: Instance, group: ColocationGroup, num_gpus: int, limit: int) -> _Combos:
    """Every combination of the group's configurations that fits, less the dominated ones.

    Roles join one by one. A partial combination is dropped when it needs more memory than there is, when its own
    calls cannot end by ``limit`` whatever joins, or when another is no worse in time and memory.
    """
    roles, capacity = group.roles, instance.capacity_mib[group.device_type]
    load = {role: instance.turns(role)[instance.rows(role, group, num_gpus)] for role in roles}
    joining = sum(int(v.min()) for v in load.values()) + waiting_ticks(instance, group)
    ticks = np.zeros((1, 0), dtype=np.int64)
    chosen = np.zeros((1, 0), dtype=np.int64)
    busy = np.zeros(1, dtype=np.int64)
    need = np.zeros((1, 2), dtype=np.int64)  # resident sum, largest transient
    for role in roles:
        rows = instance.rows(role, group, num_gpus)
        own = np.stack([t[rows] for t in instance.ticks[role].values()], axis=1)
        left, right = (a.ravel() for a in np.meshgrid(np.arange(len(ticks)), np.arange(len(rows)), indexing="ij"))
        resident = need[left, 0] + instance.resident_mib[role][rows][right]
        transient = np.maximum(need[left, 1], instance.transient_mib[role][rows][right])
        joining -= int(load[role].min())
        busy = busy[left] + load[role][right]
        fits = np.flatnonzero((resident + transient <= capacity) & (busy + joining <= limit))
        left, right = left[fits], right[fits]
        ticks, busy = np.concatenate([ticks[left], own[right]], axis=1), busy[fits]
        chosen = np.concatenate([chosen[left], rows[right][:, None]], axis=1)
        need = np.stack([resident[fits], transient[fits]], axis=1)
        kept = _undominated(instance, roles[: roles.index(role) + 1], ticks, need, chosen)
        ticks, busy, chosen, need = ticks[kept], busy[kept], chosen[kept], need[kept]
    final = _undominated(instance, roles, ticks, need[:, :0], chosen)
    return _Combos(ticks[final], chosen[final])


def _undominated(instance: Instance, roles: tuple[str, ...], ticks: Ints, need: Ints, rows: Ints) -> Ints:
    """Combinations worth keeping: compared on every run of calls that follow each other directly, and memory.

    Only with those whose transfer of weights costs the same (``rows`` are the chosen ones, by role).
    """
    if not len(ticks):
        return np.zeros(0, dtype=np.int64)
    keys = [key for role in roles for key in instance.ticks[role]]
    stage = {call.key: _segment(instance, call.key) for call in instance.flow.calls}
    segments = sorted({stage[key] for key in keys})
    loads = [ticks[:, [i for i, key in enumerate(keys) if stage[key] == s]].sum(axis=1) for s in segments]
    values = np.concatenate([np.stack(loads, axis=1), need], axis=1).astype(np.float64)
    return non_dominated_by_group(_transfer_key(instance, roles, rows), values)


def _transfer_key(instance: Instance, roles: tuple[str, ...], rows: Ints) -> Ints:
    """What a transfer of weights between two pools depends on at this end: equal numbers, equal price."""
    key = np.zeros(len(rows), dtype=np.int64)
    if instance.sync is None:
        return key
    for role, chosen in zip(roles, rows.T, strict=True):
        if role == GENERATOR:
            key = key * 2**20 + chosen
        elif role == "actor":
            key = key * 2**20 + senders(instance)[chosen]
    return key


def _segment(instance: Instance, key: str) -> str:
    """What a call's duration may be added up with, without loss: the transition with the generation it precedes.

    For algorithms whose preparation only waits for one generation, all scoring of a set runs back to back too, and
    so do its training calls; ReMax and Safe-RLHF interleave other inputs, so there each call stands alone.
    """
    call = next(c for c in instance.flow.calls if c.key == key)
    if call.kind in ("transition", "generate") and instance.sync is not None:
        return call.key
    if call.kind in ("transition", "generate"):
        return "generate" if call.key in ("transition", "generate_sequences") else call.key
    same_inputs = [c for c in instance.flow.calls if c.stage == call.stage and c.role != CONTROLLER]
    if len({c.inputs for c in same_inputs}) == 1:
        return call.stage
    return call.key


def _best_of(instance: Instance, partition: Placement, sets: list[_Combos]) -> tuple[int, dict[str, int]]:
    """The fastest cross product of the sets' combinations."""
    shape = [len(c.rows) for c in sets]
    durations: dict[str, Floats] = {key: t.astype(np.float64)[0] for key, t in instance.ticks[CONTROLLER].items()}
    for axis, (group, combos) in enumerate(zip(partition, sets, strict=True)):
        keys = [key for role in group.roles for key in instance.ticks[role]]
        view = [1] * len(shape)
        view[axis] = shape[axis]
        for i, key in enumerate(keys):
            durations[key] = combos.ticks[:, i].reshape(view).astype(np.float64)
    if instance.sync is not None:
        durations["transition"] = _transfers(instance, partition, sets)
    ends = np.broadcast_to(makespan(instance, partition, durations), shape)
    at = np.unravel_index(int(np.argmin(ends)), shape)
    rows = {
        role: int(combos.rows[i, j])
        for group, combos, i in zip(partition, sets, at, strict=True)
        for j, role in enumerate(group.roles)
    }
    return int(ends[at]), rows


def _transfers(instance: Instance, partition: Placement, sets: list[_Combos]) -> Floats:
    """Ticks of the transfer of weights for each pair of trainer and engine, on the axes of their groups."""
    assert instance.sync is not None, "the actor generates on a dedicated pool"
    at = {role: (i, j) for i, group in enumerate(partition) for j, role in enumerate(group.roles)}
    (a, j), (b, k) = at["actor"], at[GENERATOR]
    sending = senders(instance)[sets[a].rows[:, j]]
    engines = sets[b].rows[:, k]
    ticks = np.zeros((len(sending), len(engines)))
    for n in np.unique(sending).tolist():
        ticks[sending == n] = instance.sync.ticks(instance.tables[GENERATOR], partition[a].device_type, n)[engines]
    view = [1] * len(sets)
    view[a], view[b] = ticks.shape
    return (ticks if a < b else ticks.T).reshape(view)


def waiting_ticks(instance: Instance, group: ColocationGroup) -> int:
    """Ticks that a pool must wait at least: for the advantages, and for a first generation if it is elsewhere.

    Where generation and training run at once neither is sure, so nothing is counted.
    """
    if _overlapped(instance):
        return 0
    wait = int(instance.ticks[CONTROLLER]["compute_advantage"][0])
    if any(instance.flow.generates(role) for role in group.roles):
        return wait
    owner = next(role for role in instance.tables if instance.flow.generates(role))
    first = [instance.ticks[owner][key] for key in ("transition", "generate_sequences")]
    return wait + int(np.sum(first, axis=0).min())


def _overlapped(instance: Instance) -> bool:
    """Whether nothing waits for this iteration's generation."""
    return not any("generate_sequences" in call.inputs for call in instance.flow.calls)
