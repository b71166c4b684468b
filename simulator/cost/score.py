"""Price of a forward-only call: log-probs, values or scores of every sample, for many layouts at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Priced
from simulator.cost import comms, parameters
from simulator.cost.call_cost import Cost, choose
from simulator.cost.host_launches import launches_of_layer, paced
from simulator.cost.micro_batches import head_tokens, micro_batch
from simulator.cost.pipeline import waiting
from simulator.cost.train import per_call, slowest_stage
from simulator.cost.trainer_layer import hops, launched, layer_costs
from simulator.cost.vocabulary_head import vocabulary_head

if TYPE_CHECKING:
    from profiles.models.shape import Head, ModelShape
    from simulator.facts import Facts
    from simulator.plan.layouts import Layouts


def inference_cost(facts: Facts, shape: ModelShape, head: Head, layouts: Layouts, precision: str = "bf16") -> Cost:
    """One forward pass over all samples of the iteration.

    Micro-batches stream through the pipeline: ``(n - 1)`` times the slowest stage plus once through all. With ZeRO 3
    each layer's parameters are gathered beside the layer before, in every micro-batch.

    Returns
    -------
    Cost
        Seconds, ``[C]``.

    Raises
    ------
    NoBasisError
        The device has no table of an operator.

    Notes
    -----
    The training pass's forward part; published log-prob stages are 2 to 11 % off (docs/accuracy.md).
    """
    samples = np.ceil(facts.workload.num_samples / layouts.dp)
    batch, num_micro = micro_batch(facts.workload, layouts, samples, facts.implementation.packed_tokens)
    layer, _ = layer_costs(facts, shape, layouts, batch, precision)
    nothing = Cost.of_compute(Priced.zero((len(layouts),)))
    last = nothing
    if head == "lm":
        tokens = head_tokens(facts, batch) / layouts.cp
        last = Cost.of_compute(vocabulary_head(facts, shape, tokens, layouts.tp)[0])
    layer = paced(
        facts, launched(facts, layer, "forward_s_per_layer", batch.sequences), launches_of_layer(facts, shape, layouts)
    )
    last = launched(facts, last, "forward_s_per_pass")
    slowest = slowest_stage(layer, last, shape, layouts)
    through = layer * float(shape.num_layers) + last
    passing = hops(facts, shape, layouts, batch, num_micro)
    fullest = waiting(facts, layouts, batch, num_micro, backward=False)
    cost = (slowest * (num_micro - 1) + through) * fullest + Cost.serial(nothing.compute, passing)
    cost = cost + per_call(facts, layouts)
    if not np.any(layouts.zero_stage == 3):
        return cost
    params = parameters.params_per_gpu(shape, head, layouts.tp, layouts.pp, layouts.ep) * facts.activation_bytes
    inside = comms.replicas_in_domain(facts, layouts.tp, layouts.cp, layouts.pp, layouts.dp)
    gather = comms.collective(facts, "all_gather", params, layouts.dp * layouts.cp, inside)
    bare = facts.implementation.fsdp_exposure
    gathered = cost.hide(gather * (num_micro * (1.0 - bare))) + Cost.serial(
        nothing.compute, gather * (num_micro * bare)
    )
    return choose(layouts.zero_stage == 3, gathered, cost)
