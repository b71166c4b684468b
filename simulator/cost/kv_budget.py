"""The KV budget of an engine, stated once: what search, plans and checks give the cache of one GPU.

A budget holds the most that the engine's sequences have at once under the plan's schedule, so nothing waits or is
evicted for want of cache, and never less than the longest sequence, which some replica has to end. A sequence lies
whole on one copy of the attention, cut over the GPUs of that copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simulator.cost import engine_memory
from simulator.cost.speculation import draft_kv_bytes_per_token
from simulator.plan.plan import MOST_BYTES
from simulator.rollout.drain import rollout_profile
from simulator.rollout.steady import steady_state

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from profiles.records import Floats, Ints
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts
    from simulator.rollout.drain import RolloutProfile


def kv_budget_bytes(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, steady_steps: int | None = None
) -> Ints:
    """KV cache that an engine is given on each of its GPUs.

    Parameters
    ----------
    steady_steps
        Iterations of samples in engines that never drain; ``None`` where each generation drains them.

    Returns
    -------
    Ints
        Whole bytes, ``[C]``.
    """
    peak = drained_peak_tokens(facts, layouts) if steady_steps is None else _steady_peak(facts, layouts, steady_steps)
    need = np.maximum(bytes_of_tokens(facts, shape, layouts, peak), longest_bytes(facts, shape, layouts))
    need = need + state_bytes(facts, shape, layouts, steady_steps)
    return np.asarray(np.ceil(np.minimum(need, MOST_BYTES)), dtype=np.int64)


def with_kv_budget(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, steady_steps: int | None = None
) -> GenerationLayouts:
    """The layouts, each with the budget that its engine is given.

    Parameters
    ----------
    steady_steps
        As in ``kv_budget_bytes``.

    Returns
    -------
    GenerationLayouts
        The same layouts with ``kv_cache_bytes`` set.
    """
    return replace(layouts, kv_cache_bytes=kv_budget_bytes(facts, shape, layouts, steady_steps))


def stated_bytes(
    facts: Facts, shape: ModelShape, layouts: GenerationLayouts, steady_steps: int | None = None
) -> Floats:
    """The budgets that layouts state, and for those that state none (0) the budget that their engine is given.

    Parameters
    ----------
    steady_steps
        As in ``kv_budget_bytes``.

    Returns
    -------
    Floats
        Bytes of cache per GPU, ``[C]``.
    """
    own = layouts.kv_cache_bytes
    given = own if np.all(own > 0) else np.where(own > 0, own, kv_budget_bytes(facts, shape, layouts, steady_steps))
    return np.asarray(given, dtype=np.float64)


def longest_bytes(facts: Facts, shape: ModelShape, layouts: GenerationLayouts) -> Floats:
    """Cache of the longest sequence on one GPU of the attention copy that holds it.

    Returns
    -------
    Floats
        Bytes, ``[C]``.
    """
    longest = facts.workload.engine_prompt_tokens + facts.workload.response.maximum
    return bytes_per_token(facts, shape, layouts) * longest


def most_bytes(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, steady_steps: int | None = None) -> Floats:
    """Cache on one GPU when every sequence in flight has the longest prompt and response: more is of no use.

    Parameters
    ----------
    steady_steps
        As in ``kv_budget_bytes``.

    Returns
    -------
    Floats
        Bytes, ``[C]``.
    """
    running = steady_sequences(facts, layouts, 1 if steady_steps is None else steady_steps)
    of_each_copy = np.ceil(running / layouts.attention_dp)
    whole = of_each_copy * longest_bytes(facts, shape, layouts)
    return np.asarray(whole + state_bytes(facts, shape, layouts, steady_steps), dtype=np.float64)


def bytes_of_tokens(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, tokens: Floats) -> Floats:
    """Cache on one GPU of tokens that a replica's attention copies share evenly.

    Parameters
    ----------
    tokens
        Of a whole replica, ``[C]``.

    Returns
    -------
    Floats
        Bytes, ``[C]``.
    """
    return np.asarray(tokens * bytes_per_token(facts, shape, layouts) / layouts.attention_dp, dtype=np.float64)


def tokens_in_bytes(facts: Facts, shape: ModelShape, layouts: GenerationLayouts) -> Floats:
    """Tokens that the caches which the layouts state hold in a whole replica.

    Returns
    -------
    Floats
        Tokens, ``[C]``.
    """
    left = np.maximum(layouts.kv_cache_bytes - state_bytes(facts, shape, layouts), 0.0)
    held = left / bytes_per_token(facts, shape, layouts)
    return np.asarray(held * layouts.attention_dp, dtype=np.float64)


def state_bytes(facts: Facts, shape: ModelShape, layouts: GenerationLayouts, steady_steps: int | None = None) -> Floats:
    """What the cache of one GPU holds for its sequences whatever their lengths: states of linear mixers, and windows.

    Parameters
    ----------
    steady_steps
        As in ``kv_budget_bytes``.

    Returns
    -------
    Floats
        Bytes, ``[C]``; zero for a model without such layers.
    """
    running = np.ceil(steady_sequences(facts, layouts, steady_steps or 1) / layouts.attention_dp)
    one = engine_memory.state_bytes_per_sequence(shape, layouts.attention_ranks, layouts.pp)
    share = _windowed_share(facts, shape)
    if share:
        one = one + _every_layer(facts, shape, layouts) * share * float(shape.sliding_window or 0)
    return np.asarray(running * one, dtype=np.float64)


def bytes_per_token(facts: Facts, shape: ModelShape, layouts: GenerationLayouts) -> Floats:
    """Cache of one token on one GPU of the attention copy that holds its sequence, in layers that keep all of it.

    Returns
    -------
    Floats
        Bytes, ``[C]``.
    """
    own = _every_layer(facts, shape, layouts) * (1.0 - _windowed_share(facts, shape))
    return own if facts.speculation is None else own + draft_kv_bytes_per_token(facts, shape, layouts)


def _windowed_share(facts: Facts, shape: ModelShape) -> float:
    """Share of the attention layers that keep a window's tokens alone, which is less than most sequences have.

    Where a window holds whole sequences nothing is freed, and where every layer has one no token would be counted: a
    sequence is taken to be kept whole then.
    """
    whole, windowed = engine_memory.keeping_layers(facts, shape)
    work = facts.workload
    if not whole or not windowed or (shape.sliding_window or 0) >= work.engine_prompt_tokens + work.response.mean:
        return 0.0
    return engine_memory.windowed_share(shape)


def _every_layer(facts: Facts, shape: ModelShape, layouts: GenerationLayouts) -> Floats:
    """Cache of one token in all attention layers of one GPU, ``[C]``."""
    held = shape
    if facts.generation.caches_every_head and shape.mla is None:
        held = replace(shape, num_kv_heads=shape.num_heads)
    return engine_memory.kv_bytes_per_token(held, layouts.attention_ranks, layouts.pp, facts.activation_bytes)


def sequences_per_replica(facts: Facts, layouts: GenerationLayouts) -> Ints:
    """Responses that the fullest replica generates in one call.

    Returns
    -------
    Ints
        Responses, ``[C]``.
    """
    return np.asarray(-(-facts.workload.num_samples // layouts.dp), dtype=np.int64)


def drained_profiles(facts: Facts, layouts: GenerationLayouts) -> list[RolloutProfile]:
    """Step profile of each candidate's fullest replica, which begins and ends a call without a sequence.

    Returns
    -------
    list[RolloutProfile]
        One profile per candidate.
    """
    work, loads = facts.workload, sequences_per_replica(facts, layouts)
    pairs, of_each = np.unique(loads * 2**32 + layouts.max_num_seqs, return_inverse=True)
    found = [
        rollout_profile(pair >> 32, pair & (2**32 - 1), work.engine_prompt_tokens, work.response, work.num_samples)
        for pair in pairs.tolist()
    ]
    return [found[i] for i in of_each.reshape(-1).tolist()]


def drained_peak_tokens(facts: Facts, layouts: GenerationLayouts) -> Floats:
    """Most tokens that a replica holds at once in a call that begins and ends without a sequence.

    Returns
    -------
    Floats
        Tokens, ``[C]``.
    """
    return np.asarray([p.peak_tokens for p in drained_profiles(facts, layouts)])


def steady_sequences(facts: Facts, layouts: GenerationLayouts, steady_steps: int) -> Ints:
    """Sequences that a replica which never drains always runs.

    Parameters
    ----------
    steady_steps
        Iterations of samples in the engines.

    Returns
    -------
    Ints
        Sequences, ``[C]``.
    """
    return np.minimum(layouts.max_num_seqs, sequences_per_replica(facts, layouts) * steady_steps)


def _steady_peak(facts: Facts, layouts: GenerationLayouts, steady_steps: int) -> Floats:
    """Most tokens that a replica which never drains holds at once, shape ``[C]``."""
    work = facts.workload
    return steady_state(work.engine_prompt_tokens, work.response).peak_tokens(
        steady_sequences(facts, layouts, steady_steps)
    )
