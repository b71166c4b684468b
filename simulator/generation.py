"""Price of generation: prefill of the prompts and decode steps under continuous batching, for many layouts at once.

decode step = max(launch floor, GPU work of all layers + head) + host time per step and per sequence
stage       = sum over the slowest replica's decode steps + its prefills, which share the steps with decode
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Floats, Ints, Priced, longer
from profiles.units import DTYPE_BYTES
from simulator import memory
from simulator.cost import Cost
from simulator.engine_layer import (
    attention_of_decode,
    attention_of_prefill,
    layer_reduces,
    layer_work,
    pipeline_hops,
    sampling_head,
)
from simulator.rollout import RolloutProfile, arrival_lengths, rollout_profile
from simulator.rollout_kv import limited_profile

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
    found = [
        rollout_profile(int(q), int(b), work.engine_prompt_tokens, work.response, work.num_samples)
        for q, b in zip(loads, layouts.max_num_seqs, strict=True)
    ]
    return [_without_first(p, work.response.mean) for p in found] if facts.generation.first_token_in_prefill else found


def _without_first(profile: RolloutProfile, mean_response: float) -> RolloutProfile:
    """Decode steps of an engine whose prefill draws the first token: one step of each response less."""
    return replace(profile, steps=profile.steps * (1.0 - 1.0 / mean_response))


def kv_cache_bytes(facts: Facts, shape: ModelShape, layouts: GenerationLayouts) -> Floats:
    """KV budget of one GPU that holds the replica's fullest step without preemption, shape ``[C]``."""
    peak = np.asarray([p.peak_tokens for p in profiles_of(facts, layouts)])
    return peak * memory.kv_bytes_per_token(shape, layouts.tp, layouts.pp, facts.activation_bytes)


def generation_bytes(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision: str) -> dict[str, Floats]:
    """Memory of one GPU while the engine runs, by class, without what the pool's roles keep anyway."""
    return {
        "generation weights": memory.generation_weight_bytes(shape, layouts, DTYPE_BYTES[precision]),
        "kv cache": kv_cache_bytes(facts, shape, layouts),
        "generation workspace": memory.generation_working_bytes(facts, shape, layouts),
    }


def generation_cost(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision: str = "bf16") -> Cost:
    """Time of one ``generate_sequences`` call, shape ``[C]``."""
    profiles = [_in_cache(facts, shape, layouts, i, p) for i, p in enumerate(profiles_of(facts, layouts))]
    decode = profile_cost(facts, shape, layouts, profiles, precision)
    prefill = prefill_cost(facts, shape, layouts, precision)
    again = np.asarray([p.recomputed_tokens for p in profiles])
    prompts = sequences_per_replica(facts, layouts) * facts.workload.engine_prompt_tokens / _sharing(facts)
    whole: Cost = decode + prefill * (1.0 + again / np.maximum(prompts, 1.0))  # the evicted is computed as prompts are
    return whole + Cost.of_compute(Priced.of(np.full(len(layouts), facts.generation.call_s), Basis.PUBLISHED))


def _in_cache(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, i: int, profile: RolloutProfile
) -> RolloutProfile:
    """The ``i``-th candidate's profile in the cache that its layout states, if the fullest step exceeds that."""
    if layouts.kv_cache_bytes[i] == 0:
        return profile
    one = layouts.take(np.asarray([i]))
    held = float(one.kv_cache_bytes[0] / memory.kv_bytes_per_token(shape, one.tp, one.pp, facts.activation_bytes)[0])
    if held >= profile.peak_tokens:
        return profile
    work, num = facts.workload, int(sequences_per_replica(facts, one)[0])
    lengths = arrival_lengths(num, work.response, work.num_samples)
    return limited_profile(lengths, int(one.max_num_seqs[0]), work.engine_prompt_tokens, held)


def steady_generation_cost(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision: str = "bf16", steps_in_flight: int = 1
) -> Cost:
    """Time in which engines that never drain make one iteration's responses, shape ``[C]``.

    Asynchronous schedules keep ``steps_in_flight`` iterations of samples in the engines, so each replica always runs
    as many as its slots and its cache take. A decode step makes one token of each; the running ones are a
    length-biased sample, so their mean response so far is ``E[L^2] / 2 E[L]``.
    """
    work, mine = facts.workload, sequences_per_replica(facts, layouts).astype(np.float64)
    lengths = work.response.sample(512)
    mean, so_far = float(lengths.mean()), float((lengths**2).mean() / lengths.mean() / 2.0)
    context = work.engine_prompt_tokens + so_far
    budget = (
        layouts.kv_cache_bytes
        / memory.kv_bytes_per_token(shape, layouts.tp, layouts.pp, facts.activation_bytes)
        / context
    )
    room = np.where(layouts.kv_cache_bytes > 0, np.maximum(np.floor(budget), 1.0), np.inf)
    active = np.minimum(np.minimum(layouts.max_num_seqs, mine * steps_in_flight), room)
    step = decode_step(facts, shape, layouts, active[:, None], np.full((len(layouts), 1), context), precision)
    steps = mine * mean / active
    decode = Cost(*(part.sum(axis=1) * steps for part in (step.compute, step.comm, step.exposed)))
    return decode + prefill_cost(facts, shape, layouts, precision)


def _sharing(facts: Facts) -> int:
    """Samples that share one computed prompt."""
    return facts.workload.samples_per_prompt if facts.generation.prefix_sharing else 1


def profile_cost(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, profiles: list[RolloutProfile], precision: str
) -> Cost:
    """Decode steps of one profile per candidate, shape ``[C]``."""
    width = max((len(p.steps) for p in profiles), default=0)
    steps, active, context = (_padded([getattr(p, f) for p in profiles], width) for f in ("steps", "active", "context"))
    step = decode_step(facts, shape, layouts, active, context, precision)
    return Cost(*((part * steps).sum(axis=1) for part in (step.compute, step.comm, step.exposed)))


def decode_step(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, active: Floats, context: Floats, precision: str
) -> Cost:
    """One decode step of ``active`` sequences at mean ``context``, both ``[C, S]``.

    With pipeline stages the sequences are dealt over ``pp`` groups that follow each other, so a step of all of
    them lasts as long as one group takes through all layers. Nothing overlaps inside a layer: all-reduces wait
    for their GEMM and are waited for.
    """
    group = np.maximum(active / layouts.pp[:, None], 1.0)
    rows = group * (1.0 + facts.generation.recomputed_context * context)  # an engine without a whole KV cache
    layer = layer_work(facts, shape, layouts, rows, precision)
    layer = layer + attention_of_decode(facts, shape, layouts, group, context, precision)
    gpu = layer * float(shape.num_layers) + sampling_head(facts, shape, layouts, group)
    collectives = np.where(layouts.tp > 1, facts.generation.collective_launch_s, 0.0)[:, None]
    launch = facts.generation.launch_s_per_layer + collectives + 0.0 * group
    floor = Priced.of(launch * shape.num_layers, Basis.PUBLISHED)
    per_sequence = facts.generation.host_s_per_sequence + facts.generation.rollout_s_per_sequence
    host = facts.generation.host_s_per_step + per_sequence * active
    comm = layer_reduces(facts, shape, layouts, group) * float(shape.num_layers)
    comm = comm + pipeline_hops(facts, shape, layouts, group)
    busy = gpu + comm
    idle = longer(floor, busy) + busy * -1.0  # the launch floor beyond the GPU's own work is host time too
    # A CPU does what it launches itself: there the launches come on top of its work.
    beyond = floor.s if facts.device.spec.kind == "cpu" else np.maximum(idle.s, 0.0)
    waiting = Priced.of(beyond, Basis.PUBLISHED)
    return Cost.serial(gpu + waiting + Priced.of(host, Basis.PUBLISHED), comm)


def prefill_cost(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision: str) -> Cost:
    """All prompts of the fullest replica, in chunks of the engine's token budget.

    Prompts that several samples share are computed once where the engine shares prefixes. Chunks follow each other
    through the pipeline stages.
    """
    work = facts.workload
    prompts = np.ceil(sequences_per_replica(facts, layouts) / _sharing(facts))
    per_chunk = max(1.0, facts.generation.max_batched_tokens / work.engine_prompt_tokens)
    in_chunk = np.minimum(per_chunk, prompts)[:, None]
    if facts.generation.static_batches:
        in_chunk = np.minimum(in_chunk, layouts.max_num_seqs[:, None])
    length = np.full((len(layouts), 1), float(work.engine_prompt_tokens))
    layer = layer_work(facts, shape, layouts, in_chunk * length, precision)
    layer = layer + attention_of_prefill(facts, shape, layouts, in_chunk, length)
    comm = layer_reduces(facts, shape, layouts, in_chunk * length)
    chunks = prompts / in_chunk[:, 0]
    turns = np.ceil(shape.num_layers / layouts.pp) * (chunks + layouts.pp - 1)
    cost: Cost = Cost.serial(layer.sum(axis=1), comm.sum(axis=1)) * turns
    if not facts.generation.first_token_in_prefill:
        return cost
    return cost + _first_tokens(facts, shape, layouts, in_chunk, np.ceil(chunks), turns)


def _first_tokens(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, in_chunk: Floats, chunks: Floats, turns: Floats
) -> Cost:
    """What a prefill that draws a token has on top: head and sampling of its sequences, and the host's time."""
    head = sampling_head(facts, shape, layouts, in_chunk).sum(axis=1) * chunks
    engine = facts.generation
    per_sequence = (engine.host_s_per_sequence + engine.rollout_s_per_sequence) * in_chunk[:, 0]
    host = turns * engine.prefill_launch_s_per_layer + chunks * (engine.host_s_per_step + per_sequence)
    return Cost.of_compute(head + Priced.of(host, Basis.PUBLISHED))


def _padded(rows: list[Floats], width: int) -> Floats:
    """Stack ragged rows, repeating the last value; padded segments have zero steps, so the value does not matter."""
    out = np.zeros((len(rows), width))
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
        out[i, len(row) :] = 0.0
    return out
