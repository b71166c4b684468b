"""Where pools lie among the nodes of one kind: neighbours, and inside pods where they fit.

A pod here is what the cluster says (``nodes_per_pod``), or the nodes that an NVLink domain wider than a node joins.
"""

from __future__ import annotations

from itertools import islice, permutations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiles.hardware import ClusterGroup

MOST_ORDERS = 5040
"""Orders of the pools that are tried: all of up to seven."""


def first_gpus(sizes: Sequence[int], group: ClusterGroup, nodes: int) -> list[int]:
    """The first GPU of each pool of ``sizes`` GPUs, of which ``nodes`` nodes of ``group`` hold all.

    Pools of whole nodes in the order that lets the fewest of them straddle more pods than they must, of several such
    orders the one nearest to largest first; slices of nodes behind them by size, so that none straddles a node.
    """
    per_node = group.gpus_per_node
    whole = sorted((i for i, n in enumerate(sizes) if n >= per_node), key=lambda i: (-sizes[i], i))
    slices = sorted((i for i, n in enumerate(sizes) if n < per_node), key=lambda i: (-sizes[i], i))
    rest = -(-sum(sizes[i] for i in slices) // per_node)
    starts = _best_order([sizes[i] // per_node for i in whole], nodes - rest, pod_nodes(group))
    first = {i: start * per_node for i, start in zip(whole, starts, strict=True)}
    at = max((first[i] + sizes[i] for i in whole), default=0)
    for i in slices:
        first[i], at = at, at + sizes[i]
    return [first[i] for i in range(len(sizes))]


def pod_nodes(group: ClusterGroup) -> int:
    """Nodes of a pod; 0 where nothing joins some nodes more closely than others."""
    if group.nodes_per_pod:
        return group.nodes_per_pod
    return group.nvlink_domain_gpus // group.gpus_per_node if group.nvlink_domain_gpus > group.gpus_per_node else 0


def pods_of(first_gpu: int, num_gpus: int, group: ClusterGroup) -> int:
    """How many pods a pool touches; 1 where there are none."""
    pod = pod_nodes(group) * group.gpus_per_node
    return (first_gpu + num_gpus - 1) // pod - first_gpu // pod + 1 if pod else 1


def straddles(first_gpu: int, num_gpus: int, group: ClusterGroup) -> bool:
    """Whether a pool touches more pods than its size needs."""
    pod = pod_nodes(group) * group.gpus_per_node
    return bool(pod) and pods_of(first_gpu, num_gpus, group) > -(-num_gpus // pod)


def _best_order(nodes_of: list[int], nodes: int, pod: int) -> list[int]:
    """Start node of each pool, for the best of the orders."""
    best: tuple[int, list[int]] | None = None
    for order in islice(permutations(range(len(nodes_of))), MOST_ORDERS):
        starts = _laid_out([nodes_of[i] for i in order], nodes, pod)
        split = sum(_extra_pods(s, nodes_of[i], pod) for i, s in zip(order, starts, strict=True))
        if best is None or split < best[0]:
            placed = dict(zip(order, starts, strict=True))
            best = (split, [placed[i] for i in range(len(nodes_of))])
        if best[0] == 0:
            break
    assert best is not None, "there is always one order"
    return best[1]


def _laid_out(sizes: list[int], nodes: int, pod: int) -> list[int]:
    """Starts of pools in a row, each moved to the next pod where that saves a split and there are nodes to skip."""
    spare, at, starts = nodes - sum(sizes), 0, []
    for size in sizes:
        gap = -at % pod if pod else 0
        if gap and gap <= spare and _extra_pods(at, size, pod):
            at, spare = at + gap, spare - gap
        starts.append(at)
        at += size
    return starts


def _extra_pods(start: int, size: int, pod: int) -> int:
    return (start + size - 1) // pod - start // pod + 1 - -(-size // pod) if pod else 0
