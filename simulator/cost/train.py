"""Price of a training call: every optimizer step of the iteration, for many layouts at once.

step = pipeline of micro-batches (1F1B) + gradient and parameter traffic that is not hidden + optimizer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Floats, Priced
from simulator.cost import compute, moe
from simulator.cost.activations import recomputed_share
from simulator.cost.call_cost import Cost, choose
from simulator.cost.data_parallel import (
    accumulation_cost,
    data_parallel_cost,
    optimizer_time,
    quantisation_time,
    small_reduces_cost,
)
from simulator.cost.host_launches import BACKWARD, launches_of_layer, paced
from simulator.cost.micro_batches import head_tokens, micro_batch
from simulator.cost.mixers import attention_passes
from simulator.cost.pipeline import waiting
from simulator.cost.trainer_layer import gathered_again, hops, launched, layer_costs
from simulator.cost.vocabulary_head import vocabulary_head

if TYPE_CHECKING:
    from profiles.models.shape import Head, ModelShape
    from simulator.cost.compute import Batch
    from simulator.facts import Facts
    from simulator.plan.layouts import Layouts


@dataclass(frozen=True, eq=False)
class Pass:
    """Cost of one micro-batch through an average layer and through the head, forward and backward."""

    layer_forward: Cost
    layer_backward: Cost
    head_forward: Cost
    head_backward: Cost


def training_cost(facts: Facts, shape: ModelShape, head: Head, layouts: Layouts, rows_per_sample: int = 1) -> Cost:
    """Time of ``update_actor`` or ``update_critic``: epochs x minibatches optimizer steps.

    Parameters
    ----------
    rows_per_sample
        2 where each step also learns from a row of pretraining text beside every sample, in micro-batches of its own.

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
    Source: 1F1B with Megatron's overlaps (Narayanan et al. 2021, Korthikanti et al. 2022) and ZeRO. On published steps
    that nothing was fitted on it is 5 % off on the median and 2 % too fast on the mean (docs/accuracy.md).
    """
    work = facts.workload
    share = np.ceil(work.minibatch_samples / layouts.dp)
    batch, num_micro = micro_batch(work, layouts, share, facts.implementation.packed_tokens)
    num_micro = num_micro * rows_per_sample
    one = one_pass(facts, shape, head, layouts, batch)
    forward = _stage(one.layer_forward, one.head_forward, shape, layouts)
    backward = _stage(one.layer_backward, one.head_backward, shape, layouts)
    pipeline = pipeline_cost(facts, shape, layouts, batch, num_micro, one)
    pipeline = pipeline * waiting(facts, layouts, batch, num_micro)
    step = pipeline + data_parallel_cost(facts, shape, head, layouts, num_micro, forward, backward)
    fixed = facts.training.priced(step_fixed_s=np.ones(len(layouts)))
    once = optimizer_time(facts, shape, head, layouts) + quantisation_time(facts, shape, head, layouts)
    step = step + Cost.of_compute(once + fixed)
    step = step + accumulation_cost(facts, shape, head, layouts, num_micro) + small_reduces_cost(facts, layouts)
    return step * float(work.epochs * work.minibatches) + per_call(facts, layouts)


def per_call(facts: Facts, layouts: Layouts) -> Cost:
    """What a training or scoring call costs however much it computes.

    Returns
    -------
    Cost
        Seconds, ``[C]``.
    """
    return Cost.of_compute(facts.training.priced(call_s=np.ones(len(layouts))))


def one_pass(facts: Facts, shape: ModelShape, head: Head, layouts: Layouts, batch: Batch) -> Pass:
    """One micro-batch through an average layer and the head.

    Full recomputation adds a forward pass to the backward pass, of as many layers as it covers; selective adds the
    element-wise part with experts' activations, what products it computes again, and attention in tensor operations.

    Parameters
    ----------
    batch
        Micro-batch of a rank, ``[C]``.

    Returns
    -------
    Pass
        Costs of a micro-batch, ``[C]`` each.
    """
    forward, backward = layer_costs(facts, shape, layouts, batch, facts.implementation.training_dtype)
    selective = _selective(facts, shape, layouts, batch)
    nothing = Cost.of_compute(Priced.zero((len(layouts),)))
    launches = launches_of_layer(facts, shape, layouts)
    forward = paced(facts, launched(facts, forward, "forward_s_per_layer", batch.sequences), launches)
    backward = paced(facts, launched(facts, backward, "backward_s_per_layer", batch.sequences), launches * BACKWARD)
    again = choose(
        layouts.recompute == 2,
        forward * recomputed_share(facts, shape, layouts),
        choose(layouts.recompute == 1, selective, nothing),
    )
    ends = ("forward_s_per_pass", "backward_s_per_pass")
    if head == "scalar":
        return Pass(forward, backward + again, *(launched(facts, nothing, end) for end in ends))
    hf, hb = vocabulary_head(facts, shape, head_tokens(facts, batch) / layouts.cp, layouts.tp)
    costs = (Cost.of_compute(hf), Cost.of_compute(hb))
    return Pass(forward, backward + again, *(launched(facts, c, end) for c, end in zip(costs, ends, strict=True)))


def _selective(facts: Facts, shape: ModelShape, layouts: Layouts, batch: Batch) -> Cost:
    """What selective recomputation adds to a layer's backward pass."""
    small = compute.elementwise(facts, shape, batch.tokens / layouts.cp, layouts.tp)
    if shape.moe is not None:
        small = small + moe.unfused_activation(facts, shape, batch.tokens / layouts.cp, layouts.tp, layouts.ep)
    if facts.implementation.selective_recompute == "every-second-product":
        dtype, tokens = facts.implementation.training_dtype, batch.tokens / layouts.cp
        small = small + compute.second_products(facts, shape, tokens, layouts.tp, dtype)
    if facts.implementation.attention_kernel == "math":  # its scores are what Korthikanti et al. compute again
        attention, _ = attention_passes(facts, shape, batch, layouts.tp, layouts.cp)
        small = small + attention * (shape.num_attention_layers / shape.num_layers)
    selective = Cost.of_compute(small)
    if facts.implementation.selective_recompute == "every-second-product":
        selective = selective + gathered_again(facts, shape, layouts, batch)
    return selective


def pipeline_cost(
    facts: Facts, shape: ModelShape, layouts: Layouts, batch: Batch, num_micro: Floats, one: Pass
) -> Cost:
    """All micro-batches through the pipeline: ``(n - 1)`` times the slowest stage plus once through every stage.

    That is 1F1B with uneven stages: the first stages hold ``ceil(L / p)`` layers, the last one what is left and
    the head. Activations hop between stages once each way per micro-batch. With ``v`` chunks per stage the ramp is
    ``v`` times shorter and there are ``v`` times the hops (interleaved 1F1B, Narayanan et al. 2021).

    Parameters
    ----------
    batch
        Micro-batch of a rank, ``[C]``.
    num_micro
        Micro-batches of a step, ``[C]``.
    one
        Cost of one of them.

    Returns
    -------
    Cost
        Seconds of a step, ``[C]``.
    """
    layer = one.layer_forward + one.layer_backward
    head = one.head_forward + one.head_backward
    slowest = slowest_stage(layer, head, shape, layouts)
    through = layer * float(shape.num_layers) + head
    there_and_back = hops(facts, shape, layouts, batch, num_micro * layouts.vpp) * 2.0
    ramp = (through + slowest * -1.0) * (1.0 / layouts.vpp)
    return slowest * num_micro + ramp + Cost.serial(Priced.zero((len(layouts),)), there_and_back)


def slowest_stage(layer: Cost, head: Cost, shape: ModelShape, layouts: Layouts) -> Cost:
    """The stage that paces the pipeline: a full stage of layers, or the last one with the head.

    Parameters
    ----------
    layer, head
        Cost of one layer, and of the head behind the last one.

    Returns
    -------
    Cost
        Cost of one micro-batch there, ``[C]``.
    """
    full = np.ceil(shape.num_layers / layouts.pp)
    last = np.maximum(shape.num_layers - (layouts.pp - 1) * full, 0)
    with_head = layer * last + head
    without = layer * full
    return choose(with_head.time.s >= without.time.s, with_head, without)


def _stage(layer: Cost, head: Cost, shape: ModelShape, layouts: Layouts) -> Cost:
    """One micro-batch through the layers of one stage (the head where the whole model is one stage)."""
    return layer * np.ceil(shape.num_layers / layouts.pp) + head * np.where(layouts.pp == 1, 1.0, 0.0)
