"""What the data-parallel ranks of a trainer do once a step: reduce gradients, gather parameters, update."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Floats, Priced, exposed
from profiles.units import DTYPE_BYTES
from simulator.cost import comms, parameters
from simulator.cost.call_cost import Cost, choose
from simulator.cost.formats import is_quantized

if TYPE_CHECKING:
    from profiles.models.shape import Head, ModelShape
    from simulator.facts import Facts
    from simulator.plan.layouts import Layouts


def data_parallel_cost(
    facts: Facts, shape: ModelShape, head: Head, layouts: Layouts, num_micro: Floats, forward: Cost, backward: Cost
) -> Cost:
    """Gradient reduction and parameter gathering of one step.

    ZeRO 0 all-reduces gradients; 1 and 2 reduce-scatter them and gather the updated parameters; with overlap all
    but one layer's share hides behind the last backward and first forward pass of the stage. ZeRO 2 keeps no whole
    gradients and scatters them in every backward pass. ZeRO 3 gathers the
    parameters in every forward and backward pass and scatters gradients in every backward pass, layer by layer
    beside the compute of the layer before; copies between flat buffers and tensors run on the compute stream. Frozen
    weights (LoRA) are gathered and have no gradients.

    Parameters
    ----------
    num_micro
        Micro-batches of a step, ``[C]``.
    forward, backward
        Cost of a micro-batch on one stage, ``[C]``.

    Returns
    -------
    Cost
        Seconds of a step, ``[C]``.

    Notes
    -----
    Source: ZeRO (Rajbhandari et al. 2020), FSDP (Zhao et al. 2023). Buckets are whole layers, so one layer's share is
    bare; buckets of a size of their own may hide a little more.
    """
    params = parameters.params_per_gpu(shape, head, layouts.tp, layouts.pp, layouts.ep)
    ranks = layouts.dp * layouts.cp
    inside = comms.replicas_in_domain(facts, layouts.tp, layouts.cp, layouts.pp, layouts.dp)
    gather = gather_time(facts, shape, head, layouts)
    learned = trained_params(facts, shape, head, layouts)
    reduced = learned * facts.training.grad_reduce_bytes_per_param
    scatter = comms.collective(facts, "reduce_scatter", reduced, ranks, inside)
    scatter = scatter.at_best(facts.training.basis("grad_reduce_bytes_per_param"))
    reach = 1.0 - 1.0 / np.ceil(shape.num_layers / layouts.pp)  # the first bucket to gather, the last to reduce
    reach = reach * facts.training.overlap_dp
    updated = _beside(forward, gather, reach * (0.0 if facts.training.gathers_at_step else 1.0))
    scattered = _beside(backward, scatter, reach)
    once = updated + choose(layouts.zero_stage == 2, scattered * num_micro, scattered)
    ahead = facts.training.gathers_ahead
    hideable = reach * (1.0 - facts.implementation.fsdp_exposure) * ahead
    backwards = gather * (1.0 + regathered_share(facts, shape, layouts))
    every = _beside(forward, gather, hideable) + _beside(backward, backwards * ahead + scatter, reach)
    every = every + Cost.serial(Priced.zero((len(layouts),)), backwards * (1.0 - ahead))
    copied = 2.0 * params * facts.training.gather_copy_bytes_per_param
    copied = copied + learned * facts.training.scatter_copy_bytes_per_param
    copies = facts.training.basis("gather_copy_bytes_per_param", "scatter_copy_bytes_per_param")
    every = (every + Cost.of_compute(facts.device.memory_bound(copied, 0).at_best(copies))) * num_micro
    return choose(layouts.zero_stage == 3, every, once)


def gather_time(facts: Facts, shape: ModelShape, head: Head, layouts: Layouts) -> Priced:
    """One gathering of all parameters, and what each layer's round costs per GPU that takes part.

    Returns
    -------
    Priced
        Seconds, ``[C]``.
    """
    params = parameters.params_per_gpu(shape, head, layouts.tp, layouts.pp, layouts.ep)
    ranks = layouts.dp * layouts.cp
    inside = comms.replicas_in_domain(facts, layouts.tp, layouts.cp, layouts.pp, layouts.dp)
    gather = comms.collective(facts, "all_gather", params * facts.activation_bytes, ranks, inside)
    if not facts.training.gather_s_per_layer_per_gpu:
        return gather
    rounds = np.where(ranks > 1, shape.num_layers * ranks, 0)
    return gather + facts.training.priced(gather_s_per_layer_per_gpu=rounds)


def regathered_share(facts: Facts, shape: ModelShape, layouts: Layouts) -> Floats:
    """Share of parameters that ZeRO 3 gathers once more between the recomputation of a layer and its backward pass.

    From a module's recomputation to its backward pass a run passes up to twice the layer's parameters, evenly spread
    over its modules; those for which it passes more than the engine looks ahead are freed and fetched anew.

    Returns
    -------
    Floats
        Shares, ``[C]``; 0 without full recomputation.

    Notes
    -----
    Source: ``__params_to_release`` of DeepSpeed 0.14.0, ``runtime/zero/partitioned_param_coordinator.py:487``.
    """
    kept = facts.training.reuse_distance_params
    if not kept:
        return np.zeros(len(layouts))
    far = np.maximum(1.0 - kept / (2.0 * shape.layer_params / shape.num_layers), 0.0)
    return np.asarray(np.where(layouts.recompute == 2, far, 0.0), dtype=np.float64)


def trained_params(facts: Facts, shape: ModelShape, head: Head, layouts: Layouts) -> Floats:
    """Parameters on one GPU that have gradients: all of them, or the adapters.

    Returns
    -------
    Floats
        Parameters, ``[C]``.
    """
    built = facts.implementation
    if built.lora_rank:
        return parameters.adapter_params(shape, built, facts.training.fused_projections, layouts)
    return parameters.params_per_gpu(shape, head, layouts.tp, layouts.pp, layouts.ep)


def optimizer_time(facts: Facts, shape: ModelShape, head: Head, layouts: Layouts) -> Priced:
    """Adam on the owned parameters: memory traffic per parameter from the engine's facts.

    Returns
    -------
    Priced
        Seconds of a step, ``[C]``.
    """
    params = trained_params(facts, shape, head, layouts)
    owned = params / np.where(layouts.zero_stage >= 1, layouts.dp * layouts.cp, 1)
    moved = facts.device.memory_bound(owned * facts.training.optimizer_traffic_bytes_per_param, 4)
    return moved.at_best(facts.training.basis("optimizer_traffic_bytes_per_param"))


def quantisation_time(facts: Facts, shape: ModelShape, head: Head, layouts: Layouts) -> Priced:
    """Weights quantised once a step: read in bf16, written twice (once transposed) in the format of the products.

    Returns
    -------
    Priced
        Seconds of a step, ``[C]``; none in other formats.
    """
    dtype = facts.implementation.training_dtype
    if not is_quantized(dtype):
        return Priced.zero((len(layouts),))
    params = parameters.params_per_gpu(shape, head, layouts.tp, layouts.pp, layouts.ep)
    return facts.device.memory_bound(params * (facts.activation_bytes + 2.0 * DTYPE_BYTES[dtype]), 0)


def accumulation_cost(facts: Facts, shape: ModelShape, head: Head, layouts: Layouts, num_micro: Floats) -> Cost:
    """Adding each micro-batch's gradients to the step's, where they are kept apart.

    Parameters
    ----------
    num_micro
        Micro-batches of a step, ``[C]``.

    Returns
    -------
    Cost
        Seconds of a step, ``[C]``.
    """
    if not facts.training.accumulate_bytes_per_param:
        return Cost.of_compute(Priced.zero((len(layouts),)))
    num_bytes = trained_params(facts, shape, head, layouts) * facts.training.accumulate_bytes_per_param
    time = facts.device.memory_bound(num_bytes, 0).at_best(facts.training.basis("accumulate_bytes_per_param"))
    return Cost.of_compute(time * num_micro)


def small_reduces_cost(facts: Facts, layouts: Layouts) -> Cost:
    """All-reduces of single numbers in a step (counts, norms, metrics): latency, and ranks that wait for each other.

    Returns
    -------
    Cost
        Seconds of a step, ``[C]``.
    """
    num = facts.training.small_reduces_per_step
    if not num:
        return Cost.of_compute(Priced.zero((len(layouts),)))
    inside = comms.replicas_in_domain(facts, layouts.tp, layouts.cp, layouts.pp, layouts.dp)
    ranks = layouts.dp * layouts.cp
    each = comms.collective(facts, "all_reduce", np.full(len(layouts), 8.0), ranks, inside)
    waiting = facts.training.priced(meeting_s=np.where(ranks > 1, facts.training.meetings_per_step, 0.0))
    return Cost.serial(Priced.zero((len(layouts),)), each * num + waiting)


def _beside(work: Cost, comm: Priced, reach: Floats) -> Cost:
    """Extra cost of ``comm`` when a ``reach`` of it may hide behind the compute that ``work`` leaves uncovered."""
    window = (work.compute + work.exposed).s - work.comm.s
    hidden = np.minimum(comm.s * reach, np.maximum(window, 0.0))
    return Cost(Priced.zero(comm.shape), comm, exposed(comm, hidden))
