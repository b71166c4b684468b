"""Collectives of a step of an inference engine: all-reduces inside a node and across, hops between pipeline stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Floats, Ints, Priced, where
from simulator.cost import comms, stage_hops
from simulator.cost.engine_attention import attention_ranks

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts

NETWORK_BASE_S, NETWORK_HOP_S = 14e-6, 8.5e-6
"""Small all-reduce across nodes: NCCL's own tuning model (``tuning.cc``, tree with LL128, its protocol for these
sizes) has 14 us base latency and 8.5 us per network hop, up the tree and down again."""


def layer_reduces(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, rows: Floats) -> Priced:
    """Collectives of one layer: an all-reduce after attention and one after the feed-forward.

    With attention copies the second is a gather before the experts and a scatter after them, over all ``tp`` GPUs: they
    are NCCL's, whose latency is above that of the engines' own all-reduce. A dense feed-forward stays with its copy.

    Parameters
    ----------
    rows
        Tokens of a step in the whole engine, ``[C, S]``.

    Returns
    -------
    Priced
        Seconds, the shape of ``rows``.
    """
    own, ranks = rows / layouts.attention_dp[:, None], np.broadcast_to(attention_ranks(layouts), rows.shape)
    token = shape.hidden * facts.activation_bytes
    first = decode_all_reduce(facts, own * token, ranks)
    if shape.moe is None:
        return first * shape.parts_per_layer
    share = shape.num_moe_layers / shape.num_layers
    tp = np.broadcast_to(layouts.tp[:, None], rows.shape)
    whole = decode_all_reduce(facts, rows * token, tp)
    copies = layouts.attention_dp[:, None] > 1
    if np.any(copies):
        whole = where(
            copies & (tp <= facts.group.nvlink_domain_gpus),
            _gather_and_scatter(facts, rows * shape.expert_width * facts.activation_bytes, tp),
            whole,
        )
    return first * (shape.parts_per_layer - share) + whole * share


def _gather_and_scatter(facts: Facts, num_bytes: Floats, ranks: Ints) -> Priced:
    """Tokens of all attention copies to every rank, and the sums of their experts back, inside an NVLink domain."""
    inside = np.minimum(ranks, facts.group.nvlink_domain_gpus)
    there = facts.device.collective("all_gather", num_bytes, inside)
    return there + facts.device.collective("reduce_scatter", num_bytes, inside)


def decode_all_reduce(facts: Facts, num_bytes: Floats, ranks: Ints) -> Priced:
    """All-reduce of an engine's step: measured inside an NVLink domain, hierarchical across.

    Across, the inside part scatters and gathers (as long as its all-reduce), and between them each rank's share crosses
    the network: ``base + 2 log2(domains) hop + 2 (d - 1) / d bytes / network of a domain``.

    Parameters
    ----------
    num_bytes, ranks
        Bytes of the tensor and ranks that reduce it; shapes broadcast.

    Returns
    -------
    Priced
        Seconds, the broadcast shape.

    Notes
    -----
    Source: vLLM's and NCCL's tables inside, NCCL's tuning model (``tuning.cc``) across, which no row measures alone.
    """
    domain = facts.group.nvlink_domain_gpus
    inside = np.minimum(ranks, domain)
    if facts.generation.custom_all_reduce:
        local = facts.device.decode_all_reduce(num_bytes, inside, facts.generation.cuda_graphs)
    else:
        local = facts.device.collective("all_reduce", num_bytes, inside)
    domains = -(-ranks // domain)
    if not np.any(domains > 1):
        return local
    # The engines' own kernels work inside a node alone: a group that leaves it is NCCL's everywhere.
    local = where(domains > 1, facts.device.collective("all_reduce", num_bytes, inside), local)
    wire = 2.0 * (domains - 1) / domains * num_bytes / comms.domain_bandwidth(facts)
    latency = NETWORK_BASE_S + 2.0 * np.ceil(np.log2(np.maximum(domains, 2))) * NETWORK_HOP_S
    return where(domains > 1, local + Priced.of(latency + wire, comms.network_basis(facts)), local)


def pipeline_hops(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, rows: Floats) -> Priced:
    """Activations of a group from stage to stage and back to the first, once a step.

    Parameters
    ----------
    rows
        Tokens of one group, ``[C, S]``.

    Returns
    -------
    Priced
        Seconds of a step, the shape of ``rows``.
    """
    pp, tp = layouts.pp[:, None], layouts.tp[:, None]
    num_bytes = rows * shape.hidden * facts.activation_bytes / tp
    return stage_hops.pipeline_hops(facts, num_bytes, tp, pp, layouts.dp[:, None], 2.0)  # back to the first is one more
