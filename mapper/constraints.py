"""The rules of a placement, one small class each; ``build`` adds the rule to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from mapper.instance import Instance
    from mapper.variables import Variables


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
            model.add(sum(v.pool[roles, n] for n in sizes) == sum(holders))


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
            for first, second in zip(partition, partition[1:], strict=False):
                for n in set(x.sizes[first]) | set(x.sizes[second]):
                    a, b = v.pool.get((first, n), 0), v.pool.get((second, n), 0)
                    model.add(a == b).only_enforce_if(chosen)


class OneConfiguration:
    """Each role has exactly one configuration, and it is for the size of its pool."""

    def build(self, model: cp_model.CpModel, x: Instance, v: Variables) -> None:
        for role, picks in v.pick.items():
            model.add_exactly_one(picks)
            for n in sorted(set(x.tables[role].num_gpus.tolist())):
                pools = [var for (roles, size), var in v.pool.items() if size == n and role in roles]
                model.add(sum(picks[i] for i in x.rows(role, n)) == sum(pools))


class MemoryShared:
    """On each pool: every role's resident memory plus any one call's transient memory fits beside the reserve."""

    def build(self, model: cp_model.CpModel, x: Instance, v: Variables) -> None:
        for (roles, n), chosen in v.pool.items():
            rows = {role: x.rows(role, n) for role in roles}
            resident = sum(
                int(x.resident_mib[role][i]) * v.pick[role][i] for role in roles for i in rows[role]
            )
            for role in roles:
                transient = sum(int(x.transient_mib[role][i]) * v.pick[role][i] for i in rows[role])
                model.add(resident + transient <= x.capacity_mib).only_enforce_if(chosen)


RULES: tuple[Rule, ...] = (OnePlacement(), GpusSuffice(), EqualSizes(), OneConfiguration(), MemoryShared())
