"""Collectives over ranks that may span nodes: measured inside an NVLink domain, hierarchical across.

Rank order is tensor parallel fastest, then context, pipeline and data parallel slowest (HybridFlow section 5),
so the stride of a group is the product of the faster degrees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Floats, Ints, Priced, longer, where

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from simulator.facts import Facts

_PASSES = {"all_gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 2.0}
"""How often a collective moves its tensor once through the network: a ring all-reduce is a scatter and a gather."""


def domain_bandwidth(facts: Facts) -> float:
    """Bytes per second, one direction, between two NVLink domains: the NICs of all nodes of a domain together.

    Returns
    -------
    float
        Bytes per second, one direction.

    Notes
    -----
    Datasheet rate of the NICs times the engine's ``network_efficiency``, which is fitted for some
    releases.
    """
    group = facts.group
    nodes_per_domain = max(1, group.nvlink_domain_gpus // group.gpus_per_node)
    return group.inter_node_bytes_per_s * nodes_per_domain * facts.training.network_efficiency


def network_basis(facts: Facts) -> Basis:
    """What a time between domains rests on: a rule at best, and weaker where its constants are.

    Returns
    -------
    Basis
        The weakest of the rule and of its two constants.
    """
    known = (facts.training.basis("network_efficiency"), facts.device.spec.basis("inter_node_latency_s"))
    return max(Basis.ANALYTIC, *known)


def ranks_in_domain(facts: Facts, ranks: ArrayLike, stride: ArrayLike) -> Ints:
    """How many of a group's ``ranks``, placed at ``stride``, share an NVLink domain; same shape.

    Parameters
    ----------
    ranks
        Size of each group.
    stride
        Distance between neighbours in a group, in ranks; shape broadcast.

    Returns
    -------
    Ints
        Ranks of one domain, at least 1; the broadcast shape.
    """
    r, s = np.asarray(ranks, dtype=np.int64), np.asarray(stride, dtype=np.int64)
    return np.clip(facts.group.nvlink_domain_gpus // s, 1, np.maximum(r, 1))


def replicas_in_domain(facts: Facts, tp: Ints, cp: Ints, pp: Ints, dp: Ints) -> Ints:
    """How many of the ``cp x dp`` ranks that hold the same weights share an NVLink domain.

    Context-parallel ranks lie at stride ``t``, data-parallel ones at stride ``t c p``: only where a whole model
    replica fits into the domain do several of those share it.

    Parameters
    ----------
    tp, cp, pp, dp
        Degrees, ``[C]``.

    Returns
    -------
    Ints
        Ranks, between 1 and ``cp x dp``; ``[C]``.
    """
    domain = facts.group.nvlink_domain_gpus
    context = np.clip(domain // tp, 1, cp)
    data = np.where(context == cp, np.clip(domain // (tp * cp * pp), 1, dp), 1)
    return np.asarray(context * data, dtype=np.int64)


def strided(facts: Facts, kind: str, num_bytes: ArrayLike, ranks: ArrayLike, stride: ArrayLike) -> Priced:
    """``collective`` in groups whose ranks lie at a constant ``stride``.

    Parameters
    ----------
    kind
        ``all_gather``, ``reduce_scatter``, ``all_reduce`` or ``all_to_all``.
    num_bytes
        As in ``collective``.
    ranks, stride
        Size of each group, and the distance between neighbours in it, in ranks.

    Returns
    -------
    Priced
        Seconds, shape broadcast of the arguments.
    """
    return collective(facts, kind, num_bytes, ranks, ranks_in_domain(facts, ranks, stride))


def collective(facts: Facts, kind: str, num_bytes: ArrayLike, ranks: ArrayLike, inside: ArrayLike) -> Priced:
    """Time of one collective in every such group at once.

    Inside a domain the measured table is used. Across domains the tensor crosses each domain's NICs once per pass,
    shared by all groups that have ranks there, while the inside part goes on beside it; plus one latency per hop of the
    ring.

    Parameters
    ----------
    kind
        ``all_gather``, ``reduce_scatter``, ``all_reduce`` or ``all_to_all``.
    num_bytes
        Whole tensor of a group; for ``all_to_all`` what one rank sends.
    ranks, inside
        Ranks of a group, and how many of them share a domain; shapes broadcast.

    Returns
    -------
    Priced
        Seconds, the broadcast shape.

    Raises
    ------
    NoBasisError
        The device has no table of collectives.

    Notes
    -----
    Source: ring collectives (Thakur et al. 2005) at NIC rate across domains. No table covers that part: it is analytic,
    and latency of trees or rails is not in it.
    """
    b, r, i = np.broadcast_arrays(
        np.asarray(num_bytes, dtype=np.float64), np.asarray(ranks, dtype=np.int64), np.asarray(inside, dtype=np.int64)
    )
    domains = -(-r // i)
    within = b * (i / np.maximum(r, 1) if kind == "all_to_all" else 1.0)
    local = facts.device.collective(kind, within, i)
    if not np.any(domains > 1):
        return local
    crossing = _crossing_bytes(facts, kind, b, r, i, domains)
    hops = (2 if kind == "all_reduce" else 1) * (domains - 1)
    seconds = crossing / domain_bandwidth(facts) + hops * facts.device.spec.inter_node_latency_s
    across = Priced.of(seconds, network_basis(facts))
    return where(domains > 1, longer(across, local), local)


def exchange_through_domains(
    facts: Facts, within_bytes: ArrayLike, away_bytes: ArrayLike, inside: Ints, domains: Ints
) -> Priced:
    """All-to-all in which each domain takes a tensor in once and hands it on inside, one way.

    Parameters
    ----------
    within_bytes, away_bytes
        That one rank sends inside its domain, and to other domains; shapes broadcast.
    inside, domains
        Ranks of a group in one domain, and its domains; shapes broadcast.

    Returns
    -------
    Priced
        Seconds, the broadcast shape.

    Raises
    ------
    NoBasisError
        The device has no table of collectives.
    """
    local = facts.device.collective("all_to_all", within_bytes, inside)
    if not np.any(domains > 1):
        return local
    crossing = np.asarray(away_bytes) * facts.group.nvlink_domain_gpus / domain_bandwidth(facts)
    seconds = crossing + (domains - 1) * facts.device.spec.inter_node_latency_s
    return where(domains > 1, longer(Priced.of(seconds, network_basis(facts)), local), local)


def _crossing_bytes(facts: Facts, kind: str, b: Floats, r: Ints, inside: Ints, domains: Ints) -> Floats:
    """Bytes that leave one NVLink domain; every GPU of it belongs to one of ``domain / inside`` groups."""
    domain = facts.group.nvlink_domain_gpus
    if kind == "all_to_all":
        return np.asarray(b * (1.0 - inside / np.maximum(r, 1)) * domain)
    return np.asarray(_PASSES[kind] * b * (domains - 1) / domains * np.maximum(domain // inside, 1))
