"""One decode step of an engine under continuous batching, for many layouts at once.

decode step = max(launch floor, GPU work of all layers + head) + host time; max of all where the engine plans ahead
              with speculation over the drafted tokens too, and the draft's passes on top; it gives several tokens
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Floats, Priced
from simulator.cost.call_cost import Cost
from simulator.cost.engine_attention import attention_of_decode
from simulator.cost.engine_comms import layer_reduces, pipeline_hops
from simulator.cost.engine_launches import operators_of_layer
from simulator.cost.engine_layer import layer_work, sampling_head
from simulator.cost.speculation import (
    checked_tokens,
    draft_layers,
    drafting,
    drafts_launched,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from profiles.models.shape import ModelShape
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts


def decode_step(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, active: Floats, context: Floats, precision: str
) -> Cost:
    """One decode step of the sequences that run.

    With pipeline stages the sequences are dealt over ``pp`` groups that follow each other, so a step of all of them
    lasts as long as one group takes through all layers. Nothing overlaps inside a layer: all-reduces wait for their
    GEMM and are waited for.

    Parameters
    ----------
    active, context
        Sequences that run, and their mean tokens of cache, ``[C, S]``.

    Returns
    -------
    Cost
        Seconds, ``[C, S]``.

    Notes
    -----
    Host time per step and sequence are fits of each engine's release; where the engine plans ahead a step is the longer
    of host and GPU. Published steps are 5 % off on the median, 8 % on the mean (docs/accuracy.md).
    """
    facts = facts.of_engine
    group = np.maximum(active / layouts.pp[:, None], 1.0)
    step = _checked(facts, shape, layouts, group, context, precision)
    step = step + drafting(facts, shape, layouts, group, context, precision)
    gpu, comm = step.compute, step.comm
    collectives = np.where(layouts.tp > 1, facts.generation.collective_launch_s, 0.0)[:, None]
    launch = facts.generation.launch_s_per_layer + collectives + 0.0 * group
    launching = facts.generation.basis("launch_s_per_layer", "collective_launch_s")
    floor = Priced.of(launch * (shape.num_layers + draft_layers(facts)), launching)
    floor = floor + _beyond_graphs(facts, shape, layouts, group, precision)
    # Each attention copy has a scheduler of its own, and they work at the same time.
    busy, host = gpu + comm, host_time(facts, active / layouts.attention_dp[:, None], 1.0) + _read_back(facts, layouts)
    ahead = facts.generation.plans_ahead and facts.implementation.engine_driver == "own"
    launched = drafts_launched(facts)
    if launched:
        host = host + facts.generation.priced(host_s_per_step=launched + 0.0 * active)
    if ahead and not launched:
        return Cost.serial(gpu + _beyond(floor + host, busy), comm)
    if facts.device.spec.kind == "cpu":  # a CPU does what it launches itself: launches come on top of its work
        return Cost.serial(gpu + floor + host, comm)
    return Cost.serial(gpu + _beyond(floor, busy) + host, comm)


def _beyond_graphs(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, group: Floats, precision: str
) -> Priced:
    """Launches of a step that no CUDA graph holds: those of a step with prompts, which none holds either."""
    engine, tokens = facts.generation, group * checked_tokens(facts) / layouts.attention_dp[:, None]
    beyond = (engine.captured_tokens > 0.0) & (tokens > engine.captured_tokens)
    operators = operators_of_layer(facts, shape, layouts, precision)[:, None]
    return engine.priced(prefill_launch_s_per_layer=np.where(beyond, operators * shape.num_layers, 0.0))


def _checked(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, group: Floats, context: Floats, precision: str
) -> Cost:
    """The model's own pass of a step, over the last token of each sequence and those that were drafted after it."""
    tokens = checked_tokens(facts)
    rows = group * tokens * (1.0 + facts.generation.recomputed_context * context)  # an engine without a whole KV cache
    layer = layer_work(facts, shape, layouts, rows, precision).at_best(facts.generation.basis("recomputed_context"))
    # The tokens of a sequence read its cache together. Latent attention is bound by compute, so that each has its own
    # time; elsewhere the queries of a KV head still fit one tile of the tensor cores.
    queries = group if shape.mla is None else group * tokens
    layer = layer + attention_of_decode(facts, shape, layouts, queries, context, precision)
    gpu = layer * float(shape.num_layers) + sampling_head(facts, shape, layouts, group * tokens)
    comm = layer_reduces(facts, shape, layouts, group * tokens) * float(shape.num_layers)
    return Cost.serial(gpu, comm + pipeline_hops(facts, shape, layouts, group * tokens))


def _read_back(facts: Facts, layouts: GenerationLayouts) -> Priced:
    """What a step waits for the results that workers of other nodes send to the engine's scheduler, ``[C, 1]``."""
    ranks = layouts.tp * layouts.pp
    remote = ranks - np.minimum(ranks, facts.group.gpus_per_node)
    used = facts.implementation.engine_driver == "ray-graph"
    return facts.generation.priced(host_s_per_remote_rank=np.where(used, remote, 0.0)[:, None])


def _beyond(host: Priced, busy: Priced) -> Priced:
    """What of host time the GPU's own work does not hide, on the host's basis."""
    beyond: Priced = host * (np.maximum(host.s - busy.s, 0.0) / np.maximum(host.s, np.finfo(float).tiny))
    return beyond


def host_time(facts: Facts, sequences: Floats, steps: ArrayLike) -> Priced:
    """Host time of an engine's steps.

    Parameters
    ----------
    sequences
        In each step.
    steps
        How many; shapes broadcast.

    Returns
    -------
    Priced
        Seconds, the broadcast shape.
    """
    served = sequences * np.asarray(steps)
    return facts.generation.priced(host_s_per_step=steps, host_s_per_sequence=served)
