"""Pipelines with micro-batches of different lengths: what stages lose by waiting for each other.

With equal micro-batches a pipeline of ``p`` stages takes ``n + p - 1`` times what one micro-batch takes on a stage.
Drawn from a job's lengths they differ, and a stage waits wherever its neighbour has the longer one: 1F1B keeps only
``p`` micro-batches between forward and backward passes, so a long one is felt by all stages. There is no closed form.
The schedule is played on draws of the job's own lengths, once for each number of stages and of sequences in a
micro-batch, and read between the numbers of micro-batches that were played.

Source: 1F1B and interleaved 1F1B as in Narayanan et al. 2021 (Megatron-LM). Deviation: all stages take equally long, a
backward pass takes twice a forward pass, and time goes with tokens (attention's square counts in the mean only).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from profiles import normal
from simulator.cost.micro_batches import NUM_LENGTHS, sample_lengths
from simulator.cost.pipeline_schedule import played, schedule

if TYPE_CHECKING:
    from profiles.records import Floats
    from profiles.workload import LengthDistribution, Workload
    from simulator.cost.compute import Batch
    from simulator.facts import Facts
    from simulator.plan.layouts import Layouts

DRAWN = 2048
"""Micro-batches that are drawn for each number of them in a step: few of them in many steps, or many in few."""
FEWEST_STEPS = 256
"""Steps that are played beside each other at least; a power of two, as is the number of lengths."""
PLAYED = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of micro-batches that are played; more are the last two, carried on in a straight line."""
STREAMED = (1, 4, 16, 64, 256)
"""The same for pipelines that only pass forward, which need no play."""
MOST_SEQUENCES = 8
"""Sequences of a micro-batch that are drawn at most; of more, deviations shrink with the root of their number."""
DEALT, FEWEST_DEALT = 512, 16
"""The same as ``DRAWN`` and ``FEWEST_STEPS`` where sequences are dealt evenly: what is left differs little."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """Time of a pipeline over that with equal micro-batches, by number of micro-batches: mean and deviation."""

    num_micro: Floats
    mean: Floats
    deviation: Floats

    def at(self, num_micro: Floats, ramp: float) -> tuple[Floats, Floats]:
        """Mean and deviation at any numbers of micro-batches.

        Parameters
        ----------
        num_micro
            Micro-batches, ``[N]``.
        ramp
            What a pipeline of equal micro-batches takes more than their number, in micro-batches.

        Returns
        -------
        tuple[Floats, Floats]
            Factors on the time with equal micro-batches, ``[N]`` each.
        """
        most = self.num_micro[-1]
        inside = np.minimum(num_micro, most)
        mean = np.interp(np.log(inside), np.log(self.num_micro), self.mean)
        times = self.mean[-2:] * (self.num_micro[-2:] + ramp)
        each = (times[1] - times[0]) / (most - self.num_micro[-2])
        mean = (mean * (inside + ramp) + each * (num_micro - inside)) / (num_micro + ramp)
        deviation = np.interp(np.log(inside), np.log(self.num_micro), self.deviation)
        return mean, deviation * np.sqrt(inside / num_micro)


def waiting(facts: Facts, layouts: Layouts, batch: Batch, num_micro: Floats, *, backward: bool = True) -> Floats:
    """Time of a rank's micro-batches over that with equal lengths, of the slowest data-parallel rank.

    The mean of one pipeline, and for ``d`` data-parallel ranks its deviation times the expected maximum of ``d``
    standard normals (Blom's approximation). Without stages the mean is 1 and the deviation ``cv / sqrt(n)`` of the
    ``n`` sequences until ranks meet: all of a step, or those of a micro-batch where ZeRO 3 gathers in each. Packs are
    full, so packing leaves no such difference; context-parallel ranks share their sequences. Budgets of tokens deal
    equally many to every rank, and nearly to every micro-batch: what is left of their differences is played, too.

    Parameters
    ----------
    batch
        Micro-batch of a rank, ``[C]``.
    num_micro
        Micro-batches of a data-parallel rank until ranks meet, ``[C]``.
    backward
        Whether it is a training step in 1F1B, or passes forward only.

    Returns
    -------
    Floats
        Factor of at least 1, ``[C]``.
    """
    if facts.implementation.packed_tokens is not None:
        return np.ones(len(layouts))
    work = facts.workload
    lengths, sequences = sample_lengths(work), batch.tokens / work.trained_tokens_per_sample
    spread = float(lengths.std() / lengths.mean())
    latest = np.maximum(normal.quantile((layouts.dp - 0.375) / (layouts.dp + 0.25)), 0.0)
    together = sequences * np.where(layouts.zero_stage == 3, 1.0, num_micro)
    factor: Floats = 1.0 + latest * spread / np.sqrt(np.maximum(together, 1.0))
    budgets = layouts.token_budget > 0
    if np.any(budgets):
        uneven = _unevenness(work, sequences, num_micro) if np.any(budgets & (layouts.zero_stage == 3)) else 0.0
        factor = np.where(budgets, 1.0 + latest * np.where(layouts.zero_stage == 3, uneven, 0.0), factor)
    if not spread:
        return factor
    drawn = np.maximum(np.where(budgets, np.rint(2.0 * sequences) / 2.0, np.rint(sequences)), 1.0)
    chunks = layouts.vpp if backward else np.ones_like(layouts.pp)
    keys = np.stack([layouts.pp, chunks, (2 * np.minimum(drawn, MOST_SEQUENCES)).astype(np.int64), budgets], axis=1)
    for key in np.unique(keys[layouts.pp > 1], axis=0):
        rows = np.flatnonzero((keys == key).all(axis=1))
        stages, each, halves, dealt = (int(part) for part in key)
        few = halves / 2
        found = _waiting(work.trained_prompt_tokens, work.response, stages, each, few, backward, bool(dealt))
        mean, deviation = found.at(num_micro[rows], (stages - 1) / each)
        factor[rows] = 1.0 + np.sqrt(few / drawn[rows]) * (mean - 1.0 + latest[rows] * deviation)
    return factor


@functools.lru_cache(maxsize=4096)
def _waiting(
    prompt_tokens: float,
    response: LengthDistribution,
    num_stages: int,
    num_chunks: int,
    together: float,
    backward: bool,
    dealt: bool,
) -> Waiting:
    """One pipeline's times by number of micro-batches, each of ``together`` sequences, drawn or ``dealt`` evenly."""
    counts: tuple[int, ...] = PLAYED if backward else STREAMED
    if num_chunks > 1:  # which takes groups of as many micro-batches as there are stages
        counts = tuple(sorted({-(-n // num_stages) * num_stages for n in counts}))
    means, deviations = [], []
    for n in counts:
        if dealt:
            times = _dealt(prompt_tokens, response, together, n)
        else:
            times = _drawn(prompt_tokens, response, int(together), n)
        if backward:
            ends = played(schedule(num_stages, n, num_chunks), times)
        else:
            ends = times.sum(axis=0) + (num_stages - 1) * times.max(axis=0)
        even = n + (num_stages - 1) / num_chunks
        means.append(float(ends.mean()) / even)
        deviations.append(float(ends.std()) / even)
    return Waiting(np.asarray(counts, dtype=np.float64), np.asarray(means), np.asarray(deviations))


def _drawn(prompt_tokens: float, response: LengthDistribution, together: int, num: int) -> Floats:
    """Times of ``num`` micro-batches of ``together`` sequences over their mean, shape ``[num, steps]``.

    Over the steps every sequence takes each equal part of the distribution once, so that means are those of the job.
    """
    steps = min(max(DRAWN // num, FEWEST_STEPS), NUM_LENGTHS)
    lengths = prompt_tokens + response.sample(NUM_LENGTHS)
    random = np.random.default_rng(0)
    part = random.permuted(np.tile(np.arange(steps), (num * together, 1)), axis=1)
    index = part * (NUM_LENGTHS // steps) + random.integers(0, NUM_LENGTHS // steps, part.shape)
    tokens = lengths[index].reshape(num, together, steps).sum(axis=1)
    return np.asarray(tokens / tokens.mean(axis=1, keepdims=True), dtype=np.float64)


@functools.lru_cache(maxsize=256)
def _dealt(prompt_tokens: float, response: LengthDistribution, together: float, num: int) -> Floats:
    """Times of ``num`` micro-batches that a step's sequences are dealt to evenly, over their mean, ``[num, steps]``.

    A rank has one sequence of each equal part of the distribution, since ranks are dealt equally many tokens. The
    longest first, each to the micro-batch with the fewest tokens; the longest micro-batches in the middle of the step,
    as verl puts them. Its own dealing (Karmarkar and Karp) is a little more even.
    """
    steps = max(DEALT // num, FEWEST_DEALT)
    lengths, each = prompt_tokens + response.sample(NUM_LENGTHS), max(round(num * together), 1)
    random = np.random.default_rng(0)
    level = (np.arange(each)[::-1, None] + random.random((each, steps))) / each  # of every part of the lengths one
    tokens = lengths[np.minimum((level * NUM_LENGTHS).astype(np.int64), NUM_LENGTHS - 1)]
    batches, step = np.zeros((num, steps)), np.arange(steps)
    for longest in tokens:
        batches[batches.argmin(axis=0), step] += longest
    batches = -np.sort(-batches, axis=0)
    order = [*reversed(range(0, num, 2)), *range(1, num, 2)]
    return np.asarray(batches[order] / batches.mean(axis=0), dtype=np.float64)


def _unevenness(work: Workload, sequences: Floats, num_micro: Floats) -> Floats:
    """Deviation of one micro-batch's tokens over their mean where they are dealt evenly, ``[C]``."""
    halves = np.clip(np.rint(2 * sequences), 2, 2 * MOST_SEQUENCES).astype(np.int64)
    played = np.asarray(PLAYED)
    num = played[np.minimum(np.searchsorted(played, num_micro), len(played) - 1)]
    out = np.zeros(len(sequences))
    for key in np.unique(np.stack([halves, num], axis=1), axis=0).tolist():
        rows = (halves == key[0]) & (num == key[1])
        out[rows] = _dealt(work.trained_prompt_tokens, work.response, key[0] / 2, key[1]).std()
    return out
