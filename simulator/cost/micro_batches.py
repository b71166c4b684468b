"""What one rank computes at once: samples dealt over ranks, packed, and cut into micro-batches."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from profiles import normal
from simulator.cost.compute import Batch

if TYPE_CHECKING:
    from profiles.records import Floats
    from profiles.workload import Workload
    from simulator.facts import Facts
    from simulator.plan.layouts import Layouts


NUM_LENGTHS = 512
"""Quantiles that stand for the distribution of sample lengths."""

NUM_TOTALS = 9
"""Quantiles that stand for the tokens of a rank in one step or another."""


def micro_batch(
    workload: Workload, layouts: Layouts, samples_per_rank: Floats, packed_tokens: int | None = None
) -> tuple[Batch, Floats]:
    """The mean micro-batch of a rank and how many of them it runs.

    Padding is removed: a sample has ``prompt + mean response`` tokens; the attention length is the token-weighted mean
    length, so that attention's square is counted over the distribution. A micro-batch is ``micro_batch`` sequences, as
    many packs, or what a budget of tokens holds.

    Parameters
    ----------
    workload
        The job's samples.
    samples_per_rank
        Samples of one data-parallel rank, ``[C]``.
    packed_tokens
        Tokens of a pack, ``None`` without packing.

    Returns
    -------
    tuple[Batch, Floats]
        Micro-batch, and their number, ``[C]``.
    """
    num = num_micro_batches(workload, layouts, samples_per_rank, packed_tokens)
    sequences = samples_per_rank / num
    lengths = sample_lengths(workload)
    weighted = float((lengths**2).sum() / lengths.sum())
    tokens = sequences * workload.trained_tokens_per_sample
    return Batch(tokens, tokens / weighted, np.full(len(layouts), weighted)), num


def num_micro_batches(
    workload: Workload, layouts: Layouts, samples_per_rank: Floats, packed_tokens: int | None = None
) -> Floats:
    """Micro-batches that a rank runs.

    A whole number of samples or packs each, the last one may be partial. Of budgets as few as hold the rank's tokens
    (``ceil(tokens / budget)``, the most of all ranks), which vary from step to step: their mean, so no whole number.

    Parameters
    ----------
    workload, layouts, samples_per_rank, packed_tokens
        As in ``micro_batch``.

    Returns
    -------
    Floats
        Micro-batches, ``[C]``.

    Notes
    -----
    Source: verl (utils/seqlen_balancing.py) and NeMo-RL deal samples to ranks so that each has as many tokens as the
    others, then to micro-batches. Deviation: ranks have equally many tokens, a normal number of them.
    """
    units = samples_per_rank
    if packed_tokens is not None:
        units = np.ceil(samples_per_rank * packs_per_sample(workload, packed_tokens))
    counted = np.ceil(units / layouts.micro_batch)
    if not np.any(layouts.token_budget):
        return np.asarray(counted, dtype=np.float64)
    lengths, budget = sample_lengths(workload), np.maximum(layouts.token_budget, 1)
    varies = normal.quantile((np.arange(NUM_TOTALS) + 0.5) / NUM_TOTALS)[:, None]
    tokens = samples_per_rank * lengths.mean() + varies * lengths.std() * np.sqrt(samples_per_rank / layouts.dp)
    needed = np.clip(np.ceil(tokens / budget - 1e-9), 1.0, samples_per_rank).mean(axis=0)
    return np.asarray(np.where(layouts.token_budget > 0, needed, counted), dtype=np.float64)


def sample_lengths(workload: Workload) -> Floats:
    """Tokens of a sample, prompt and response, at evenly spread quantiles.

    Parameters
    ----------
    workload
        The job's samples.

    Returns
    -------
    Floats
        Tokens, ``[NUM_LENGTHS]``.
    """
    return workload.trained_prompt_tokens + workload.response.sample(NUM_LENGTHS)


@functools.lru_cache(maxsize=256)
def packs_per_sample(workload: Workload, capacity_tokens: int) -> float:
    """Packs per sample when sequences are packed first-fit-decreasing.

    Parameters
    ----------
    workload
        The job's samples.
    capacity_tokens
        Tokens of a pack.

    Returns
    -------
    float
        Packs over samples, at most 1.

    Notes
    -----
    Source: first-fit-decreasing (Johnson 1973), on quantiles in place of drawn lengths.
    """
    packs: list[float] = []
    for length in sorted(sample_lengths(workload), reverse=True):
        room = next((i for i, used in enumerate(packs) if used + length <= capacity_tokens), None)
        if room is None:
            packs.append(float(length))
        else:
            packs[room] += float(length)
    return len(packs) / NUM_LENGTHS


def head_tokens(facts: Facts, batch: Batch) -> Floats:
    """Tokens of a micro-batch that go through the vocabulary head: all, or those of the responses.

    Parameters
    ----------
    batch
        Micro-batch of a rank, ``[C]``.

    Returns
    -------
    Floats
        Tokens, ``[C]``.
    """
    if not facts.training.head_on_responses:
        return batch.tokens
    work = facts.workload
    return batch.tokens * (work.response.mean / work.trained_tokens_per_sample)
