"""Price of generation: prefill of the prompts and decode steps under continuous batching, for many layouts at once.

decode step = max(launch floor, GPU work of all layers + head) + host time per step and per sequence
stage       = sum over the slowest replica's decode steps + its prefills, which share the steps with decode
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Floats, Ints, Priced, longer
from profiles.units import DTYPE_BYTES
from simulator import compute, memory, moe, training
from simulator.compute import ACTIVATION_BYTES, Batch
from simulator.cost import Cost
from simulator.layouts import Layouts
from simulator.rollout import RolloutProfile, rollout_profile

if TYPE_CHECKING:
    from profiles.model_shape import ModelShape
    from simulator.facts import Facts
    from simulator.layouts import GenerationLayouts


def sequences_per_replica(facts: Facts, layouts: GenerationLayouts) -> Ints:
    """Responses that the fullest replica generates in one call."""
    return np.asarray(-(-facts.workload.num_samples // layouts.dp), dtype=np.int64)


def profiles_of(facts: Facts, layouts: GenerationLayouts) -> list[RolloutProfile]:
    """Step profile of each candidate's fullest replica."""
    work, loads = facts.workload, sequences_per_replica(facts, layouts)
    return [
        rollout_profile(int(q), int(b), work.engine_prompt_tokens, work.response, work.num_samples)
        for q, b in zip(loads, layouts.max_num_seqs, strict=True)
    ]


def kv_cache_bytes(facts: Facts, shape: ModelShape, layouts: GenerationLayouts) -> Floats:
    """KV budget of one GPU that holds the replica's fullest step without preemption, shape ``[C]``."""
    peak = np.asarray([p.peak_tokens for p in profiles_of(facts, layouts)])
    return peak * memory.kv_bytes_per_token(shape, layouts.tp, layouts.pp)


def generation_bytes(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision: str) -> dict[str, Floats]:
    """Memory of one GPU while the engine runs, by class, without what the pool's roles keep anyway."""
    return {
        "generation weights": memory.generation_weight_bytes(shape, layouts, DTYPE_BYTES[precision]),
        "kv cache": kv_cache_bytes(facts, shape, layouts),
        "generation workspace": memory.generation_working_bytes(facts, shape, layouts),
    }


def generation_cost(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision: str = "bf16") -> Cost:
    """Time of one ``generate_sequences`` call, shape ``[C]``."""
    profiles = profiles_of(facts, layouts)
    width = max((len(p.steps) for p in profiles), default=0)
    steps, active, context = (_padded([getattr(p, f) for p in profiles], width) for f in ("steps", "active", "context"))
    step = decode_step(facts, shape, layouts, active, context, precision)
    decode = Cost(*((part * steps).sum(axis=1) for part in (step.compute, step.comm, step.exposed)))
    return decode + prefill_cost(facts, shape, layouts, precision)


def decode_step(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, active: Floats, context: Floats, precision: str
) -> Cost:
    """One decode step of ``active`` sequences at mean ``context``, both ``[C, S]``.

    With pipeline stages the sequences are dealt over ``pp`` groups that follow each other, so a step of all of
    them lasts as long as one group takes through all layers. Nothing overlaps inside a layer: all-reduces wait
    for their GEMM and are waited for.
    """
    tp, pp = layouts.tp[:, None], layouts.pp[:, None]
    group = np.maximum(active / pp, 1.0)
    layer = _decode_layer(facts, shape, group, context, tp, precision)
    small = compute.elementwise_bytes_per_token(shape, tp) * group
    layer = layer + facts.device.memory_bound(small, facts.generation.kernels_per_layer)
    gpu = layer * float(shape.num_layers) + _sampling_head(facts, shape, group, tp, precision)
    floor = Priced.of(facts.generation.launch_s_per_layer * shape.num_layers, Basis.PUBLISHED)
    host = facts.generation.host_s_per_step + facts.generation.host_s_per_sequence * active
    reduce = facts.device.decode_all_reduce(
        group * shape.hidden * ACTIVATION_BYTES, np.broadcast_to(tp, group.shape), facts.generation.cuda_graphs
    )
    comm = reduce * (2.0 * shape.num_layers)
    busy = gpu + comm
    idle = longer(floor, busy) + busy * -1.0  # the launch floor beyond the GPU's own work is host time too
    waiting = Priced.of(np.maximum(idle.s, 0.0), Basis.PUBLISHED)
    return Cost.serial(gpu + waiting + Priced.of(host, Basis.PUBLISHED), comm)


def prefill_cost(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision: str) -> Cost:
    """All prompts of the fullest replica, in chunks of the engine's token budget.

    Prompts that several samples share are computed once where the engine shares prefixes. Chunks follow each other
    through the pipeline stages.
    """
    work = facts.workload
    shared = work.samples_per_prompt if facts.generation.prefix_sharing else 1
    prompts = np.ceil(sequences_per_replica(facts, layouts) / shared)
    per_chunk = max(1.0, facts.generation.max_batched_tokens / work.engine_prompt_tokens)
    in_chunk = np.minimum(per_chunk, prompts)
    length = np.full(len(layouts), work.engine_prompt_tokens)
    batch = Batch(in_chunk * length, in_chunk, length, sustained=False)
    one = np.ones(len(layouts), dtype=np.int64)
    as_training = Layouts(layouts.dp, layouts.tp, layouts.pp, one, one, one, one, 0 * one)
    layer, _ = training.layer_costs(facts, shape, as_training, batch, precision)
    chunks = prompts / in_chunk
    return layer * (np.ceil(shape.num_layers / layouts.pp) * (chunks + layouts.pp - 1))


def _decode_layer(facts: Facts, shape: ModelShape, rows: Floats, context: Floats, tp: Ints, precision: str) -> Priced:
    """Projections, attention over the cache and feed-forward of one average layer, one new token per row."""
    ranks = np.broadcast_to(tp, rows.shape)
    heads = shape.num_heads / ranks
    if shape.mla is not None:
        attention = facts.device.mla_decode(rows, context, heads)
        projections = [] if facts.device.mla_covers_projections else compute.attention_gemms(shape, ranks)
    else:
        kv = np.maximum(shape.num_kv_heads / ranks, 1.0)
        attention = facts.device.attention_decode(rows, context, heads, kv, shape.head_dim)
        projections = compute.attention_gemms(shape, ranks)
    dense_mlp = compute.mlp_gemms(shape, shape.ffn / ranks.astype(np.float64))
    if shape.moe is None:
        return attention + compute.run_gemms(facts, rows, projections + dense_mlp, precision)
    if projections:
        attention = attention + compute.run_gemms(facts, rows, projections, precision)
    share = shape.num_moe_layers / shape.num_layers
    layer = attention + moe.experts_decode(facts, shape, rows, ranks, precision) * share
    if share < 1.0:
        layer = layer + compute.run_gemms(facts, rows, dense_mlp, precision) * (1.0 - share)
    return layer


def _sampling_head(facts: Facts, shape: ModelShape, rows: Floats, tp: Ints, precision: str) -> Priced:
    """Vocabulary projection of one row per sequence, then reads of fp32 logits by softmax and sampling."""
    ranks = np.broadcast_to(tp, rows.shape).astype(np.float64)
    gemm = [(shape.vocab / ranks, shape.hidden + 0 * ranks)]
    sampling = facts.device.memory_bound(
        16.0 * rows * shape.vocab, 12
    )  # about 4 passes over fp32 logits, a dozen kernels
    return compute.run_gemms(facts, rows, gemm, "bf16") + sampling


def _padded(rows: list[Floats], width: int) -> Floats:
    """Stack ragged rows, repeating the last value; padded segments have zero steps, so the value does not matter."""
    out = np.zeros((len(rows), width))
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
        out[i, len(row) :] = 0.0
    return out
