"""The rules of a placement, one small class each; ``build`` adds the rule to a model."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mapper.model.cp_sat import cp_model
from simulator.plan.dataflow import CONTROLLER

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from mapper.model.variables import Variables
    from profiles.records import Ints


class Rule(Protocol):
    """A rule knows how to add itself to a model."""

    def build(self, model: cp_model.CpModel, instance: Instance, v: Variables) -> None:
        """Add the rule's constraints."""
        ...


class OnePlacement:
    """Exactly one allowed placement is chosen, and exactly its groups get a pool of one size each."""

    def build(self, model: cp_model.CpModel, instance: Instance, v: Variables) -> None:
        model.add_exactly_one(v.partition.values())
        for group, sizes in instance.sizes.items():
            holders = [var for partition, var in v.partition.items() if group in partition]
            model.add(sum(holders) == v.shared[group])
            model.add(sum(v.pool[group, n] for n in sizes) == v.shared[group])


class GpusSuffice:
    """The pools of each kind use no more GPUs than there are (slices pack, see ``problem.pool_sizes``).

    Together they count no more than the budget, where that is less.
    """

    def build(self, model: cp_model.CpModel, instance: Instance, v: Variables) -> None:
        for device_type, most in instance.gpus.items():
            pools = [n * var for (group, n), var in v.pool.items() if group.device_type == device_type]
            model.add(sum(pools) <= most)
        if instance.budget < sum(instance.weight[device_type] * most for device_type, most in instance.gpus.items()):
            model.add(
                sum(instance.weight[group.device_type] * n * var for (group, n), var in v.pool.items())
                <= instance.budget
            )


class EqualSizes:
    """All sets of the placement get pools of one size, if the problem asks for it."""

    def build(self, model: cp_model.CpModel, instance: Instance, v: Variables) -> None:
        if not instance.equal_sizes:
            return
        for partition, chosen in v.partition.items():
            for first, second in itertools.pairwise(partition):
                for n in set(instance.sizes[first]) | set(instance.sizes[second]):
                    a, b = v.pool.get((first, n), 0), v.pool.get((second, n), 0)
                    model.add(a == b).only_enforce_if(chosen)


class OneConfiguration:
    """Each role has exactly one configuration, and its pool is of that kind and large enough for it.

    Each size that a configuration may need is a boolean of its own; if ``n`` or more is needed, the pool has at least
    ``n``, for every ``n``.
    """

    def build(self, model: cp_model.CpModel, instance: Instance, v: Variables) -> None:
        for role, picks in v.pick.items():
            model.add_exactly_one(picks)
            for i, device_type in enumerate(instance.device_types):
                self._of_kind(model, instance, v, role, i, device_type)

    def _of_kind(
        self, model: cp_model.CpModel, instance: Instance, v: Variables, role: str, i: int, device_type: str
    ) -> None:
        table, picks = instance.tables[role], v.pick[role]
        mine = table.device_type == i
        sizes = sorted(set(table.num_gpus[mine].tolist()))
        needs = [model.new_bool_var(f"{role} needs {n} {device_type}") for n in sizes]
        for n, need in zip(sizes, needs, strict=True):
            model.add(sum(picks[j] for j in np.flatnonzero(mine & (table.num_gpus == n))) == need)
        held = [
            (size, var)
            for (group, size), var in v.pool.items()
            if group.device_type == device_type and role in group.roles
        ]
        for j, n in enumerate(sizes):
            model.add(sum(needs[j:]) <= sum(var for size, var in held if size >= n))


class PickedValues:
    """A role's memory needs and its calls' durations are those of its configuration."""

    def build(self, model: cp_model.CpModel, instance: Instance, v: Variables) -> None:
        for role, picks in v.pick.items():
            model.add(v.resident[role] == _dot(instance.resident_mib[role], picks))
            model.add(v.transient[role] == _dot(instance.transient_mib[role], picks))
            for key, ticks in instance.ticks[role].items():
                model.add(v.duration[key] == _dot(ticks, picks))
        for key, ticks in instance.ticks[CONTROLLER].items():
            model.add(v.duration[key] == int(ticks[0]))


class MemoryShared:
    """In each set: every role's resident memory plus any one role's transient memory fits beside the reserve."""

    def build(self, model: cp_model.CpModel, instance: Instance, v: Variables) -> None:
        for group, chosen in v.shared.items():
            resident = sum(v.resident[role] for role in group.roles)
            for role in group.roles:
                model.add(resident + v.transient[role] <= instance.capacity_mib[group.device_type]).only_enforce_if(
                    chosen
                )


def _dot(values: Ints, picks: list[cp_model.IntVar]) -> cp_model.LinearExprT:
    return cp_model.LinearExpr.weighted_sum(picks, values.tolist())


RULES: tuple[Rule, ...] = (
    OnePlacement(),
    GpusSuffice(),
    EqualSizes(),
    OneConfiguration(),
    PickedValues(),
    MemoryShared(),
)
