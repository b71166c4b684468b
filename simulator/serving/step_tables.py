"""Prices of an engine's steps as tables over one size each, so that a request-level run needs only interpolation.

A step is a sum: what all its tokens go through together (projections, feed-forward, small kernels, all-reduces),
attention of the decodes, attention of the prompts, the head of the sampled sequences, and host time. Prompts and
decodes share the GEMMs, so a prompt beside decodes reads no weights of its own.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiles.records import Floats


@dataclass(frozen=True, eq=False)
class StepTables:
    """Tables of one engine on one layout, and prices of its steps one by one.

    Parameters
    ----------
    tokens, linear_s, copy_s
        Grid of tokens in a step, seconds of all layers without attention there, and of them what an attention copy does
        alone where all copies are as full, shape ``[T]``.
    sequences, contexts, decode_s
        Grid of decoding sequences and mean context, and attention of all layers, shapes ``[B]``, ``[K]``, ``[B, K]``.
    lengths, prefill_s
        Grid of prompt lengths, and attention of one prompt in all layers when prompts fill the GPU, shape ``[L]``.
    heads, head_s
        Grid of sampled sequences and the head's seconds, shape ``[H]``.
    host_s, host_s_per_sequence, decode_floor_s, prefill_floor_s
        Host time of a step and of each sequence in it; least GPU time of a step, launched from the host.
    captured
        Most decoding sequences whose step a CUDA graph holds; others are launched as steps with prompts are.
    host_overlaps
        The host works on the next step while the GPU computes this one, so a step takes the longer of the two.
    copies
        Attention copies. They meet in every mixture, so that a step lasts as long as the one with most prompt tokens.
    checked, given
        Tokens of a sequence that a step computes, drafted ones included, and tokens that it gives on the mean. The loop
        counts tokens: its decode steps are shares of the engine's.

    With pipeline stages a step deals its tokens over as many groups that follow each other.
    """

    tokens: Floats
    linear_s: Floats
    copy_s: Floats
    sequences: Floats
    contexts: Floats
    decode_s: Floats
    lengths: Floats
    prefill_s: Floats
    heads: Floats
    head_s: Floats
    host_s: float
    host_s_per_sequence: float
    decode_floor_s: float
    prefill_floor_s: float
    captured: float
    host_overlaps: bool
    copies: int
    checked: int
    given: float

    # A step looks four of them up, which an index does ten times faster than an interpolation.
    @cached_property
    def _linear(self) -> list[float]:
        return [*self._every_linear.tolist()]

    @cached_property
    def _head(self) -> list[float]:
        return [*self._every_head.tolist()]

    @cached_property
    def _prefill(self) -> list[float]:
        return [*self._every_prefill.tolist()]

    @cached_property
    def _every_linear(self) -> Floats:
        return _dense(self.tokens, self.linear_s)

    @cached_property
    def _every_copy(self) -> Floats:
        return _dense(self.tokens, self.copy_s)

    @cached_property
    def _every_head(self) -> Floats:
        return _dense(self.heads, self.head_s)

    @cached_property
    def _every_prefill(self) -> Floats:
        return _dense(self.lengths, self.prefill_s)

    @cached_property
    def _decodes(self) -> dict[int, tuple[list[float], float, float, float]]:
        return {}

    @cached_property
    def _cells(self) -> dict[tuple[int, int], tuple[float, float, float, float, float, float, float]]:
        return {}

    @cached_property
    def _contexts(self) -> list[float]:
        return [*map(float, self.contexts)]

    def until_s(
        self, active: int, context_tokens: int, steps: int, within_s: float, begun: bool
    ) -> tuple[int, float, float]:
        """See ``StepPrices``."""
        share, mean, overlaps = 1.0 / self.given, context_tokens / active, self.host_overlaps
        count, end, before, passed = 0, -1.0, 0.0, 0.0
        while count < steps:
            if mean > end:  # a cell of the table, in which attention grows by as much a token
                start, end, here, slope, fixed, host, least = self._cell(active, mean)
                here += fixed
            gpu = here + slope * (mean - start)
            gpu = gpu if gpu > least else least
            before = passed
            passed += (gpu if gpu > host else host) * share if overlaps else (gpu + host) * share
            count += 1
            if (before if begun else passed) >= within_s:
                break
            mean += 1.0
        return count, before, passed

    def stretch_s(self, active: int, context_tokens: int, steps: int) -> float:
        """See ``StepPrices``; cell by cell of the table, in each of which steps grow by as much a token."""
        mean, whole, left = context_tokens / active, 0.0, steps
        while left:
            start, end, here, slope, fixed, host, least = self._cell(active, mean)
            count = left if left <= end - mean else min(left, int(end - mean) + 1)
            first = fixed + here + slope * (mean - start)
            if self.host_overlaps:
                least = host if host > least else least
            else:
                whole += host * count
            if first >= least and slope >= 0.0:
                whole += count * (first + first + slope * (count - 1)) / 2.0
            else:
                whole += sum_of_steps(first, slope, count, least)
            mean += count
            left -= count
        return whole / self.given

    def mixed_step_s(
        self, active: int, context_tokens: int, new: Sequence[int], past: Sequence[int], heads: int
    ) -> float:
        """See ``StepPrices``."""
        checked, linear, head = active * self.checked, self._linear, self._head
        rows, heads = checked + sum(new), heads + checked - active
        gpu = linear[rows if rows < len(linear) else -1] + head[heads if heads < len(head) else -1]
        if active:
            mean = context_tokens / active
            start, _, here, slope, *_ = self._cell(active, mean)
            gpu += here + slope * (mean - start)
        gpu += self._prompts_s(new, past) if self.copies == 1 else self._fullest_copy_s(checked, rows, new, past)
        gpu = gpu if gpu > self.prefill_floor_s else self.prefill_floor_s
        host = self.host_s + self.host_s_per_sequence * (active + len(new))
        step = gpu + host if not self.host_overlaps else gpu if gpu > host else host
        if self.given == 1.0 or not active:
            return step
        # What it gives beyond the one token that the loop counts saves that share of decode steps after it.
        return step - (self.given - 1.0) * self.stretch_s(active, context_tokens, 1)

    def _prompts_s(self, new: Sequence[int], past: Sequence[int]) -> float:
        """Attention of prompts, over all copies if these are as full."""
        prices, begun = self._prefill, 0.0
        for more, before in zip(new, past, strict=False):
            begun += prices[before + more] - prices[before]
        return sum(map(prices.__getitem__, new[len(past) :] if past else new), begun)

    def _fullest_copy_s(self, active: int, rows: int, new: Sequence[int], past: Sequence[int]) -> float:
        """Attention of the prompts of the fullest copy, and what its projections take beyond an even share's.

        Prompts are dealt over the copies in turn, as evenly as whole ones can lie.
        """
        hands = [new[i :: self.copies] for i in range(min(self.copies, len(new)))]
        fullest = max(range(len(hands)), key=[*map(sum, hands)].__getitem__)
        as_full = active + self.copies * sum(hands[fullest])
        last = len(self._every_copy) - 1
        beyond = float(self._every_copy[min(as_full, last)] - self._every_copy[min(rows, last)])
        return self.copies * self._prompts_s(hands[fullest], past[fullest :: self.copies]) + beyond

    def _cell(self, active: int, mean: float) -> tuple[float, float, float, float, float, float, float]:
        """Steps of so many decodes at contexts around ``mean``.

        Where these contexts begin and end, seconds of attention at the begin, and more for each token; all else that
        the GPU does, the host, and the least that the GPU takes. Below the first and above the last context of the
        table attention is what it is there.
        """
        key, known = (active, bisect_left(self._contexts, mean)), self._cells
        if key in known:
            return known[key]
        contexts, high = self._contexts, key[1]
        row, fixed, host, least = self._decoding(active)
        if high == 0:
            cell = 0.0, contexts[0], row[0], 0.0
        elif high == len(contexts):
            cell = contexts[-1], math.inf, row[-1], 0.0
        else:
            low, here = contexts[high - 1], row[high - 1]
            cell = low, contexts[high], here, (row[high] - here) / (contexts[high] - low)
        known[key] = found = (*cell, fixed, host, least)
        return found

    def _decoding(self, active: int) -> tuple[list[float], float, float, float]:
        """Of steps with so many decodes: attention over contexts, all else on the GPU, the host, the GPU's least."""
        known, sequences = self._decodes, self.sequences
        if active not in known:
            high = min(max(int(sequences.searchsorted(active)), 1), len(sequences) - 1)
            low = float(sequences[high - 1])
            weight = (active - low) / (float(sequences[high]) - low)
            row = np.asarray(self.decode_s[high - 1] * (1 - weight) + self.decode_s[high] * weight, dtype=np.float64)
            rows, linear, head = active * self.checked, self._linear, self._head
            fixed = linear[min(rows, len(linear) - 1)] + head[min(rows, len(head) - 1)]
            least = self.decode_floor_s if active <= self.captured else self.decode_floor_s + self.prefill_floor_s
            known[active] = row.tolist(), fixed, self.host_s + self.host_s_per_sequence * active, least
        return known[active]


def sum_of_steps(first: float, slope: float, count: int, least: float) -> float:
    """Sum of so many steps, each ``slope`` longer than the one before it and none shorter than ``least``."""
    last = first + slope * (count - 1)
    if min(first, last) >= least:
        return count * (first + last) / 2.0
    if max(first, last) <= least:
        return count * least
    before = min(count, math.ceil((least - first) / slope))  # they meet ``least`` here, from below or from above
    turn = first + slope * before
    if slope > 0.0:
        return before * least + (count - before) * (turn + last) / 2.0
    return before * (first + turn - slope) / 2.0 + (count - before) * least


def _dense(sizes: Floats, seconds: Floats) -> Floats:
    """Seconds of every whole size from 0 to the largest."""
    return np.interp(np.arange(sizes[-1] + 1), sizes, seconds)
