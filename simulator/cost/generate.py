"""Price of generation: prefill of the prompts and decode steps under continuous batching, for many layouts at once.

stage = sum over the slowest replica's decode steps + its prefills, which share the steps with decode
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from profiles.units import DTYPE_BYTES
from simulator.cost import engine_memory
from simulator.cost.call_cost import Cost
from simulator.cost.decode import decode_step, host_time
from simulator.cost.engine_attention import attention_of_prefill
from simulator.cost.engine_comms import layer_reduces
from simulator.cost.engine_layer import layer_work, sampling_head
from simulator.cost.kv_budget import (
    bytes_of_tokens,
    drained_profiles,
    sequences_per_replica,
    stated_bytes,
    steady_sequences,
    tokens_in_bytes,
)
from simulator.cost.speculation import (
    draft_weight_bytes,
    tokens_per_step,
)
from simulator.rollout.drain import RolloutProfile, arrival_lengths
from simulator.rollout.limited_cache import limited_profile
from simulator.rollout.steady import steady_state

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from profiles.records import Floats
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts


def profiles_of(facts: Facts, layouts: GenerationLayouts) -> list[RolloutProfile]:
    """Step profile of each candidate's fullest replica, less the steps that its engine has no need of.

    Returns
    -------
    list[RolloutProfile]
        One profile per candidate.
    """
    found = drained_profiles(facts, layouts)
    mean = facts.workload.response.mean
    return [_without_first(p, mean) for p in found] if facts.generation.first_token_in_prefill else found


def _without_first(profile: RolloutProfile, mean_response: float) -> RolloutProfile:
    """Decode steps of an engine whose prefill draws the first token: one step of each response less."""
    return replace(profile, steps=profile.steps * (1.0 - 1.0 / mean_response))


def generation_bytes(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision: str, steady_steps: int | None = None
) -> dict[str, Floats]:
    """Memory of one GPU while the engine runs, without what the pool's roles keep anyway.

    Parameters
    ----------
    steady_steps
        As in ``kv_budget_bytes``.

    Returns
    -------
    dict[str, Floats]
        Bytes by class, ``[C]`` each.
    """
    classes = {
        "generation weights": engine_memory.generation_weight_bytes(shape, layouts, DTYPE_BYTES[precision]),
        "kv cache": stated_bytes(facts, shape, layouts, steady_steps),
        "generation workspace": engine_memory.generation_working_bytes(facts, shape, layouts),
    }
    if facts.speculation is not None:
        classes["draft weights"] = draft_weight_bytes(facts, shape, layouts, DTYPE_BYTES[precision])
    return classes


def generation_cost(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision: str = "bf16", num_segments: int = 0
) -> Cost:
    """Time of one ``generate_sequences`` call.

    Parameters
    ----------
    num_segments
        Of the profile that has most of them, where not all layouts are priced at once: sums of as many terms are
        rounded alike.

    Returns
    -------
    Cost
        Seconds, ``[C]``.

    Raises
    ------
    NoBasisError
        The device has no table of an operator.
    InfeasibleError
        A stated KV cache does not hold the longest sequence.

    Notes
    -----
    Makespan of the fullest replica under continuous batching (Orca, Yu et al. 2022; vLLM, Kwon et al. 2023). On
    published decode steps it is 5 % off on the median, 8 % on the mean, on HybridFlow's Fig 15 12 % (docs/accuracy.md).
    """
    facts = facts.of_engine
    profiles = _in_cache(facts, shape, layouts, profiles_of(facts, layouts))
    decode = profile_cost(facts, shape, layouts, profiles, precision, num_segments)
    prefill = prefill_cost(facts, shape, layouts, precision)
    again = np.asarray([p.recomputed_tokens for p in profiles])
    prompts = sequences_per_replica(facts, layouts) * facts.workload.engine_prompt_tokens / _sharing(facts)
    whole: Cost = decode + prefill * (1.0 + again / np.maximum(prompts, 1.0))  # the evicted is computed as prompts are
    once = np.ones(len(layouts))
    return whole + Cost.of_compute(facts.generation.priced(call_s=once, batch_wait_s=once))


def _in_cache(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, profiles: list[RolloutProfile]
) -> list[RolloutProfile]:
    """The profiles in the caches that the layouts state, where the fullest step exceeds those."""
    peak = bytes_of_tokens(facts, shape, layouts, np.asarray([p.peak_tokens for p in profiles]))
    short = np.flatnonzero((layouts.kv_cache_bytes > 0) & (layouts.kv_cache_bytes < peak))
    loads, held = sequences_per_replica(facts, layouts), tokens_in_bytes(facts, shape, layouts)
    out, work = list(profiles), facts.workload
    for i in short.tolist():
        lengths = arrival_lengths(int(loads[i]), work.response, work.num_samples)
        out[i] = limited_profile(lengths, int(layouts.max_num_seqs[i]), work.engine_prompt_tokens, float(held[i]))
    return out


def steady_generation_cost(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision: str = "bf16", steps_in_flight: int = 1
) -> Cost:
    """Time in which engines that never drain make one iteration's responses.

    Asynchronous schedules keep several iterations of samples in the engines, so each replica always runs as many as its
    slots and its cache take, each a token further with every decode step.

    Parameters
    ----------
    steps_in_flight
        Iterations of samples in the engines.

    Returns
    -------
    Cost
        Seconds, ``[C]``.

    Notes
    -----
    Throughput at the steady state (Little's law); waiting for stragglers at a policy's end is left out.
    """
    facts = facts.of_engine
    mine = sequences_per_replica(facts, layouts).astype(np.float64)
    state = steady_state(facts.workload.engine_prompt_tokens, facts.workload.response)
    context, asked = state.mean_context, steady_sequences(facts, layouts, steps_in_flight).astype(np.float64)
    need = bytes_of_tokens(facts, shape, layouts, asked * context)
    room = np.maximum(np.floor(tokens_in_bytes(facts, shape, layouts) / context), 1.0)
    short = (layouts.kv_cache_bytes > 0) & (layouts.kv_cache_bytes < need)
    active = np.where(short, np.minimum(asked, room), asked)
    step = decode_step(facts, shape, layouts, active[:, None], np.full((len(layouts), 1), context), precision)
    steps = mine * state.mean_response / active / tokens_per_step(facts)
    decode = Cost(*(part.sum(axis=1) * steps for part in (step.compute, step.comm, step.exposed)))
    return decode + prefill_cost(facts, shape, layouts, precision)


def _sharing(facts: Facts) -> int:
    """Samples that share one computed prompt."""
    return facts.workload.samples_per_prompt if facts.generation.prefix_sharing else 1


def profile_cost(
    facts: Facts,
    shape: ModelShape,
    layouts: GenerationLayouts,
    profiles: list[RolloutProfile],
    precision: str,
    num_segments: int = 0,
) -> Cost:
    """Decode steps of one profile per candidate.

    Parameters
    ----------
    profiles
        Steps of each candidate's fullest replica, ``[C]``.
    num_segments
        As in ``generation_cost``.

    Returns
    -------
    Cost
        Seconds of all decode steps, ``[C]``.
    """
    width = max((len(p.steps) for p in profiles), default=0)
    width = max(width, num_segments)
    steps, active, context = (_padded([getattr(p, f) for p in profiles], width) for f in ("steps", "active", "context"))
    step = decode_step(facts, shape, layouts, active, context, precision)
    steps = steps / tokens_per_step(facts)
    return Cost(*((part * steps).sum(axis=1) for part in (step.compute, step.comm, step.exposed)))


def prefill_cost(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, precision: str) -> Cost:
    """All prompts of the fullest replica, in chunks of the engine's token budget.

    Prompts that several samples share are computed once where the engine shares prefixes, and of each what the cache
    does not hold. Chunks follow each other through the pipeline stages.

    Returns
    -------
    Cost
        Seconds of all prompts, ``[C]``.
    """
    work = facts.workload
    prompts, hits = np.ceil(sequences_per_replica(facts, layouts) / _sharing(facts)), facts.generation.prefix_hits
    new = (1.0 - hits) * work.engine_prompt_tokens
    per_chunk = max(1.0, facts.generation.max_batched_tokens / max(new, 1.0))
    in_chunk = np.minimum(per_chunk, prompts)[:, None]
    if facts.generation.static_batches:
        in_chunk = np.minimum(in_chunk, layouts.max_num_seqs[:, None])
    length = np.full((len(layouts), 1), float(work.engine_prompt_tokens))
    layer = layer_work(facts, shape, layouts, in_chunk * new, precision)
    causal = 1.0 - hits**2  # of all pairs of tokens those whose later one is new
    layer = layer + attention_of_prefill(facts, shape, layouts, in_chunk, length, precision) * causal
    comm = layer_reduces(facts, shape, layouts, in_chunk * new)
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
    launches = facts.generation.priced(prefill_launch_s_per_layer=turns)
    own = in_chunk[:, 0] / layouts.attention_dp
    return Cost.of_compute(head + launches + host_time(facts, own, chunks))


def _padded(rows: list[Floats], width: int) -> Floats:
    """Stack ragged rows, repeating the last value; padded segments have zero steps, so the value does not matter."""
    out = np.zeros((len(rows), width))
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
        out[i, len(row) :] = 0.0
    return out
