"""One layer of a trainer on one rank with its communication, forward and backward, and the hops between stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Floats, Ints, Priced
from simulator.cost import comms, compute, expert_exchange, moe, stage_hops
from simulator.cost.call_cost import Cost

if TYPE_CHECKING:
    from collections.abc import Hashable

    from profiles.models.shape import ModelShape
    from simulator.cost.compute import Batch, LayerTime
    from simulator.facts import Facts
    from simulator.plan.layouts import Layouts


MOST_KEPT = 64
"""Candidates up to which a layer's price is kept: calls of one plan ask for it again. A search has many at once, seldom
the same ones again, and they would fill the memory."""


@dataclass(frozen=True, eq=False)
class _Degrees:
    """The degrees that share a layer between ranks, ``[C]`` each, and nothing else of a layout."""

    tp: Ints
    cp: Ints
    ep: Ints

    @staticmethod
    def of(layouts: Layouts) -> _Degrees:
        return _Degrees(layouts.tp, layouts.cp, layouts.ep)


def layer_costs(
    facts: Facts, shape: ModelShape, layouts: Layouts, batch: Batch, dtype: str = "bf16"
) -> tuple[Cost, Cost]:
    """One average layer with its tensor, context and expert parallel communication.

    Parameters
    ----------
    batch, dtype
        Micro-batch of a rank, ``[C]``; number format of the GEMMs.

    Returns
    -------
    tuple[Cost, Cost]
        Costs forward and backward, ``[C]`` each.
    """
    degrees = _Degrees.of(layouts)

    def priced() -> tuple[Cost, Cost]:
        forward, backward = _without_context_exchange(facts, shape, degrees, batch, dtype)
        exchange = _context_exchange(facts, shape, degrees, batch)
        return forward.hide(exchange), backward.hide(exchange * 2.0)

    if len(layouts) > MOST_KEPT:
        return priced()
    return facts.kept.of(_key(shape, degrees, batch, dtype), priced)


def _key(shape: ModelShape, degrees: _Degrees, batch: Batch, dtype: str) -> Hashable:
    """All that the price of a layer depends on beside the facts."""
    columns = (degrees.tp, degrees.cp, degrees.ep, batch.tokens, batch.sequences, batch.length)
    return ("layer", shape, dtype, batch.sustained, *((column.shape, column.tobytes()) for column in columns))


EACH_SEQUENCE = {
    "forward_s_per_layer": "forward_s_per_layer_sequence",
    "backward_s_per_layer": "backward_s_per_layer_sequence",
}
"""What an engine that launches the attention of each packed sequence by itself adds to a layer's launches."""


def launched(facts: Facts, cost: Cost, constant: str, sequences: Floats | float = 0.0) -> Cost:
    """``cost`` where the host needs a constant's time to launch it: a floor under a GPU's time, more work for a CPU.

    Parameters
    ----------
    cost
        Of a layer or a pass, ``[C]``.
    constant
        Name of the engine's host seconds.
    sequences
        Of the micro-batch on a rank, for a layer, ``[C]``.

    Returns
    -------
    Cost
        The cost with the wait, ``[C]``.
    """
    engine, each = facts.training, EACH_SEQUENCE.get(constant)
    once_s = float(getattr(engine, constant))
    by_sequence_s = np.asarray(0.0 if each is None else float(getattr(engine, each)) * sequences)
    whole_s = once_s + by_sequence_s
    if not np.any(whole_s):
        return cost
    waiting = whole_s if facts.device.spec.kind == "cpu" else np.maximum(whole_s - cost.time.s, 0.0)
    waiting = waiting + 0.0 * cost.time.s
    first = Priced.of(waiting * (once_s / whole_s), engine.basis(constant))
    if each is None or not np.any(by_sequence_s):
        return cost + Cost.of_compute(first)
    return cost + Cost.of_compute(first + Priced.of(waiting * (by_sequence_s / whole_s), engine.basis(each)))


def hops(facts: Facts, shape: ModelShape, layouts: Layouts, batch: Batch, passes: Floats) -> Priced:
    """Activations of ``passes`` micro-batches from stage to stage; each tensor-parallel rank sends its slice.

    Parameters
    ----------
    batch
        Micro-batch of a rank, ``[C]``.
    passes
        Micro-batches that follow each other, ``[C]``.

    Returns
    -------
    Priced
        Seconds one way, ``[C]``.
    """
    num_bytes = batch.tokens / layouts.cp * shape.hidden * facts.activation_bytes / layouts.tp
    return stage_hops.pipeline_hops(facts, num_bytes, layouts.tp * layouts.cp, layouts.pp, layouts.dp, passes)


def _without_context_exchange(
    facts: Facts, shape: ModelShape, layouts: _Degrees, batch: Batch, dtype: str
) -> tuple[Cost, Cost]:
    tp, cp = layouts.tp, layouts.cp
    gather, scatter = _tensor_parallel(facts, shape, layouts, batch)
    if shape.parts_per_layer < 2.0:
        return _of_single_parts(facts, shape, layouts, batch, gather, scatter, dtype)
    if shape.moe is None:
        return _layer_cost(facts, compute.dense_layer(facts, shape, batch, tp, cp, dtype), gather, scatter, tp)
    sparse = _moe_layer_cost(facts, shape, layouts, batch, gather, scatter, dtype)
    if not shape.num_dense_layers:
        return sparse
    dense = _layer_cost(facts, compute.dense_layer(facts, shape, batch, tp, cp, dtype), gather, scatter, tp)
    share = shape.num_moe_layers / shape.num_layers
    return sparse[0] * share + dense[0] * (1 - share), sparse[1] * share + dense[1] * (1 - share)


def _of_single_parts(
    facts: Facts, shape: ModelShape, layouts: _Degrees, batch: Batch, gather: Priced, scatter: Priced, dtype: str
) -> tuple[Cost, Cost]:
    """An average layer of a model with layers that are a mixer, a dense MLP or experts alone (Nemotron-H).

    Each part has its own gather and scatter. The others are priced as wholes with a mixer, which is taken out of them.
    """
    tp, cp = layouts.tp, layouts.cp
    mixers = compute.attention_layer(facts, shape, batch, tp, cp, dtype)  # of an average layer, which may have none
    mixed = 0.5 * (1.0 - shape.num_mixer_free_layers / shape.num_layers)
    found = list(_layer_cost(facts, mixers, gather * mixed, scatter * mixed, tp))
    mixer = _layer_cost(facts, mixers, gather * 0.5, scatter * 0.5, tp)
    others = []
    if shape.num_dense_layers:
        whole = _layer_cost(facts, compute.dense_layer(facts, shape, batch, tp, cp, dtype), gather, scatter, tp)
        others.append((whole, shape.num_dense_layers / shape.num_layers))
    if shape.moe is not None:
        whole = _moe_layer_cost(facts, shape, layouts, batch, gather, scatter, dtype)
        others.append((whole, shape.num_moe_layers / shape.num_layers))
    for whole, share in others:
        found = [cost + (w + m * -1.0) * share for cost, w, m in zip(found, whole, mixer, strict=True)]
    return found[0], found[1]


def _context_exchange(facts: Facts, shape: ModelShape, layouts: _Degrees, batch: Batch) -> Priced:
    """Keys and values of one layer to every context-parallel rank, as ring attention passes them on.

    It runs beside the attention of the chunk before; the backward pass moves keys and values and their gradients.
    """
    heads = np.maximum(shape.num_kv_heads / layouts.tp, 1.0)
    num_bytes = batch.tokens * 2.0 * heads * shape.head_dim * facts.activation_bytes
    return comms.strided(facts, "all_gather", num_bytes, layouts.cp, layouts.tp)


def _tensor_parallel(facts: Facts, shape: ModelShape, layouts: _Degrees, batch: Batch) -> tuple[Priced, Priced]:
    """One all-gather and one reduce-scatter of the micro-batch's hidden states over the tensor-parallel group.

    An engine without sequence parallelism has one all-reduce in their place. PyTorch's copy what they move once
    (``region_copies``), but for the asynchronous ones.
    """
    num_bytes = batch.tokens / layouts.cp * shape.hidden * facts.activation_bytes
    stride = np.ones_like(layouts.tp)
    if not facts.training.sequence_parallel:
        reduce = comms.strided(facts, "all_reduce", num_bytes, layouts.tp, stride)
        return reduce * 0.5, reduce * 0.5
    gather = comms.strided(facts, "all_gather", num_bytes, layouts.tp, stride)
    scatter = comms.strided(facts, "reduce_scatter", num_bytes, layouts.tp, stride)
    copies = facts.training.region_copies
    if not copies or facts.implementation.tensor_parallel_overlap:
        return gather, scatter
    moved = facts.device.memory_bound(np.where(layouts.tp > 1, 2.0 * copies * num_bytes, 0.0), 0)
    moved = moved.at_best(facts.training.basis("region_copies"))
    return gather + moved, scatter + moved


def gathered_again(facts: Facts, shape: ModelShape, layouts: Layouts, batch: Batch) -> Cost:
    """Gathers of a layer that recomputation repeats where it keeps what was scattered and not what was gathered.

    Parameters
    ----------
    batch
        Micro-batch of a rank, ``[C]``.

    Returns
    -------
    Cost
        Two gathers with nothing to hide behind, or with asynchronous tensor parallelism one of their ``t`` chunks,
        ``[C]``.

    Notes
    -----
    Source: torchtitan's per-operator policy of activation checkpoints, which saves reduce-scatters; not measured apart.
    """
    gather, _ = _tensor_parallel(facts, shape, _Degrees.of(layouts), batch)
    bare = 1.0 / np.maximum(layouts.tp, 1) if facts.implementation.tensor_parallel_overlap else 1.0
    return Cost.serial(Priced.zero((len(layouts),)), gather * (2.0 * bare))


def _layer_cost(facts: Facts, time: LayerTime, gather: Priced, scatter: Priced, tp: Ints) -> tuple[Cost, Cost]:
    """Add sequence-parallel communication to a layer with two column- and two row-parallel projections.

    Forward: a gather before and a scatter after each block, nothing to hide behind. Backward of a row-parallel
    projection gathers its output gradient first (exposed); that of a column-parallel one gathers its input again
    beside the input-gradient GEMM and scatters the input gradient beside the weight-gradient GEMM, either of which
    keeps ``overlap_tp`` of its pace meanwhile: an engine with 0 exposes them all, and one that kept the input whole
    gathers it no second time. With user buffers (PyTorch: asynchronous tensor parallelism) the forward ones run beside
    their GEMM too, chunk by chunk, but for one of ``t`` chunks.
    """
    pace = facts.training.overlap_tp
    around = (gather + scatter) * 2.0
    forward = Cost.serial(time.forward, around)
    if facts.implementation.tensor_parallel_overlap:
        bare = 1.0 / np.maximum(tp, 1)
        forward = Cost.overlapped(time.forward, around * (1.0 - bare)) + Cost.serial(
            Priced.zero(around.shape), around * bare
        )
    inputs = Cost.beside(time.backward_input, gather * (2.0 if facts.training.gathers_again else 0.0), pace)
    weights = Cost.beside(time.backward_weight, scatter * 2.0, pace)
    again = gather * (2.0 if facts.training.sequence_parallel else 0.0)
    rest = Cost.serial(time.backward_other, again)
    return forward, inputs + weights + rest


def _moe_layer_cost(
    facts: Facts, shape: ModelShape, layouts: _Degrees, batch: Batch, gather: Priced, scatter: Priced, dtype: str
) -> tuple[Cost, Cost]:
    """Attention half with its own gather and scatter, then experts with their exchange.

    Nothing overlaps, unless the exchange of one micro-batch runs beside the compute of another.
    """
    tp, cp, ep = layouts.tp, layouts.cp, layouts.ep
    time = compute.attention_layer(facts, shape, batch, tp, cp, dtype)
    forward, backward = _layer_cost(facts, time, gather * 0.5, scatter * 0.5, tp)
    experts_forward, experts_backward = moe.experts_training(facts, shape, batch, tp, cp, ep)
    exchange = expert_exchange.dispatch_and_combine(facts, shape, batch.tokens / cp, tp, ep)
    if facts.implementation.expert_overlap:
        return (
            (forward + Cost.of_compute(experts_forward)).hide(exchange),
            (backward + Cost.of_compute(experts_backward)).hide(exchange),
        )
    sliced = (gather + scatter) * np.where(ep > 1, 0.0, 1.0)  # experts sliced over tp need the whole hidden state
    return (
        forward + Cost.serial(experts_forward, exchange + sliced),
        backward + Cost.serial(experts_backward, exchange + sliced),
    )
