"""Price of a training call: every optimizer step of the iteration, for many layouts at once.

step = pipeline of micro-batches (1F1B) + gradient and parameter traffic that is not hidden + optimizer
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Floats, Ints, Priced, exposed
from simulator.cost import comms, compute, memory, moe, pipeline
from simulator.cost.call_cost import Cost, choose
from simulator.cost.compute import Batch, LayerTime
from simulator.cost.pipeline import NUM_LENGTHS, sample_lengths

if TYPE_CHECKING:
    from profiles.models.shape import Head, ModelShape
    from profiles.workload import Workload
    from simulator.facts import Facts
    from simulator.plan.layouts import Layouts


@dataclass(frozen=True, eq=False)
class Pass:
    """Cost of one micro-batch through an average layer and through the head, forward and backward."""

    layer_forward: Cost
    layer_backward: Cost
    head_forward: Cost
    head_backward: Cost


def micro_batch(
    workload: Workload, layouts: Layouts, samples_per_rank: Floats, packed_tokens: int | None = None
) -> tuple[Batch, Floats]:
    """The mean micro-batch of a rank and how many of them it runs.

    Padding is removed: a sample has ``prompt + mean response`` tokens; the attention length is the token-weighted
    mean length, so that attention's square is counted over the distribution. A micro-batch is ``micro_batch``
    sequences, or ``micro_batch`` packs of ``packed_tokens``. The last one may be partial, which the mean size
    accounts for; their number is a whole one.
    """
    units = samples_per_rank
    if packed_tokens is not None:
        units = np.ceil(samples_per_rank * packs_per_sample(workload, packed_tokens))
    num = np.ceil(units / layouts.micro_batch)
    sequences = samples_per_rank / num
    lengths = sample_lengths(workload)
    weighted = float((lengths**2).sum() / lengths.sum())
    tokens = sequences * workload.trained_tokens_per_sample
    return Batch(tokens, tokens / weighted, np.full(len(layouts), weighted)), num


@functools.lru_cache(maxsize=256)
def packs_per_sample(workload: Workload, capacity_tokens: int) -> float:
    """Packs per sample when sequences are packed first-fit-decreasing into ``capacity_tokens``."""
    packs: list[float] = []
    for length in sorted(sample_lengths(workload), reverse=True):
        room = next((i for i, used in enumerate(packs) if used + length <= capacity_tokens), None)
        if room is None:
            packs.append(float(length))
        else:
            packs[room] += float(length)
    return len(packs) / NUM_LENGTHS


def waiting(facts: Facts, layouts: Layouts, batch: Batch, num_micro: Floats, *, backward: bool = True) -> Floats:
    """What varying lengths add to a rank's micro-batches, as ``pipeline.waiting``; nothing where packs are full."""
    if facts.implementation.packed_tokens is not None:
        return np.ones(len(layouts))
    sequences = batch.tokens / facts.workload.trained_tokens_per_sample
    return pipeline.waiting(facts.workload, layouts, sequences, num_micro, backward=backward)


def training_cost(facts: Facts, shape: ModelShape, head: Head, layouts: Layouts, rows_per_sample: int = 1) -> Cost:
    """Time of ``update_actor`` or ``update_critic``: epochs x minibatches optimizer steps, shape ``[C]``.

    ``rows_per_sample``: 2 where each step also learns from a row of pretraining text beside every sample, in
    micro-batches of its own.
    """
    work = facts.workload
    share = np.ceil(work.minibatch_samples / layouts.dp)
    batch, num_micro = micro_batch(work, layouts, share, facts.implementation.packed_tokens)
    num_micro = num_micro * rows_per_sample
    one = one_pass(facts, shape, head, layouts, batch)
    forward = _stage(one.layer_forward, one.head_forward, shape, layouts)
    backward = _stage(one.layer_backward, one.head_backward, shape, layouts)
    passes = pipeline_cost(facts, shape, layouts, batch, num_micro, one)
    passes = passes * waiting(facts, layouts, batch, num_micro)
    step = passes + data_parallel_cost(facts, shape, head, layouts, num_micro, forward, backward)
    fixed = facts.training.priced(step_fixed_s=np.ones(len(layouts)))
    step = step + Cost.of_compute(optimizer_time(facts, shape, head, layouts) + fixed)
    step = step + _accumulation(facts, shape, head, layouts, num_micro) + _small_reduces(facts, layouts)
    return step * float(work.epochs * work.minibatches) + per_call(facts, layouts)


def per_call(facts: Facts, layouts: Layouts) -> Cost:
    """What a training or scoring call costs however much it computes."""
    return Cost.of_compute(facts.training.priced(call_s=np.ones(len(layouts))))


def _accumulation(facts: Facts, shape: ModelShape, head: Head, layouts: Layouts, num_micro: Floats) -> Cost:
    """Adding each micro-batch's gradients to the step's, where they are kept apart."""
    if not facts.training.accumulate_bytes_per_param:
        return Cost.of_compute(Priced.zero((len(layouts),)))
    num_bytes = trained_params(facts, shape, head, layouts) * facts.training.accumulate_bytes_per_param
    time = facts.device.memory_bound(num_bytes, 0).at_best(facts.training.basis("accumulate_bytes_per_param"))
    return Cost.of_compute(time * num_micro)


def _small_reduces(facts: Facts, layouts: Layouts) -> Cost:
    """All-reduces of single numbers in a step (counts, norms, metrics): latency, and ranks that wait for each other."""
    num = facts.training.small_reduces_per_step
    if not num:
        return Cost.of_compute(Priced.zero((len(layouts),)))
    inside = comms.replicas_in_domain(facts, layouts.tp, layouts.cp, layouts.pp, layouts.dp)
    ranks = layouts.dp * layouts.cp
    each = comms.collective(facts, "all_reduce", np.full(len(layouts), 8.0), ranks, inside)
    waiting = facts.training.priced(meeting_s=np.where(ranks > 1, facts.training.meetings_per_step, 0.0))
    return Cost.serial(Priced.zero((len(layouts),)), each * num + waiting)


def one_pass(facts: Facts, shape: ModelShape, head: Head, layouts: Layouts, batch: Batch) -> Pass:
    """One micro-batch through an average layer and the head.

    Full recomputation adds a forward pass to the backward pass; selective adds the element-wise part.
    """
    forward, backward = layer_costs(facts, shape, layouts, batch, facts.implementation.training_dtype)
    small = compute.elementwise(facts, shape, batch.tokens / layouts.cp, layouts.tp)
    nothing = Cost.of_compute(Priced.zero((len(layouts),)))
    forward = launched(facts, forward, "forward_s_per_layer")
    backward = launched(facts, backward, "backward_s_per_layer")
    again = choose(layouts.recompute == 2, forward, choose(layouts.recompute == 1, Cost.of_compute(small), nothing))
    ends = ("forward_s_per_pass", "backward_s_per_pass")
    if head == "scalar":
        return Pass(forward, backward + again, *(launched(facts, nothing, end) for end in ends))
    hf, hb = compute.vocabulary_head(facts, shape, head_tokens(facts, batch) / layouts.cp, layouts.tp)
    costs = (Cost.of_compute(hf), Cost.of_compute(hb))
    return Pass(forward, backward + again, *(launched(facts, c, end) for c, end in zip(costs, ends, strict=True)))


def head_tokens(facts: Facts, batch: Batch) -> Floats:
    """Tokens of a micro-batch that go through the vocabulary head: all, or those of the responses."""
    if not facts.training.head_on_responses:
        return batch.tokens
    work = facts.workload
    return batch.tokens * (work.response.mean / work.trained_tokens_per_sample)


def launched(facts: Facts, cost: Cost, constant: str) -> Cost:
    """``cost`` where the host needs a constant's time to launch it: a floor under a GPU's time, more work for a CPU."""
    launch_s = float(getattr(facts.training, constant))
    if not launch_s:
        return cost
    waiting = launch_s if facts.device.spec.kind == "cpu" else np.maximum(launch_s - cost.time.s, 0.0)
    return cost + Cost.of_compute(Priced.of(waiting + 0.0 * cost.time.s, facts.training.basis(constant)))


def layer_costs(
    facts: Facts, shape: ModelShape, layouts: Layouts, batch: Batch, dtype: str = "bf16"
) -> tuple[Cost, Cost]:
    """Forward and backward of one average layer with its tensor, context and expert parallel communication."""
    forward, backward = _without_context_exchange(facts, shape, layouts, batch, dtype)
    exchange = _context_exchange(facts, shape, layouts, batch)
    return forward.hide(exchange), backward.hide(exchange * 2.0)


def _without_context_exchange(
    facts: Facts, shape: ModelShape, layouts: Layouts, batch: Batch, dtype: str
) -> tuple[Cost, Cost]:
    tp, cp = layouts.tp, layouts.cp
    gather, scatter = _tensor_parallel(facts, shape, layouts, batch)
    if shape.moe is None:
        return _layer_cost(facts, compute.dense_layer(facts, shape, batch, tp, cp, dtype), gather, scatter, tp)
    sparse = _moe_layer_cost(facts, shape, layouts, batch, gather, scatter, dtype)
    if not shape.num_dense_layers:
        return sparse
    dense = _layer_cost(facts, compute.dense_layer(facts, shape, batch, tp, cp, dtype), gather, scatter, tp)
    share = shape.num_moe_layers / shape.num_layers
    return sparse[0] * share + dense[0] * (1 - share), sparse[1] * share + dense[1] * (1 - share)


def _context_exchange(facts: Facts, shape: ModelShape, layouts: Layouts, batch: Batch) -> Priced:
    """Keys and values of one layer to every context-parallel rank, as ring attention passes them on.

    It runs beside the attention of the chunk before; the backward pass moves keys and values and their gradients.
    """
    heads = np.maximum(shape.num_kv_heads / layouts.tp, 1.0)
    num_bytes = batch.tokens * 2.0 * heads * shape.head_dim * facts.activation_bytes
    return comms.strided(facts, "all_gather", num_bytes, layouts.cp, layouts.tp)


def pipeline_cost(
    facts: Facts, shape: ModelShape, layouts: Layouts, batch: Batch, num_micro: Floats, one: Pass
) -> Cost:
    """All micro-batches through the pipeline: ``(n - 1)`` times the slowest stage plus once through every stage.

    That is 1F1B with uneven stages: the first stages hold ``ceil(L / p)`` layers, the last one what is left and
    the head. Activations hop between stages once each way per micro-batch. With ``v`` chunks per stage the ramp is
    ``v`` times shorter and there are ``v`` times the hops (interleaved 1F1B, Narayanan et al. 2021).
    """
    layer = one.layer_forward + one.layer_backward
    head = one.head_forward + one.head_backward
    slowest = slowest_stage(layer, head, shape, layouts)
    through = layer * float(shape.num_layers) + head
    there_and_back = hops(facts, shape, layouts, batch, num_micro * layouts.vpp) * 2.0
    ramp = (through + slowest * -1.0) * (1.0 / layouts.vpp)
    return slowest * num_micro + ramp + Cost.serial(Priced.zero((len(layouts),)), there_and_back)


def slowest_stage(layer: Cost, head: Cost, shape: ModelShape, layouts: Layouts) -> Cost:
    """The stage that paces the pipeline: a full stage of layers, or the last one with the head."""
    full = np.ceil(shape.num_layers / layouts.pp)
    last = np.maximum(shape.num_layers - (layouts.pp - 1) * full, 0)
    with_head = layer * last + head
    without = layer * full
    return choose(with_head.time.s >= without.time.s, with_head, without)


def data_parallel_cost(
    facts: Facts, shape: ModelShape, head: Head, layouts: Layouts, num_micro: Floats, forward: Cost, backward: Cost
) -> Cost:
    """Gradient reduction and parameter gathering of one step.

    ZeRO 0 all-reduces gradients; 1 and 2 reduce-scatter them and gather the updated parameters; with overlap all
    but one layer's share hides behind the last backward and first forward pass of the stage. ZeRO 3 gathers the
    parameters in every forward and backward pass and scatters gradients in every backward pass, layer by layer
    beside the compute of the layer before; copies between flat buffers and tensors run on the compute stream. Frozen
    weights (LoRA) are gathered and have no gradients.
    """
    params = memory.params_per_gpu(shape, head, layouts.tp, layouts.pp, layouts.ep)
    ranks = layouts.dp * layouts.cp
    inside = comms.replicas_in_domain(facts, layouts.tp, layouts.cp, layouts.pp, layouts.dp)
    gather = comms.collective(facts, "all_gather", params * facts.activation_bytes, ranks, inside)
    learned = trained_params(facts, shape, head, layouts)
    reduced = learned * facts.training.grad_reduce_bytes_per_param
    scatter = comms.collective(facts, "reduce_scatter", reduced, ranks, inside)
    scatter = scatter.at_best(facts.training.basis("grad_reduce_bytes_per_param"))
    reach = 1.0 - 1.0 / np.ceil(shape.num_layers / layouts.pp)  # the first bucket to gather, the last to reduce
    reach = reach * facts.training.overlap_dp
    once = _beside(forward, gather, reach) + _beside(backward, scatter, reach)
    hideable = reach * (1.0 - facts.implementation.fsdp_exposure)
    every = _beside(forward, gather, hideable) + _beside(backward, gather + scatter, reach)
    copied = 2.0 * params * facts.training.gather_copy_bytes_per_param
    copied = copied + learned * facts.training.scatter_copy_bytes_per_param
    copies = facts.training.basis("gather_copy_bytes_per_param", "scatter_copy_bytes_per_param")
    every = (every + Cost.of_compute(facts.device.memory_bound(copied, 0).at_best(copies))) * num_micro
    return choose(layouts.zero_stage == 3, every, once)


def trained_params(facts: Facts, shape: ModelShape, head: Head, layouts: Layouts) -> Floats:
    """Parameters on one GPU that have gradients: all of them, or the adapters."""
    if facts.implementation.lora_rank:
        return memory.adapter_params(shape, facts.implementation.lora_rank, layouts)
    return memory.params_per_gpu(shape, head, layouts.tp, layouts.pp, layouts.ep)


def optimizer_time(facts: Facts, shape: ModelShape, head: Head, layouts: Layouts) -> Priced:
    """Adam on the owned parameters: memory traffic per parameter from the engine's facts."""
    params = trained_params(facts, shape, head, layouts)
    owned = params / np.where(layouts.zero_stage >= 1, layouts.dp * layouts.cp, 1)
    moved = facts.device.memory_bound(owned * facts.training.optimizer_traffic_bytes_per_param, 4)
    return moved.at_best(facts.training.basis("optimizer_traffic_bytes_per_param"))


def _stage(layer: Cost, head: Cost, shape: ModelShape, layouts: Layouts) -> Cost:
    """One micro-batch through the layers of one stage (the head where the whole model is one stage)."""
    return layer * np.ceil(shape.num_layers / layouts.pp) + head * np.where(layouts.pp == 1, 1.0, 0.0)


def _beside(work: Cost, comm: Priced, reach: Floats) -> Cost:
    """Extra cost of ``comm`` when a ``reach`` of it may hide behind the compute that ``work`` leaves uncovered."""
    window = (work.compute + work.exposed).s - work.comm.s
    hidden = np.minimum(comm.s * reach, np.maximum(window, 0.0))
    left = exposed(comm, Priced.of(hidden, 0))
    return Cost(Priced.zero(comm.shape), comm, left)


def _tensor_parallel(facts: Facts, shape: ModelShape, layouts: Layouts, batch: Batch) -> tuple[Priced, Priced]:
    """One all-gather and one reduce-scatter of the micro-batch's hidden states over the tensor-parallel group.

    An engine without sequence parallelism has one all-reduce in their place.
    """
    num_bytes = batch.tokens / layouts.cp * shape.hidden * facts.activation_bytes
    stride = np.ones_like(layouts.tp)
    if not facts.training.sequence_parallel:
        reduce = comms.strided(facts, "all_reduce", num_bytes, layouts.tp, stride)
        return reduce * 0.5, reduce * 0.5
    gather = comms.strided(facts, "all_gather", num_bytes, layouts.tp, stride)
    scatter = comms.strided(facts, "reduce_scatter", num_bytes, layouts.tp, stride)
    return gather, scatter


def _layer_cost(facts: Facts, time: LayerTime, gather: Priced, scatter: Priced, tp: Ints) -> tuple[Cost, Cost]:
    """Add sequence-parallel communication to a layer with two column- and two row-parallel projections.

    Forward: a gather before and a scatter after each block, nothing to hide behind. Backward of a row-parallel
    projection gathers its output gradient first (exposed); that of a column-parallel one gathers its input again
    beside the input-gradient GEMM and scatters the input gradient beside the weight-gradient GEMM. An engine
    without ``overlap_tp`` exposes them all. With user buffers the forward ones run beside their GEMM too, chunk by
    chunk, but for one of ``t`` chunks.
    """
    beside = Cost.overlapped if facts.training.overlap_tp else Cost.serial
    around = (gather + scatter) * 2.0
    forward = Cost.serial(time.forward, around)
    if facts.implementation.tensor_parallel_overlap:
        bare = 1.0 / np.maximum(tp, 1)
        forward = Cost.overlapped(time.forward, around * (1.0 - bare)) + Cost.serial(
            Priced.zero(around.shape), around * bare
        )
    inputs = beside(time.backward_input, gather * 2.0)
    weights = beside(time.backward_weight, scatter * 2.0)
    again = gather * (2.0 if facts.training.sequence_parallel else 0.0)
    rest = Cost.serial(time.backward_other, again)
    return forward, inputs + weights + rest


def _moe_layer_cost(
    facts: Facts, shape: ModelShape, layouts: Layouts, batch: Batch, gather: Priced, scatter: Priced, dtype: str
) -> tuple[Cost, Cost]:
    """Attention half with its own gather and scatter, then experts with their all-to-all, nothing overlapped."""
    tp, cp, ep = layouts.tp, layouts.cp, layouts.ep
    time = compute.attention_layer(facts, shape, batch, tp, cp, dtype)
    forward, backward = _layer_cost(facts, time, gather * 0.5, scatter * 0.5, tp)
    experts_forward, experts_backward = moe.experts_training(facts, shape, batch, tp, cp, ep)
    exchange = moe.dispatch_and_combine(facts, shape, batch.tokens / cp, tp, ep)
    sliced = (gather + scatter) * np.where(ep > 1, 0.0, 1.0)  # experts sliced over tp need the whole hidden state
    return (
        forward + Cost.serial(experts_forward, exchange + sliced),
        backward + Cost.serial(experts_backward, exchange + sliced),
    )


def hops(facts: Facts, shape: ModelShape, layouts: Layouts, batch: Batch, passes: Floats) -> Priced:
    """Activations of ``passes`` micro-batches from stage to stage; each tensor-parallel rank sends its slice."""
    num_bytes = batch.tokens / layouts.cp * shape.hidden * facts.activation_bytes / layouts.tp
    return comms.pipeline_hops(facts, num_bytes, layouts.tp * layouts.cp, layouts.pp, layouts.dp, passes)
