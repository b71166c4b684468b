"""Gated delta nets by their measured tables; Kimi's, which decay each channel by itself, by the same and its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Priced

if TYPE_CHECKING:
    from profiles.models.layers import LinearShape
    from profiles.records import Floats, Ints
    from simulator.facts import Facts

DECAY_BYTES = 10.0
"""Of a channel's rate of decay: read in 16 bits, written and read again in FP32."""

CHUNK_RATIO = 1.45
"""Chunks of Kimi's over those of a gated delta net with its rates: the median of 1,188 published times of ``chunk_kda``
in SGLang 0.5.16 on H100, H200 and B200 (Kimi-K3's heads, aiconfigurator-core 0.12.0), 1.39 to 1.49 by device."""


def step(facts: Facts, linear: LinearShape, sequences: Floats, ranks: Ints) -> Priced:
    """One new token of each sequence through one mixer without its projections, whatever its context.

    Parameters
    ----------
    linear
        Sizes of the mixer.
    sequences
        Of one attention copy, ``[C, S]``.
    ranks
        GPUs that heads are cut by, ``[C, S]``.

    Returns
    -------
    Priced
        Seconds, the shape of ``sequences``.

    Notes
    -----
    Source: measured tables of gated delta nets. Kimi's reads and writes as large a state by the same recurrence (Kimi
    Linear report, 2025, section 3); its rates come on top. Against 264 published times of its kernels on three devices
    and two engines the price is 0.86 to 1.01 on the median.
    """
    found = facts.device.linear_decode(sequences, *_heads(linear, ranks))
    return found if linear.kind != "kimi_delta" else _with_rates(facts, linear, found, sequences, ranks)


def forward(facts: Facts, linear: LinearShape, sequences: Floats, length: Floats, ranks: Ints) -> Priced:
    """Whole sequences through one mixer without its projections.

    Parameters
    ----------
    linear
        Sizes of the mixer.
    sequences, length
        Sequences of one attention copy or micro-batch, and tokens of each; shapes broadcast.
    ranks
        GPUs that heads are cut by; shapes broadcast.

    Returns
    -------
    Priced
        Seconds, the broadcast shape.

    Notes
    -----
    Source: as ``step``; chunks of Kimi's take the same products with decays inside them (``CHUNK_RATIO``).
    """
    found = facts.device.linear_prefill(sequences, length, *_heads(linear, ranks))
    if linear.kind != "kimi_delta":
        return found
    return _with_rates(facts, linear, found, sequences * length, ranks) * CHUNK_RATIO


def _with_rates(facts: Facts, linear: LinearShape, found: Priced, tokens: Floats, ranks: Ints) -> Priced:
    """A price of gated delta nets for Kimi's: a kernel makes a rate of each channel, which the mixer reads."""
    channels = linear.k_heads * linear.k_dim / np.asarray(ranks, dtype=np.float64)
    return (found + facts.device.memory_bound(tokens * channels * DECAY_BYTES, 1.0)).at_best(Basis.ANALYTIC)


def _heads(linear: LinearShape, ranks: Ints) -> tuple[Ints, Ints]:
    """Key and value heads on one rank; no fewer than one."""
    return np.maximum(linear.k_heads // ranks, 1), np.maximum(linear.v_heads // ranks, 1)
