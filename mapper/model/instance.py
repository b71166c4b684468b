"""The search as integers: ready for the solver and for the oracle, no preprocessing left."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates.listing import bounding_tables
from mapper.candidates.table import RoleTable, to_mib
from mapper.candidates.weight_sync import WeightSync
from mapper.deadline import NEVER
from mapper.execution_mode import GENERATOR
from mapper.model.makespan import makespan
from mapper.model.unpriced import NONE_RUNS, least_of_each, unpriced_ticks
from mapper.search.neighbours import Neighbours, neighbours_of
from profiles.units import MIB
from simulator.cost.pricing import controller_cost, is_controller
from simulator.plan.dataflow import CONTROLLER, Dataflow

if TYPE_CHECKING:
    from mapper.candidates.plain import StagesNeeded
    from mapper.deadline import Deadline
    from mapper.problem import ColocationGroup, Placement, Problem
    from profiles.records import Floats, Ints

TICKS_PER_ITERATION = 1_000_000
"""A tick is the power of ten just below this fraction of the iteration's shortest possible longest call."""


@dataclass(frozen=True, eq=False)
class Instance:
    """A problem with priced candidates, times in ticks and memory in MiB.

    Parameters
    ----------
    flow, partitions, equal_sizes
        As in ``Problem``.
    kinds
        Kinds of GPU; the ``device_type`` of a table's rows is a position in it.
    sizes
        By group: pool sizes on which it can fit at all.
    gpus
        GPUs that there are by kind.
    weight, budget
        What a GPU of each kind counts (1, or a price in whole units), and what all pools may count together.
    tables
        Candidates by role.
    ticks
        Duration in ticks by role and call key, each ``[C]``; the controller's calls under ``controller``, ``[1]``.
    resident_mib, transient_mib
        Memory needs by role, each ``[C]``, rounded up.
    capacity_mib
        By kind: memory of a GPU less the reserve, rounded down.
    sync
        What a transfer of weights between two pools takes, where the actor generates on a dedicated pool.
    neighbours
        What ranks that share a host's cores cost each other; ``None`` on GPUs. All ``ticks`` are those of calls alone.
    bounding
        Tables by role whose last rows are in no plan, only in the bound (``relaxation``), where they have such rows.
    unpriced_ticks
        Where time was up before all candidates were priced: no plan with one of the others takes fewer ticks.
    stages_needed
        Of groups whose rows were left out before: stages that their roles need to fit, of all rows (``plain``).
    tick_s
        Length of a tick. Each duration is rounded to the nearest tick, so an iteration is off by at most
        ``rounding_s``.
    """

    flow: Dataflow
    partitions: tuple[Placement, ...]
    device_types: tuple[str, ...]
    sizes: dict[ColocationGroup, tuple[int, ...]]
    gpus: dict[str, int]
    weight: dict[str, int]
    budget: int
    equal_sizes: bool
    tables: dict[str, RoleTable]
    ticks: dict[str, dict[str, Ints]]
    resident_mib: dict[str, Ints]
    transient_mib: dict[str, Ints]
    capacity_mib: dict[str, int]
    tick_s: float
    sync: WeightSync | None = None
    neighbours: Neighbours | None = None
    bounding: dict[str, RoleTable] = field(default_factory=dict)
    unpriced_ticks: int | None = None
    stages_needed: dict[ColocationGroup, StagesNeeded] = field(default_factory=dict)

    @property
    def rounding_s(self) -> float:
        """How far rounding can move an iteration: half a tick per call on the path."""
        return self.tick_s * len(self.flow.calls) / 2

    @property
    def num_candidates(self) -> int:
        """Candidates after pruning, over all roles."""
        return sum(len(table) for table in self.tables.values())

    def relaxed(self) -> Instance | None:
        """The instance whose every row is as good as what it stands for could be; ``None`` if all stand for themselves.

        No plan, in degrees that are listed or not, is better than its best choice.
        """
        whole = self.tables | self.bounding
        if not any(table.credit.any for table in whole.values()):
            return None
        tables = {role: table.relaxed() for role, table in whole.items()}
        of_roles = {
            role: {key: to_ticks(s, self.tick_s) for key, s in table.durations_s.items()}
            for role, table in tables.items()
        }
        return replace(
            self,
            tables=tables,
            bounding={},
            ticks=self.ticks | of_roles,
            resident_mib={role: to_mib(table.resident_bytes) for role, table in tables.items()},
            transient_mib={role: to_mib(table.transient_bytes) for role, table in tables.items()},
        )

    def rows(self, role: str, group: ColocationGroup, num_gpus: int) -> Ints:
        """Rows of a role's table that run on a pool of ``num_gpus`` of the group's kind."""
        table = self.tables[role]
        return np.flatnonzero(
            (table.device_type == self.device_types.index(group.device_type)) & (table.num_gpus <= num_gpus)
        )

    def rows_on(self, role: str, device_type: str) -> Ints:
        """Rows of a role's table on one kind of GPU."""
        return np.flatnonzero(self.tables[role].device_type == self.device_types.index(device_type))

    def turns(self, role: str) -> Ints:
        """Ticks that each row of a role keeps its pool busy, all calls together."""
        mine = [call.key for call in self.flow.calls_of(role)]
        none = np.zeros(len(self.tables[role]), dtype=np.int64)
        return np.asarray(sum((self.ticks[role][key] for key in mine), none), dtype=np.int64)

    def spent(self, pools: tuple[tuple[ColocationGroup, int], ...]) -> int:
        """What pools count together."""
        return sum(self.weight[group.device_type] * n for group, n in pools)

    @property
    def floor_ticks(self) -> int:
        """Ticks that no choice is below: every call as short as its shortest row, in the placement that suits best."""
        return least_ticks(self, {key: self.shortest(key) for calls in self.ticks.values() for key in calls})

    def shortest(self, key: str) -> int:
        """The least ticks that a call takes in any row."""
        return next(int(t[key].min(initial=NONE_RUNS)) for t in self.ticks.values() if key in t)


# Long by what an instance holds: a line for each.
def make_instance(
    problem: Problem, prune: bool = True, priced: dict[str, RoleTable] | None = None, deadline: Deadline = NEVER
) -> Instance:
    """Price, filter, prune and round what the search may choose from; ``priced`` are tables priced before.

    All of it, or the most promising part when ``deadline`` is over (``Instance.unpriced_ticks``).
    """
    facts = problem.facts
    whole = priced or bounding_tables(problem, problem.roles, prune, deadline)
    tables = {role: table.listed() for role, table in whole.items()}
    seconds: dict[str, dict[str, np.ndarray]] = {role: dict(table.durations_s) for role, table in tables.items()}
    seconds[CONTROLLER] = {
        call.key: np.asarray([float(controller_cost(facts, call).time.s)])
        for call in facts.dataflow.calls
        if is_controller(call)
    }
    tick = _tick_s(seconds)
    on = {device_type: facts.on(device_type) for device_type in facts.device_types}
    capacity = {k: f.memory_room_bytes // MIB for k, f in on.items()}
    x = Instance(
        flow=problem.flow,
        partitions=problem.partitions,
        device_types=facts.device_types,
        sizes={},
        gpus=problem.gpus,
        weight=dict.fromkeys(facts.device_types, 1),
        budget=problem.num_gpus,
        equal_sizes=problem.equal_sizes,
        tables=tables,
        ticks={role: {k: to_ticks(v, tick) for k, v in calls.items()} for role, calls in seconds.items()},
        resident_mib={role: to_mib(table.resident_bytes) for role, table in tables.items()},
        transient_mib={role: to_mib(table.transient_bytes) for role, table in tables.items()},
        capacity_mib=capacity,
        tick_s=tick,
        sync=WeightSync(facts, tick) if GENERATOR in tables else None,
        neighbours=neighbours_of(problem, tick),
        bounding={role: table for role, table in whole.items() if len(table) > len(tables[role])},
    )
    least = x.relaxed() or x  # a size that only degrees between the listed ones fit on has a bound too
    sizes = {group: _sizes_that_fit(problem, group, least) for group in problem.groups}
    return replace(x, sizes=sizes, unpriced_ticks=unpriced_ticks(least, whole))


def least_ticks(instance: Instance, shortest: dict[str, int]) -> int:
    """Ticks of an iteration whose calls are all as short as that, in whichever of the placements is best."""
    durations = {key: np.asarray(float(ticks)) for key, ticks in shortest.items()}
    return min(int(makespan(instance, partition, durations)) for partition in instance.partitions)


def to_ticks(seconds: Floats, tick_s: float) -> Ints:
    """Seconds in whole ticks, to the nearest."""
    return np.asarray(np.rint(seconds / tick_s), dtype=np.int64)


def _tick_s(seconds: dict[str, dict[str, np.ndarray]]) -> float:
    shortest = [float(v.min()) for calls in seconds.values() for v in calls.values() if len(v)]
    return float(10.0 ** math.floor(math.log10(max(*shortest, 1e-6) / TICKS_PER_ITERATION)))


def _sizes_that_fit(problem: Problem, group: ColocationGroup, instance: Instance) -> tuple[int, ...]:
    """Pool sizes where even the least hungry configurations of the group fit side by side (a necessary condition).

    Without a size that no role of the group gains a row from: the next smaller pool does the same. But groups that must
    agree on a size, by ``equal_sizes`` or by a pin, may need just that one.
    """
    known = problem.sizes[group.device_type]
    sizes = np.asarray(problem.sizes_of(group), dtype=np.int64)
    rows = {role: instance.rows_on(role, group.device_type) for role in group.roles}
    gpus = {role: instance.tables[role].num_gpus[r] for role, r in rows.items()}
    least = [
        least_of_each(gpus[role], [instance.resident_mib[role][r], instance.transient_mib[role][r]], sizes)
        for role, r in rows.items()
    ]
    resident, transient = (np.stack(column) for column in zip(*least, strict=True))
    keep = resident.sum(axis=0) + transient.max(axis=0) <= instance.capacity_mib[group.device_type]
    if not problem.equal_sizes and len(sizes) == len(known):
        keep &= np.isin(sizes, np.concatenate(list(gpus.values())))
    return tuple(sizes[keep].tolist())
