"""Price of moving the actor's weights from training to generation: on the same GPUs, or to a dedicated pool.

Volumes per GPU are Table 2 of the HybridFlow paper; the time adds the engine's own terms, because volumes alone
explain 7 to 16 % of the measured transitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Floats, Priced, longer, where
from simulator.cost import comms, engine_memory
from simulator.cost.call_cost import Cost
from simulator.cost.handover import (
    conversion_time,
    export_time,
    named_gather_time,
    nests,
    quantisation_time,
    sent_bytes_per_param,
    shares_weights,
)
from simulator.plan.groups import Degrees, transition_shares

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts, Layouts
    from simulator.plan.plan import Resharding


def transition_volume_bytes(method: Resharding, weight_bytes: float, p: int, t: int, d: int, pg: int, tg: int) -> float:
    """Bytes that each GPU receives (Table 2), ``M = weight_bytes``.

    ``ds-chat`` gathers over all ``p t d`` GPUs, ``hybridflow-v`` inside the training tensor-pipeline group,
    ``hybridflow`` inside each micro-DP group of ``d_g = p t / (p_g t_g)`` GPUs.

    Parameters
    ----------
    method
        Resharding of Table 2.
    weight_bytes
        ``M``, the whole model's.
    p, t, d
        Training degrees: pipeline, tensor, data.
    pg, tg
        Generation degrees: pipeline, tensor.

    Returns
    -------
    float
        Bytes.

    Raises
    ------
    InputError
        The degrees do not fill the GPUs, or do not nest where they must.

    Notes
    -----
    Source: Table 2 of HybridFlow (Sheng et al. 2025), ring volumes; equal to the printed digit.
    """
    return weight_bytes * float(transition_shares(method, Degrees(p, t, d, pg, tg)).moved)


def transition_peak_bytes(method: Resharding, weight_bytes: float, pg: int, tg: int) -> float:
    """Peak parameter bytes per GPU (Table 2).

    Parameters
    ----------
    method
        Resharding of Table 2.
    weight_bytes
        ``M``, the whole model's.
    pg, tg
        Generation degrees: pipeline, tensor.

    Returns
    -------
    float
        Bytes.

    Notes
    -----
    Source: Table 2 of HybridFlow. The conversion bucket comes on top (``conversion_bucket_bytes``).
    """
    return weight_bytes * float(transition_shares(method, Degrees(pg, tg, 1, pg, tg)).peak)


def transition_cost(
    facts: Facts,
    shape: ModelShape,
    training: Layouts,
    generation: GenerationLayouts,
    precision: str,
    method: Resharding = "hybridflow",
) -> Cost:
    """Time of the transition for pairs of layouts; zero where generation runs from the training buffers.

    ``hybridflow``: nested layouts gather inside micro-DP groups; others go through the general resharder, which
    receives the whole generation shard, as if nothing overlapped (FSDP shards count as not nested). ``hybridflow-v``
    gathers the whole model inside the tensor-pipeline group, ``ds-chat`` over all GPUs, both layer by layer, each layer
    a round in which all GPUs meet. A trainer that hands its weights over by name gathers every tensor on every rank
    (``named_gather_time``). On top: the engine's fixed time, and ``conversion_time``.

    Parameters
    ----------
    training, generation
        Pairs of layouts, ``[C]``.
    method
        Resharding of Table 2.

    Returns
    -------
    Cost
        Seconds, ``[C]``.

    Notes
    -----
    Source: Table 2 of HybridFlow for the volumes. Volumes alone are 84 to 93 % below Fig 14; with the engine's fitted
    terms the figure is 15 % off on the mean (docs/accuracy.md).
    """
    handled, moved = _handled_and_moved(facts, shape, training, generation, precision, method)
    engine = facts.generation
    rounds = np.where(np.asarray(method == "hybridflow"), 0, shape.num_layers * training.num_gpus)
    software = engine.priced(transition_fixed_s=1.0, gather_s_per_layer_per_gpu=rounds)
    software = software + conversion_time(facts, handled) + export_time(facts, shape)
    software = software + quantisation_time(facts, shape, precision)
    if facts.implementation.sleeping_engine == "keeps-weights":
        software = software + facts.device.host_copy(handled) * 2.0  # pinned: engines keep a place for it
    in_place = np.asarray(method == "hybridflow") & shares_weights(facts, training, generation)
    nothing = Priced.zero(in_place.shape)
    once = Cost.serial(where(in_place, nothing, software), where(in_place, nothing, moved))
    if not engine.gathers_every_batch:
        return once
    load = np.ceil(facts.workload.num_samples / generation.dp)
    return once * np.ceil(load / generation.max_num_seqs)


def _handled_and_moved(
    facts: Facts,
    shape: ModelShape,
    training: Layouts,
    generation: GenerationLayouts,
    precision: str,
    method: Resharding,
) -> tuple[Floats, Priced]:
    """Bytes that each GPU hands to its engine, ``[C]``, and the time of gathering them."""
    whole = shape.num_params * sent_bytes_per_param(precision)
    if method == "hybridflow":
        handled = engine_memory.generation_weight_bytes(shape, generation, sent_bytes_per_param(precision))
        moved = _gather_shards(facts, training, generation, handled)
    else:
        handled = np.full(len(training), whole)
        ranks = training.tp * training.pp * np.where(np.asarray(method == "ds-chat"), training.dp * training.cp, 1)
        moved = comms.strided(facts, "all_gather", whole, ranks, np.ones_like(ranks))
    if facts.training.export_s_per_tensor:
        moved = longer(moved, named_gather_time(facts, shape, training, whole))
    return handled, moved


def _gather_shards(facts: Facts, training: Layouts, generation: GenerationLayouts, shard: Floats) -> Priced:
    """All-gather of each generation shard: in its micro-DP group where the layouts nest, else over all who hold it."""
    a, b = np.maximum(training.tp // generation.tp, 1), np.maximum(training.pp // generation.pp, 1)
    blocks = np.clip(facts.group.nvlink_domain_gpus // training.tp, 1, b)  # blocks of the group, at stride t
    inside = comms.collective(facts, "all_gather", shard, a * b, a * blocks)
    ranks = training.tp * training.pp * np.where(training.zero_stage == 3, training.dp, 1)
    ranks = np.maximum(np.maximum(ranks, generation.tp * generation.pp), 2)
    nested = (nests(training, generation) > 0) & (training.zero_stage < 3)
    ranks = np.where(nested, 1, ranks)  # nothing is looked up for them: a machine with one GPU has no table
    general = comms.strided(facts, "all_gather", shard, ranks, np.ones_like(ranks))
    return where(nested, inside, general)
