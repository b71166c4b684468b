"""All-to-all of a mixture's tokens to the ranks of their experts and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Priced, longer, where
from simulator.cost import comms
from simulator.cost.gemms import ACTIVATION_BYTES
from simulator.cost.moe import moe_of, routed_rows

if TYPE_CHECKING:
    from profiles.models.layers import MoeShape
    from profiles.models.shape import ModelShape
    from profiles.records import Floats, Ints, Numbers
    from simulator.facts import Facts


def dispatch_and_combine(facts: Facts, shape: ModelShape, tokens: Floats, tp: Ints, ep: Ints) -> Priced:
    """All-to-all there and back of one layer forward (the backward pass moves the same again).

    Parameters
    ----------
    tokens
        Of the rank's micro-batch, ``[C]``.
    tp, ep
        Tensor- and expert-parallel degrees, ``[C]``.

    Returns
    -------
    Priced
        Seconds, ``[C]``.

    Raises
    ------
    NoBasisError
        The model has no experts.

    Notes
    -----
    NCCL's all-to-all carries a copy for each chosen expert. DeepEP and HybridEP send a token once to each node that
    has some of its experts and hand it on inside: DeepEP at its measured time where a table has it, HybridEP, of which
    there is no table, at NCCL's rate for a copy to each rank. Where a token's experts come from a few groups, so do the
    nodes that it goes to (DeepSeek-V3 report, section 2.1.2: at most four).
    """
    moe = moe_of(shape)
    built = facts.implementation
    rows = routed_rows(shape, tokens, tp, ep) * built.expert_imbalance
    row_bytes = shape.expert_width * ACTIVATION_BYTES
    if built.expert_dispatch == "all-to-all":
        return comms.strided(facts, "all_to_all", rows * row_bytes, ep, np.ones_like(ep)) * 2.0
    each = rows / moe.experts_per_token
    inside = comms.ranks_in_domain(facts, ep, 1)
    domains = -(-ep // inside)
    to_ranks, to_domains = _distinct(inside, moe.experts_per_token), domains_reached(moe, domains)
    away = each * to_domains * (1.0 - 1.0 / domains) * row_bytes
    there = comms.exchange_through_domains(facts, each * to_ranks * row_bytes, away, inside, domains)
    if built.expert_dispatch == "hybrid" or not facts.device.measures_expert_exchange:
        return there * 2.0
    measured = facts.device.moe_all_to_all(each, shape.expert_width, moe.experts_per_token, moe.num_experts, inside)
    return where(domains > 1, longer(measured, there * 2.0), measured)


def domains_reached(moe: MoeShape, domains: Ints) -> Floats:
    """NVLink domains that a token's experts lie in, on the mean of even routing.

    Parameters
    ----------
    moe
        The mixture, with the groups that its experts are chosen from.
    domains
        Equal domains that its experts are spread over, ``[C]``.

    Returns
    -------
    Floats
        Domains, ``[C]``; no more than the groups that a token chooses, where a group lies in one.
    """
    if moe.num_groups == 1:
        return _distinct(domains, moe.experts_per_token)
    n, groups = np.asarray(domains, dtype=np.float64), float(moe.num_groups)
    chosen = _distinct(np.asarray(moe.groups_per_token), moe.experts_per_token)  # groups with an expert of the token
    several = n * (1.0 - (1.0 - chosen / groups) ** (groups / n))  # groups in a domain
    shared = chosen * _distinct(np.maximum(n / groups, 1.0), moe.experts_per_token / chosen)  # domains of a group
    return np.asarray(np.where(n <= groups, several, shared))


def _distinct(places: Numbers, chosen: Floats | float) -> Floats:
    """How many of some equal places ``chosen`` experts lie in, on the mean of even routing."""
    n = np.asarray(places, dtype=np.float64)
    return n * (1.0 - (1.0 - 1.0 / n) ** chosen)
