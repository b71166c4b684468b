"""What is asked of the mapper: facts, which placements are allowed, how large a pool may be."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from mapper.execution_mode import GENERATOR, SYNC, ExecutionMode, search_flow
from mapper.pins import AnyPin, Pin, Share, Spare, check_pins, pin_of
from mapper.search_options import USUAL, SearchOptions, check_options
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mapper.candidates.engine import KeptPrices
    from simulator.facts import Facts
    from simulator.plan.dataflow import Dataflow

Sets = tuple[tuple[str, ...], ...]
"""A set partition of the roles: who shares a pool, roles and sets in dataflow order."""


class ColocationGroup(NamedTuple):
    """Roles that share a pool, and the kind of its GPUs."""

    roles: tuple[str, ...]
    device_type: str


Placement = tuple[ColocationGroup, ...]
"""Who shares a pool with whom, and on which kind of GPU."""


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
        Pool sizes to choose from by kind, in GPUs: power-of-two slices of a node, and whole nodes.
    equal_sizes
        All pools get the same number of GPUs (the "even" split of the paper's Fig 12).
    pins
        What is fixed: about some roles (at most one pin each), about who shares, about nodes that stay free.
    placement
        The name that the partitions were made from.
    mode
        Where the actor generates, and when.
    options
        Layouts that are searched beside the usual ones.
    every_degree
        The best layouts of all degrees stay, whatever beats them: other plans are asked for beside the best.
    kept_prices
        Prices of engines that searches of the same job on other numbers of nodes share.
    """

    facts: Facts
    partitions: tuple[Placement, ...]
    sizes: dict[str, tuple[int, ...]]
    equal_sizes: bool = False
    pins: tuple[AnyPin, ...] = ()
    placement: str = "any"
    mode: ExecutionMode = SYNC
    options: SearchOptions = USUAL
    every_degree: bool = False
    kept_prices: KeptPrices | None = field(default=None, compare=False, repr=False)

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs that a plan may use by kind: all of the cluster but its spare nodes."""
        groups = {device_type: self.facts.on(device_type).group for device_type in self.facts.device_types}
        return {k: (g.nodes - spare_nodes(self.pins, k)) * g.gpus_per_node for k, g in groups.items()}

    @property
    def num_gpus(self) -> int:
        """GPUs of all kinds that a plan may use."""
        return sum(self.gpus.values())

    @cached_property
    def flow(self) -> Dataflow:
        """The calls as the search sees them: an actor that generates elsewhere does so as a role of its own."""
        return search_flow(self.facts.dataflow, self.mode)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.flow.roles

    @property
    def groups(self) -> tuple[ColocationGroup, ...]:
        """Every group that some allowed placement contains, each once."""
        return tuple(dict.fromkeys(group for partition in self.partitions for group in partition))

    def sizes_of(self, group: ColocationGroup) -> tuple[int, ...]:
        """Pool sizes that the pins of a group's roles leave to the pool that they share."""
        pinned = {n for role in group.roles if (n := pin_of(self.pins, role).num_gpus) is not None}
        return tuple(n for n in self.sizes[group.device_type] if pinned <= {n})


def make_problem(
    facts: Facts,
    placement: str = "any",
    even: bool = False,
    pins: tuple[AnyPin, ...] = (),
    mode: ExecutionMode = SYNC,
    options: SearchOptions = USUAL,
) -> Problem:
    """The problem of planning ``facts`` with ``placement`` any, colocate, split or standalone, honouring ``pins``.

    A generation pool of its own is one more pool beside a named placement. Raises ``InputError`` for a placement that
    the job's roles do not have and for a pin of something that is not there.
    """
    flow = search_flow(facts.dataflow, mode)
    check_options(facts, options)
    check_pins(facts, flow, pins)
    partitions = tuple(set_partitions(flow.roles) if placement == "any" else _named(facts, placement, mode))
    if even and placement != "split":
        raise InputError(f"even halves are defined for the split placement, not for '{placement}'")
    if even and (mode.dedicated_rollout or len(facts.device_types) > 1):
        raise InputError("even halves are two pools of one kind of GPU, without a dedicated generation pool")
    apart = Share(("actor", GENERATOR), wanted=False)
    rules = [*(pin for pin in pins if isinstance(pin, Share)), *([apart] if GENERATOR in flow.roles else [])]
    partitions = tuple(p for p in partitions if all(rule.allows(p) for rule in rules))
    groups = {device_type: facts.on(device_type).group for device_type in facts.device_types}
    _check_sizes(pins, {device_type: pool_sizes(g.nodes, g.gpus_per_node) for device_type, g in groups.items()})
    sizes = {
        device_type: pool_sizes(g.nodes - spare_nodes(pins, device_type), g.gpus_per_node)
        for device_type, g in groups.items()
    }
    typed = tuple(t for p in partitions for t in _on_kinds(p, facts.device_types, pins))
    return Problem(facts, typed, sizes, even, pins, placement, mode, options)


def with_pins(problem: Problem, pins: tuple[AnyPin, ...]) -> Problem:
    """The same problem with other pins."""
    return make_problem(problem.facts, problem.placement, problem.equal_sizes, pins, problem.mode, problem.options)


def sets_of(placement: Placement) -> Sets:
    """Who shares with whom, whatever the kinds."""
    return tuple(group.roles for group in placement)


def spare_nodes(pins: tuple[AnyPin, ...], device_type: str) -> int:
    """Nodes of one kind that stay free."""
    return sum(pin.nodes for pin in pins if isinstance(pin, Spare) and pin.device_type in (None, device_type))


def _named(facts: Facts, placement: str, mode: ExecutionMode) -> list[Sets]:
    sets = named_partition(facts.algorithm, facts.dataflow.roles, placement)
    return [(*sets, (GENERATOR,))] if mode.dedicated_rollout else [sets]


def _on_kinds(partition: Sets, device_types: tuple[str, ...], pins: tuple[AnyPin, ...]) -> Iterator[Placement]:
    """A partition on every choice of kinds that the pins allow, the first kind first."""
    for chosen in product(device_types, repeat=len(partition)):
        placed = tuple(
            ColocationGroup(roles, device_type) for roles, device_type in zip(partition, chosen, strict=True)
        )
        if all(pin_of(pins, role).device in (None, g.device_type) for g in placed for role in g.roles):
            yield placed


def _check_sizes(pins: tuple[AnyPin, ...], sizes: dict[str, tuple[int, ...]]) -> None:
    for pin in (pin for pin in pins if isinstance(pin, Pin)):
        known = sizes.get(pin.device or "") or tuple(sorted({n for of_kind in sizes.values() for n in of_kind}))
        if pin.num_gpus is not None and pin.num_gpus not in known:
            raise InputError(
                f"pin of {pin.role}: a pool of {pin.num_gpus} GPUs; known sizes: {', '.join(map(str, known))}"
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
