"""Which node each tensor-parallel group of a pool goes to. Pure: nodes come from the launcher."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Node:
    """A node that is alive, with the devices that it has of the kind that is asked for."""

    name: str
    address: str
    num_devices: int


def planned_nodes(first: int, num_ranks: int, together: int, nodes: Sequence[Node]) -> list[str] | None:
    """The node of each group of ``together`` ranks, as the plan numbers devices: node by node, from ``first`` on.

    ``None`` where the nodes are too few, or where a group would lie on two of them: then the plan was made for others.
    """
    ends = list(accumulate(node.num_devices for node in nodes))
    found = []
    for start in range(first, first + num_ranks, together):
        of_first, of_last = (
            next((i for i, end in enumerate(ends) if place < end), None) for place in (start, start + together - 1)
        )
        if of_first is None or of_first != of_last:
            return None
        found.append(nodes[of_first].name)
    return found


def num_groups(together: int, nodes: Sequence[Node]) -> int:
    """Groups of ``together`` ranks that fit, none of them on two nodes."""
    return sum(node.num_devices // together for node in nodes)


def first_split(nodes: Sequence[str], together: int) -> int | None:
    """The first rank of the first group whose ranks are on several ``nodes``, which has one entry a rank."""
    starts = range(0, len(nodes), together)
    return next((start for start in starts if len(set(nodes[start : start + together])) > 1), None)
