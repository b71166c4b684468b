"""Safe pruning by prices: what memory, GPUs and time on the longest path are worth is taken into account all at once.

``prune`` asks of each row whether it can be part of anything faster with all else as fast as can be. But what else is
fast needs memory and GPUs too. Here a MiB and a GPU cost ticks, and a call counts by how much of the longest path runs
through it (Lagrange multipliers). A choice that fits pays for no more than there is; so its iteration takes at least
what its rows take and pay, less the price of all that there is. Whatever the prices are, a row is in no choice within
``limit`` if even the cheapest choice with it is above. Good prices make that sharp, and subgradient steps find them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.model.makespan import waits_for
from mapper.model.unpriced import NONE_RUNS
from mapper.search.prune import restricted
from simulator.plan.dataflow import CONTROLLER

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from mapper.problem import ColocationGroup, Placement
    from profiles.records import Floats, Ints

STEPS = 150
"""Steps of the prices at most."""

PROGRESS = 0.01
"""Part of what a bound lacks of the limit by which a step has to raise it, or it counts as one in vain."""

PATIENCE = 6
"""Steps in vain after which they get half as long."""

SHORTEST = 0.02
"""Part of the first step's length at which they end."""

LEAST_SQUARE = 1e-4
"""Of what the cheapest choice takes beyond all that there is: where it is nearly that, prices stay small numbers."""

PATH_SHARE = 0.3
"""Part of the weight of the longest path that the first step hands to the path of the cheapest choice."""

UNSURE = 0.5
"""Ticks by which a sum of floats may be off, and is by far less."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """A role's rows on its group's kind, ascending in GPUs: their positions in its table and GPUs, ``[C]``.

    ``ticks`` ``[calls, C]`` of its calls, at positions ``calls`` of the dataflow; memory as part of a GPU's, ``[C]``.
    """

    row: Ints
    num_gpus: Ints
    calls: Ints
    ticks: Floats
    resident: Floats
    transient: Floats

    @staticmethod
    def of(instance: Instance, role: str, device_type: str) -> _Rows:
        """All of a role's rows on one kind of GPU."""
        row = instance.rows_on(role, device_type)
        row = row[np.argsort(instance.tables[role].num_gpus[row], kind="stable")]
        calls = [(i, call.key) for i, call in enumerate(instance.flow.calls) if call.role == role]
        capacity = max(instance.capacity_mib[device_type], 1)
        return _Rows(
            row=row,
            num_gpus=instance.tables[role].num_gpus[row],
            calls=np.asarray([i for i, _ in calls], dtype=np.int64),
            ticks=np.stack([instance.ticks[role][key][row].astype(np.float64) for _, key in calls]),
            resident=instance.resident_mib[role][row] / capacity,
            transient=instance.transient_mib[role][row] / capacity,
        )

    def take(self, index: Ints) -> _Rows:
        """The rows at ``index``."""
        rest = {name: getattr(self, name)[index] for name in ("row", "num_gpus", "resident", "transient")}
        return replace(self, ticks=self.ticks[:, index], **rest)


@dataclass(frozen=True, eq=False)
class _Prices:
    """Ticks for a GPU's whole memory beside each role's calls, for all GPUs of a kind, for the whole budget.

    And how much of the longest path runs through each call, by position.
    """

    memory: dict[str, float]
    gpus: dict[str, float]
    budget: float
    weight: Floats


@dataclass(frozen=True, eq=False)
class _Cheapest:
    """At some prices: ticks that no choice is below, and none with each size or row.

    Of the cheapest choice: ticks by call ``[calls]``, and what it takes beyond all that there is, as parts of that.
    """

    ticks: float
    with_size: dict[ColocationGroup, Floats]
    with_row: dict[str, Floats]
    durations: Floats
    memory: dict[str, float]
    gpus: dict[str, float]
    budget: float


def prune_by_prices(instance: Instance, limit: int) -> tuple[Instance, dict[str, Ints], int]:
    """What choices within ``limit`` can use; which rows are kept, by role; and ticks that no choice is below."""
    keep = {role: np.zeros(len(table), dtype=bool) for role, table in instance.tables.items()}
    partitions: list[Placement] = []
    sizes: dict[ColocationGroup, set[int]] = {}
    least = limit + 1
    for placement in instance.partitions:
        left = _Placed(instance, placement, limit)
        if not left.narrowed():
            continue
        partitions.append(placement)
        least = min(least, int(np.ceil(left.best - UNSURE)))
        for group in placement:
            sizes[group] = sizes.get(group, set()) | set(left.sizes[group].tolist())
            for role in group.roles:
                keep[role][left.rows[role].row] = True
    kept = {role: np.flatnonzero(mask) for role, mask in keep.items()}
    ordered = {group: tuple(sorted(mine)) for group, mine in sizes.items()}
    return restricted(replace(instance, partitions=tuple(partitions), sizes=ordered), kept), kept, least


class _Placed:
    """What one placement has left within ``limit``; ``best``: ticks that none of its choices is below."""

    def __init__(self, instance: Instance, placement: Placement, limit: int) -> None:
        self._x, self._limit, self.best = instance, limit, 0.0
        calls = [call.key for call in instance.flow.calls]
        waits = waits_for(instance, placement)
        self._waits = [[calls.index(key) for key in waits[call]] for call in calls]
        self._fixed = np.zeros(len(calls))
        for key, ticks in instance.ticks[CONTROLLER].items():
            self._fixed[calls.index(key)] = ticks[0]
        self.sizes = {group: np.asarray(instance.sizes[group], dtype=np.int64) for group in placement}
        self.rows = {r: _Rows.of(instance, r, group.device_type) for group in placement for r in group.roles}
        self._drop_small_sizes()

    def narrowed(self) -> bool:
        """Leave out what is above the limit, with ever better prices; whether anything is left."""
        if self._is_empty():
            return False
        shortest = self._fixed.copy()
        for rows in self.rows.values():
            shortest[rows.calls] = rows.ticks.min(axis=1)
        prices = _Prices(dict.fromkeys(self.rows, 0.0), dict.fromkeys(self._x.gpus, 0.0), 0.0, self._longest(shortest))
        length, in_vain = 1.0, 0
        for _ in range(STEPS):
            found = self._cheapest(prices)
            in_vain = 0 if found.ticks > self.best + PROGRESS * (self._limit - self.best) else in_vain + 1
            self.best = max(self.best, found.ticks)
            self._leave_out(found)
            if self.best > self._limit + UNSURE or self._is_empty():
                return False
            if in_vain > PATIENCE:
                length, in_vain = length / 2, 0
            if length < SHORTEST:
                break
            prices = self._moved(prices, found, length)
        return True

    def _is_empty(self) -> bool:
        return not all(map(len, self.sizes.values())) or not all(len(rows.row) for rows in self.rows.values())

    def _cheapest(self, prices: _Prices) -> _Cheapest:
        """The cheapest choice at these prices, and what each size and row makes of it."""
        there = sum(prices.gpus.values()) + prices.budget + sum(prices.memory.values())
        ticks = float(prices.weight @ self._fixed) - there
        durations, gpus, budget = self._fixed.copy(), dict.fromkeys(prices.gpus, -1.0), -1.0
        with_size, with_row = {}, {}
        memory: dict[str, float] = {}
        for group, sizes in self.sizes.items():
            of_all, of_budget = self._parts(group)
            cost = {role: self._cost(prices, group, role) for role in group.roles}
            least = {role: np.minimum.accumulate(cost[role])[self._held(role, sizes) - 1] for role in group.roles}
            price = prices.gpus[group.device_type] * of_all + prices.budget * of_budget
            of_size = sizes * price + np.sum(list(least.values()), axis=0)
            at = int(np.argmin(of_size))
            ticks += float(of_size[at])
            gpus[group.device_type] += sizes[at] * of_all
            budget += sizes[at] * of_budget
            with_size[group] = of_size - of_size[at]
            for role in group.roles:
                beside = np.minimum.accumulate((with_size[group] - least[role])[::-1])[::-1]
                smallest = np.searchsorted(sizes, self.rows[role].num_gpus)
                with_row[role] = cost[role] + np.concatenate([beside, [np.inf]])[smallest]
            picked = {role: int(np.argmin(cost[role][: self._held(role, sizes[at])])) for role in group.roles}
            memory |= self._beyond(picked)
            for role, i in picked.items():
                durations[self.rows[role].calls] = self.rows[role].ticks[:, i]
        with_size = {group: ticks + more for group, more in with_size.items()}
        return _Cheapest(
            ticks, with_size, {role: ticks + more for role, more in with_row.items()}, durations, memory, gpus, budget
        )

    def _parts(self, group: ColocationGroup) -> tuple[float, float]:
        """What a GPU of a group is of all of its kind, and of the budget."""
        return 1.0 / self._x.gpus[group.device_type], self._x.weight[group.device_type] / self._x.budget

    def _beyond(self, picked: dict[str, int]) -> dict[str, float]:
        """By role, the memory that the picked rows of a group need in that role's calls beyond what there is."""
        resident = sum(self.rows[role].resident[i] for role, i in picked.items())
        return {role: float(resident + self.rows[role].transient[i]) - 1.0 for role, i in picked.items()}

    def _held(self, role: str, sizes: Ints) -> Ints:
        """How many of a role's rows pools of ``sizes`` hold."""
        return np.searchsorted(self.rows[role].num_gpus, sizes, side="right")

    def _cost(self, prices: _Prices, group: ColocationGroup, role: str) -> Floats:
        """What each row of a role takes of the longest path and pays for memory, ``[C]``."""
        rows, of_all = self.rows[role], sum(prices.memory[one] for one in group.roles)
        took = prices.weight[rows.calls] @ rows.ticks + of_all * rows.resident
        return np.asarray(took + prices.memory[role] * rows.transient, dtype=np.float64)

    def _leave_out(self, found: _Cheapest) -> None:
        """Drop the sizes and rows with which nothing is within the limit, and sizes that hold no row of some role."""
        most = self._limit + UNSURE
        for role, more in found.with_row.items():
            if np.any(more > most):
                self.rows[role] = self.rows[role].take(np.flatnonzero(more <= most))
        self.sizes = {group: sizes[found.with_size[group] <= most] for group, sizes in self.sizes.items()}
        self._drop_small_sizes()

    def _drop_small_sizes(self) -> None:
        for group, sizes in self.sizes.items():
            least = max(int(self.rows[role].num_gpus.min(initial=NONE_RUNS)) for role in group.roles)
            self.sizes[group] = sizes[sizes >= least]

    def _moved(self, prices: _Prices, found: _Cheapest, length: float) -> _Prices:
        """Prices that rise where the cheapest choice takes more than there is, and fall where it leaves some."""
        beyond = [*found.memory.values(), *found.gpus.values(), found.budget]
        step = length * (self._limit + 1 - found.ticks) / max(float(np.square(beyond).sum()), LEAST_SQUARE)
        path = self._longest(found.durations)
        return _Prices(
            {role: max(price + step * found.memory[role], 0.0) for role, price in prices.memory.items()},
            {kind: max(price + step * found.gpus[kind], 0.0) for kind, price in prices.gpus.items()},
            max(prices.budget + step * found.budget, 0.0),
            prices.weight + PATH_SHARE * length * (path - prices.weight),
        )

    def _longest(self, durations: Floats) -> Floats:
        """1.0 for each call on the longest path of these durations, 0.0 for the others, ``[calls]``."""
        end, before = np.zeros(len(durations)), np.full(len(durations), -1)
        for i, waits in enumerate(self._waits):
            if waits:
                before[i] = max(waits, key=lambda j: end[j])
            end[i] = durations[i] + (end[before[i]] if waits else 0.0)
        on = np.zeros(len(durations))
        at = int(np.argmax(end))
        while at >= 0:
            on[at], at = 1.0, int(before[at])
        return on
