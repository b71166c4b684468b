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

    from profiles.records import Floats, Ints
    from simulator.serving.run import Chunk


@dataclass(frozen=True, eq=False)
class TabulatedPrices:
    """``StepPrices`` of one engine on one layout.

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
    host_overlaps: bool = False
    copies: int = 1
    checked: int = 1
    given: float = 1.0

    # A step looks four of them up, which an index does ten times faster than an interpolation.
    @cached_property
    def _linear(self) -> list[float]:
        return _dense(self.tokens, self.linear_s)

    @cached_property
    def _copy(self) -> list[float]:
        return _dense(self.tokens, self.copy_s)

    @cached_property
    def _head(self) -> list[float]:
        return _dense(self.heads, self.head_s)

    @cached_property
    def _prefill(self) -> list[float]:
        return _dense(self.lengths, self.prefill_s)

    @cached_property
    def _linear_array(self) -> Floats:
        return np.asarray(self._linear)

    @cached_property
    def _head_array(self) -> Floats:
        return np.asarray(self._head)

    @cached_property
    def _prefill_array(self) -> Floats:
        return np.asarray(self._prefill)

    @cached_property
    def _rows(self) -> dict[int, tuple[Floats, list[float]]]:
        return {}

    @cached_property
    def _contexts(self) -> list[float]:
        return [*map(float, self.contexts)]

    @cached_property
    def _sequences(self) -> list[float]:
        return [*map(float, self.sequences)]

    def decode_steps_s(self, active: int, context_tokens: int, steps: int, within_s: float = math.inf) -> list[float]:
        """See ``StepPrices``."""
        rows, share = active * self.checked, 1.0 / self.given
        fixed, host, least = self._fixed_s(rows, rows), self._host_s(active), self.decode_floor_s
        row, mean = self._row(active)[1], context_tokens / active
        overlaps, times, end, passed = self.host_overlaps, list[float](), -1.0, 0.0
        for _ in range(steps):
            if mean > end:  # a cell of the table, in which attention grows by as much a token
                start, end, here, slope = self._cell(row, mean)
                here += fixed
            gpu = here + slope * (mean - start)
            gpu = gpu if gpu > least else least
            whole = (gpu if gpu > host else host) if overlaps else gpu + host
            times.append(whole * share)
            if passed >= within_s:
                break
            passed += times[-1]
            mean += 1.0
        return times

    def _cell(self, row: list[float], mean: float) -> tuple[float, float, float, float]:
        """Where the contexts around ``mean`` begin and end, seconds of ``row`` at the begin, and more for each token.

        Below the first and above the last context of the table attention is what it is there.
        """
        contexts = self._contexts
        high = bisect_left(contexts, mean)
        if high == 0:
            return 0.0, contexts[0], row[0], 0.0
        if high == len(contexts):
            return contexts[-1], math.inf, row[-1], 0.0
        low, here = contexts[high - 1], row[high - 1]
        return low, contexts[high], here, (row[high] - here) / (contexts[high] - low)

    def stretch_s(self, active: int, context_tokens: int, steps: int) -> float:
        """See ``StepPrices``; cell by cell of the table, in each of which steps grow by as much a token."""
        rows, host = active * self.checked, self._host_s(active)
        fixed, row, mean = self._fixed_s(rows, rows), self._row(active)[1], context_tokens / active
        least = max(self.decode_floor_s, host) if self.host_overlaps else self.decode_floor_s
        whole, left = 0.0 if self.host_overlaps else host * steps, steps
        while left:
            start, end, here, slope = self._cell(row, mean)
            count = left if left <= end - mean else min(left, int(end - mean) + 1)
            whole += _sum_of_steps(fixed + here + slope * (mean - start), slope, count, least)
            mean += count
            left -= count
        return whole / self.given

    def stretches_s(self, active: Ints, context_tokens: Ints, steps: Ints) -> Floats:
        """See ``StepPrices``; as ``stretch_s``, all cells of all stretches at once."""
        of, passed, count = self._cells_of(context_tokens / active, steps)
        begins = np.flatnonzero(passed == 0)
        rows, host, mean = active * self.checked, self._host_many_s(active), (context_tokens / active)[of] + passed
        fixed = self._fixed_many_s(rows, rows)[of]
        least = np.maximum(host * self.host_overlaps, self.decode_floor_s)[of]
        first, last = (fixed + self._attention_s(active, at, of) for at in (mean, mean + (count - 1)))
        low, high = np.minimum(first, last), np.maximum(first, last)
        whole = count * np.where(high <= least, least, (first + last) / 2.0)
        for i in np.flatnonzero((low < least) & (least < high)).tolist():
            slope = float(last[i] - first[i]) / float(count[i] - 1)
            whole[i] = _sum_of_steps(float(first[i]), slope, int(count[i]), float(least[i]))
        whole = np.add.reduceat(whole, begins) + host * steps * (not self.host_overlaps)
        return np.asarray(whole / self.given, dtype=np.float64)

    def _cells_of(self, mean: Floats, steps: Ints) -> tuple[Ints, Ints, Ints]:
        """Cells of the contexts that stretches from ``mean`` on go through: of which one, steps before, and in it."""
        first, last = np.searchsorted(self.contexts, mean), np.searchsorted(self.contexts, mean + (steps - 1))
        cells = last - first + 1
        ends = np.cumsum(cells)
        of = np.repeat(np.arange(len(steps)), cells)
        cell = np.arange(len(of)) - (ends - cells - first)[of]
        # Contexts of the table are whole numbers or further apart, so that each cell has a step.
        before = np.floor(self.contexts[cell - 1] - mean[of]).astype(np.int64) + 1
        passed = np.where(cell == first[of], 0, before)
        after = np.append(passed[1:], 0)
        after[ends - 1] = steps
        return of, passed, after - passed

    def _attention_s(self, active: Ints, mean: Floats, of: Ints) -> Floats:
        """Attention of decodes at contexts ``mean``, ``active[of]`` sequences each."""
        counts, own = np.unique(active, return_inverse=True)
        above = np.clip(np.searchsorted(self.sequences, counts), 1, len(self.sequences) - 1)
        share = ((counts - self.sequences[above - 1]) / (self.sequences[above] - self.sequences[above - 1]))[:, None]
        rows = self.decode_s[above - 1] * (1 - share) + self.decode_s[above] * share
        high = np.clip(np.searchsorted(self.contexts, mean), 1, len(self.contexts) - 1)
        low, kind = self.contexts[high - 1], own[of]
        here, weight = rows[kind, high - 1], np.clip((mean - low) / (self.contexts[high] - low), 0.0, 1.0)
        return np.asarray(here + (rows[kind, high] - here) * weight, dtype=np.float64)

    def mixed_steps_s(self, steps: Ints, chunks: Ints) -> Floats:
        """See ``StepPrices``; ``mixed_step_s`` of all steps at once."""
        active, context, heads, prompts = steps.T
        new, past = chunks.T
        begins = np.cumsum(prompts) - prompts
        if self.copies > 1:
            parts = zip(steps.tolist(), np.split(chunks, begins[1:]), strict=True)
            each = [self.mixed_step_s(step[0], step[1], part.tolist(), step[2]) for step, part in parts]
            return np.asarray(each)
        drafted = active * (self.checked - 1)
        rows = active + drafted + np.add.reduceat(new, begins)
        prefill, beside = self._prefill_array, np.flatnonzero(active)
        gpu = self._fixed_many_s(rows, heads + drafted) + np.add.reduceat(prefill[past + new] - prefill[past], begins)
        gpu[beside] += self._attention_s(active[beside], context[beside] / active[beside], np.arange(len(beside)))
        gpu, host = np.maximum(gpu, self.prefill_floor_s), self._host_many_s(active + prompts)
        whole = np.maximum(gpu, host) if self.host_overlaps else gpu + host
        if self.given > 1.0 and len(beside):
            once = self.stretches_s(active[beside], context[beside], np.ones_like(beside))
            whole[beside] -= (self.given - 1.0) * once
        return np.asarray(whole, dtype=np.float64)

    def _fixed_many_s(self, rows: Ints, heads: Ints) -> Floats:
        linear, head = self._linear_array, self._head_array
        fixed = linear[np.minimum(rows, len(linear) - 1)] + head[np.minimum(heads, len(head) - 1)]
        return np.asarray(fixed, dtype=np.float64)

    def _host_many_s(self, sequences: Ints) -> Floats:
        return np.asarray(self.host_s + self.host_s_per_sequence * sequences, dtype=np.float64)

    def mixed_step_s(self, active: int, context_tokens: int, chunks: Sequence[Chunk], heads: int) -> float:
        """See ``StepPrices``."""
        checked = active * self.checked
        rows = checked + (chunks[0][0] if len(chunks) == 1 else sum([new for new, _ in chunks]))
        gpu = self._fixed_s(rows, heads + checked - active)
        if active:
            mean = context_tokens / active
            start, _, here, slope = self._cell(self._row(active)[1], mean)
            gpu += here + slope * (mean - start)
        gpu += self._prompts_s(chunks) if self.copies == 1 else self._fullest_copy_s(checked, rows, chunks)
        step = self._with_host(max(gpu, self.prefill_floor_s), active + len(chunks))
        if self.given == 1.0 or not active:
            return step
        # What it gives beyond the one token that the loop counts saves that share of decode steps after it.
        return step - (self.given - 1.0) * self.decode_steps_s(active, context_tokens, 1)[0]

    def _fixed_s(self, rows: int, heads: int) -> float:
        """All layers without attention, and the head."""
        linear, head = self._linear, self._head
        return linear[rows if rows < len(linear) else -1] + head[heads if heads < len(head) else -1]

    def _prompts_s(self, chunks: Sequence[Chunk]) -> float:
        """Attention of prompts, over all copies if these are as full."""
        prices = self._prefill
        return sum([prices[past + new] - prices[past] for new, past in chunks])

    def _fullest_copy_s(self, active: int, rows: int, chunks: Sequence[Chunk]) -> float:
        """Attention of the prompts of the fullest copy, and what its projections take beyond an even share's.

        Chunks are dealt over the copies in turn, as evenly as whole prompts can lie.
        """
        hands = [chunks[i :: self.copies] for i in range(min(self.copies, len(chunks)))]
        fullest = max(hands, key=lambda hand: sum(new for new, _ in hand))
        as_full = active + self.copies * sum(new for new, _ in fullest)
        last = len(self._copy) - 1
        return self.copies * self._prompts_s(fullest) + self._copy[min(as_full, last)] - self._copy[min(rows, last)]

    def _with_host(self, gpu: float, sequences: int) -> float:
        host = self._host_s(sequences)
        return max(gpu, host) if self.host_overlaps else gpu + host

    def _host_s(self, sequences: int) -> float:
        return self.host_s + self.host_s_per_sequence * sequences

    def _row(self, active: int) -> tuple[Floats, list[float]]:
        """Attention over the contexts at ``active`` sequences, shape ``[K]``: linear between two grid rows."""
        if active not in self._rows:
            low, high, weight = self._between(active)
            row = np.asarray(self.decode_s[low] * (1 - weight) + self.decode_s[high] * weight, dtype=np.float64)
            self._rows[active] = row, row.tolist()
        return self._rows[active]

    def _between(self, active: int) -> tuple[int, int, float]:
        """The two rows of the grid that ``active`` sequences lie between, and what the upper one counts."""
        sequences = self._sequences
        high = min(max(bisect_left(sequences, active), 1), len(sequences) - 1)
        low = sequences[high - 1]
        return high - 1, high, (active - low) / (sequences[high] - low)


def _sum_of_steps(first: float, slope: float, count: int, least: float) -> float:
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


def _dense(sizes: Floats, seconds: Floats) -> list[float]:
    """Seconds of every whole size from 0 to the largest."""
    dense: list[float] = np.interp(
        np.arange(sizes[-1] + 1), sizes, seconds
    ).tolist()  # ten times faster than one by one
    return dense
