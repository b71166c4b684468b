"""Continuous batching in the step domain: how many sequences run, and how much context they hold, step by step.

Which sequence runs in which decode step depends only on the response lengths and on the number of slots, not on
how long a step takes: a finished sequence frees its slot and the next one waiting takes it. So the profile of a
replica is worked out once per (sequences, slots) and priced for many layouts.
"""

from __future__ import annotations

import functools
import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from profiles.records import Floats
    from profiles.workload import LengthDistribution

NUM_SEGMENTS = 32
"""Segments that a replica's decode steps are averaged into; doubling them moves a stage by under 0.2 %."""

MAX_SEQUENCES = 1024
"""A replica with more sequences is worked out at this many, with the slots scaled alike, and scaled back."""

FIXED_POINTS = 4
"""Context points of a wave of equal lengths; the price of a step is close to linear in its context."""


@dataclass(frozen=True, eq=False)
class RolloutProfile:
    """Decode steps of one replica, averaged over segments of shape ``[S]``.

    ``steps`` decode steps of the segment, ``active`` sequences in them, ``context`` mean tokens per active
    sequence; ``peak_tokens`` most KV tokens held at once; ``recomputed_tokens`` of sequences that were evicted.
    """

    steps: Floats
    active: Floats
    context: Floats
    peak_tokens: float
    recomputed_tokens: float = 0.0


def most_segments(response: LengthDistribution) -> int:
    """Segments that a profile of these responses has at most: equal ones climb twice, in whole waves and the last.

    Parameters
    ----------
    response
        Lengths of the job.

    Returns
    -------
    int
        Their number.
    """
    return 2 * FIXED_POINTS if response.kind == "fixed" else NUM_SEGMENTS


@functools.lru_cache(maxsize=65536)
def rollout_profile(
    num_sequences: int, slots: int, prompt_tokens: float, response: LengthDistribution, total_sequences: int
) -> RolloutProfile:
    """Profile of the slowest replica, from its first response to its last.

    Its lengths are evenly spread quantiles, the longest one taken from the quantiles of all responses of the job: some
    replica draws it, and the stage waits for that replica.

    Parameters
    ----------
    num_sequences, slots
        Responses of the replica, and how many run at once.
    prompt_tokens
        That each sequence has in the cache from the start.
    response
        Distribution of the response lengths.
    total_sequences
        Responses of the whole job.

    Returns
    -------
    RolloutProfile
        At most ``NUM_SEGMENTS`` segments.

    Notes
    -----
    Source: list scheduling of continuous batching (Orca, Yu et al. 2022). Segments move a stage by under 0.2 % against
    twice as many.
    """
    slots = min(slots, num_sequences)
    if response.kind == "fixed":
        return _waves(num_sequences, slots, prompt_tokens, float(response.maximum))
    scale = max(1.0, num_sequences / MAX_SEQUENCES)
    num, width = round(num_sequences / scale), max(1, round(slots / scale))
    lengths = arrival_lengths(num, response, total_sequences)
    return _segments(_start_steps(lengths, width), lengths, prompt_tokens, scale)


@functools.lru_cache(maxsize=4096)
def arrival_lengths(num: int, response: LengthDistribution, total_sequences: int) -> Floats:
    """Lengths of one replica's responses in the order they arrive.

    Parameters
    ----------
    num
        Responses of the replica.
    response
        Distribution of the lengths.
    total_sequences
        Responses of the whole job.

    Returns
    -------
    Floats
        Tokens, ``[num]``.
    """
    lengths = np.ceil(response.sample(num))
    lengths[-1] = np.ceil(response.quantile(np.asarray([1.0 - 0.5 / total_sequences]))[0])
    order = np.random.default_rng(0).permutation(num)  # arrival order carries no information about length
    arrived = np.asarray(lengths[order])
    arrived.setflags(write=False)  # shared by all who ask
    return arrived


def _waves(num: int, slots: int, prompt: float, length: float) -> RolloutProfile:
    """Equal lengths: whole waves of ``slots`` and one partial wave, each climbing from prompt to full length."""
    full, rest = divmod(num, slots)
    sizes = [(float(full), float(slots))] + ([(1.0, float(rest))] if rest else [])
    climb = prompt + length * (np.arange(FIXED_POINTS) + 0.5) / FIXED_POINTS
    steps = np.concatenate([np.full(FIXED_POINTS, count * length / FIXED_POINTS) for count, _ in sizes])
    active = np.concatenate([np.full(FIXED_POINTS, size) for _, size in sizes])
    return RolloutProfile(steps, active, np.tile(climb, len(sizes)), slots * (prompt + length))


def _start_steps(lengths: Floats, slots: int) -> Floats:
    """Decode step at which each sequence starts, in arrival order, when a free slot takes the next one waiting."""
    free = [0.0] * slots
    starts = np.zeros(len(lengths))
    for i, length in enumerate(lengths):
        starts[i] = heapq.heappop(free)
        heapq.heappush(free, starts[i] + float(length))
    return starts


def _segments(starts: Floats, lengths: Floats, prompt: float, scale: float) -> RolloutProfile:
    """Average active sequences and context over equal spans of steps, exactly (integrals of piecewise lines)."""
    ends = starts + lengths
    edges = np.linspace(0.0, ends.max(), NUM_SEGMENTS + 1)
    low = np.clip(edges[None, :], starts[:, None], ends[:, None]) - starts[:, None]
    present = np.diff(low, axis=1)  # steps of each sequence in each segment
    grown = np.diff(low**2, axis=1) / 2.0  # tokens generated so far, summed over those steps
    width = np.diff(edges)
    sequence_steps = present.sum(axis=0)
    tokens = prompt * sequence_steps + grown.sum(axis=0)
    keep = sequence_steps > 0
    active = sequence_steps[keep] / width[keep] * scale
    context = tokens[keep] / sequence_steps[keep]
    return RolloutProfile(width[keep], active, context, _peak_tokens(starts, ends, prompt) * scale)


def _peak_tokens(starts: Floats, ends: Floats, prompt: float) -> float:
    """Most tokens held at once: it is reached just before some sequence ends."""
    order = np.sort(ends)
    by_start, by_end = np.sort(starts), np.sort(ends)
    begun = np.searchsorted(by_start, order, side="left")  # started strictly before this moment
    finished = np.searchsorted(by_end, order, side="left")  # ended strictly before it
    start_sum = np.concatenate([[0.0], np.cumsum(by_start)])[begun]
    ended_starts = np.concatenate([[0.0], np.cumsum(starts[np.argsort(ends, kind="stable")])])[finished]
    running = begun - finished
    tokens = running * (prompt + order) - (start_sum - ended_starts)
    return float(tokens.max())
