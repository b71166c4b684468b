"""What is asked of the mapper: facts, which placements are allowed, how large a pool may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mapper.pins import AnyPin, Pin, check_pins, pin_of
from mapper.sharing import Share, Spare
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulator.facts import Facts

Sets = tuple[tuple[str, ...], ...]
"""A set partition of the roles: who shares a pool, roles and sets in dataflow order."""


@dataclass(frozen=True)
class Problem:
    """One search.

    Parameters
    ----------
    facts
        The job and everything known about it.
    partitions
        The placements to choose from.
    sizes
        Pool sizes to choose from, in GPUs: power-of-two slices of a node, and whole nodes.
    equal_sizes
        All pools get the same number of GPUs (the "even" split of the paper's Fig 12).
    pins
        What is fixed: about some roles (at most one pin each), about who shares, about nodes that stay free.
    placement
        The name that the partitions were made from.
    """

    facts: Facts
    partitions: tuple[Sets, ...]
    sizes: tuple[int, ...]
    equal_sizes: bool = False
    pins: tuple[AnyPin, ...] = ()
    placement: str = "any"

    @property
    def num_gpus(self) -> int:
        """GPUs that a plan may use: all of the cluster but its spare nodes."""
        return (self.facts.group.nodes - spare_nodes(self.pins)) * self.facts.group.gpus_per_node

    @property
    def roles(self) -> tuple[str, ...]:
        return self.facts.dataflow.roles

    @property
    def sets(self) -> tuple[tuple[str, ...], ...]:
        """Every set that some allowed placement contains, each once."""
        return tuple(dict.fromkeys(roles for partition in self.partitions for roles in partition))

    def sizes_of(self, roles: tuple[str, ...]) -> tuple[int, ...]:
        """Pool sizes that the pins of ``roles`` leave to the pool that they share."""
        pinned = {n for role in roles if (n := pin_of(self.pins, role).num_gpus) is not None}
        return tuple(n for n in self.sizes if pinned <= {n})


def make_problem(facts: Facts, placement: str = "any", even: bool = False, pins: tuple[AnyPin, ...] = ()) -> Problem:
    """The problem of planning ``facts`` with ``placement`` any, colocate, split or standalone, honouring ``pins``.

    Raises ``InputError`` for a placement that the job's roles do not have and for a pin of something that is not there.
    """
    check_pins(facts, pins)
    roles = facts.dataflow.roles
    if placement == "any":
        partitions = tuple(set_partitions(roles))
    else:
        partitions = (named_partition(facts.algorithm, roles, placement),)
    if even and placement != "split":
        raise InputError(f"even halves are defined for the split placement, not for '{placement}'")
    partitions = tuple(p for p in partitions if all(pin.allows(p) for pin in pins if isinstance(pin, Share)))
    nodes, gpus_per_node = facts.group.nodes, facts.group.gpus_per_node
    _check_sizes(pins, pool_sizes(nodes, gpus_per_node))
    sizes = pool_sizes(nodes - spare_nodes(pins), gpus_per_node)
    return Problem(facts, partitions, sizes, even, pins, placement)


def with_pins(problem: Problem, pins: tuple[AnyPin, ...]) -> Problem:
    """The same problem with other pins."""
    return make_problem(problem.facts, problem.placement, problem.equal_sizes, pins)


def spare_nodes(pins: tuple[AnyPin, ...]) -> int:
    """Nodes that stay free."""
    return sum(pin.nodes for pin in pins if isinstance(pin, Spare))


def _check_sizes(pins: tuple[AnyPin, ...], sizes: tuple[int, ...]) -> None:
    for pin in (pin for pin in pins if isinstance(pin, Pin)):
        if pin.num_gpus is not None and pin.num_gpus not in sizes:
            raise InputError(
                f"pin of {pin.role}: a pool of {pin.num_gpus} GPUs; known sizes: {', '.join(map(str, sizes))}"
            )


def named_partition(algorithm: str, roles: tuple[str, ...], placement: str) -> Sets:
    """The set partition that a placement name stands for; ``InputError`` if these roles have none of that name."""
    if placement == "colocate":
        return (roles,)
    if placement == "standalone":
        return tuple((role,) for role in roles)
    if placement != "split":
        raise InputError(f"unknown placement '{placement}'; known: any, colocate, split, standalone")
    first = tuple(r for r in roles if r in ("actor", "reference"))
    second = tuple(r for r in roles if r not in first)
    if not second:
        raise InputError(f"split: {algorithm} with {', '.join(roles)} has no critic, reward or cost model to split off")
    return (first, second)


def set_partitions(roles: tuple[str, ...]) -> Iterator[Sets]:
    """Every set partition of ``roles`` once (Bell number: 5, 15, 52 for 3, 4, 5), coarsest first."""
    if not roles:
        yield ()
        return
    *rest, last = roles
    for partition in set_partitions(tuple(rest)):
        for i, group in enumerate(partition):
            yield (*partition[:i], (*group, last), *partition[i + 1 :])
        yield (*partition, (last,))


def pool_sizes(nodes: int, gpus_per_node: int) -> tuple[int, ...]:
    """Slices of a node that are powers of two and divide it, then whole nodes.

    Slices that divide the node pack into the nodes that whole-node pools leave whenever their sum fits, so no
    packing constraint is needed.
    """
    slices = [2**i for i in range(gpus_per_node.bit_length()) if gpus_per_node % 2**i == 0 and 2**i < gpus_per_node]
    return (*slices, *(gpus_per_node * n for n in range(1, nodes + 1)))
