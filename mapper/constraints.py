"""The rules of a placement, one small class each; ``build`` adds the rule to a model."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Protocol

import numpy as np
from ortools.sat.python import cp_model

from simulator.dataflow import CONTROLLER

if TYPE_CHECKING:
    from mapper.instance import Instance
    from mapper.variables import Variables
    from profiles.records import Ints


class Rule(Protocol):
    """A rule knows how to add itself to a model."""

    def build(self, model: cp_model.CpModel, x: Instance, v: Variables) -> None:
        """Add the rule's constraints."""
        ...


class OnePlacement:
    """Exactly one allowed set partition is chosen, and exactly its sets get a pool of one size each."""

    def build(self, model: cp_model.CpModel, x: Instance, v: Variables) -> None:
        model.add_exactly_one(v.partition.values())
        for roles, sizes in x.sizes.items():
            holders = [var for partition, var in v.partition.items() if roles in partition]
            model.add(sum(holders) == v.shared[roles])
            model.add(sum(v.pool[roles, n] for n in sizes) == v.shared[roles])


class GpusSuffice:
    """The pools together use no more GPUs than there are (slices pack, see ``problem.pool_sizes``)."""

    def build(self, model: cp_model.CpModel, x: Instance, v: Variables) -> None:
        model.add(sum(n * var for (_, n), var in v.pool.items()) <= x.num_gpus)


class EqualSizes:
    """All sets of the placement get pools of one size, if the problem asks for it."""

    def build(self, model: cp_model.CpModel, x: Instance, v: Variables) -> None:
        if not x.equal_sizes:
            return
        for partition, chosen in v.partition.items():
            for first, second in itertools.pairwise(partition):
                for n in set(x.sizes[first]) | set(x.sizes[second]):
                    a, b = v.pool.get((first, n), 0), v.pool.get((second, n), 0)
                    model.add(a == b).only_enforce_if(chosen)


class OneConfiguration:
    """Each role has exactly one configuration, and its pool is large enough for it.

    Each size that a configuration may need is a boolean of its own; if ``n`` or more is needed, the pool has at least
    ``n``, for every ``n``.
    """

    def build(self, model: cp_model.CpModel, x: Instance, v: Variables) -> None:
        for role, picks in v.pick.items():
            model.add_exactly_one(picks)
            sizes = sorted(set(x.tables[role].num_gpus.tolist()))
            needs = [model.new_bool_var(f"{role} needs {n}") for n in sizes]
            for n, need in zip(sizes, needs, strict=True):
                model.add(sum(picks[i] for i in np.flatnonzero(x.tables[role].num_gpus == n)) == need)
            for i, n in enumerate(sizes):
                pools = [var for (roles, size), var in v.pool.items() if size >= n and role in roles]
                model.add(sum(needs[i:]) <= sum(pools))


class PickedValues:
    """A role's memory needs and its calls' durations are those of its configuration."""

    def build(self, model: cp_model.CpModel, x: Instance, v: Variables) -> None:
        for role, picks in v.pick.items():
            model.add(v.resident[role] == _dot(x.resident_mib[role], picks))
            model.add(v.transient[role] == _dot(x.transient_mib[role], picks))
            for key, ticks in x.ticks[role].items():
                model.add(v.duration[key] == _dot(ticks, picks))
        for key, ticks in x.ticks[CONTROLLER].items():
            model.add(v.duration[key] == int(ticks[0]))


class MemoryShared:
    """In each set: every role's resident memory plus any one role's transient memory fits beside the reserve."""

    def build(self, model: cp_model.CpModel, x: Instance, v: Variables) -> None:
        for roles, chosen in v.shared.items():
            resident = sum(v.resident[role] for role in roles)
            for role in roles:
                model.add(resident + v.transient[role] <= x.capacity_mib).only_enforce_if(chosen)


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
