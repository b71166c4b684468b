"""Prices of many steps of an engine at once, from the tables of ``step_tables``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.serving.step_tables import StepTables, sum_of_steps

if TYPE_CHECKING:
    from profiles.records import Floats, Ints


class TabulatedPrices(StepTables):
    """``StepPrices`` of one engine on one layout."""

    def stretches_s(self, active: Ints, context_tokens: Ints, steps: Ints) -> Floats:
        """See ``StepPrices``; as ``stretch_s``, all cells of all stretches at once."""
        mean = context_tokens / active
        of, cell, passed, count = self._cells_of(mean, steps)
        rows, host, begins = active * self.checked, self._host_many_s(active), np.flatnonzero(passed == 0)
        fixed = self._fixed_many_s(rows, rows)[of]
        floor = self.decode_floor_s + np.where(active <= self.captured, 0.0, self.prefill_floor_s)
        least = np.maximum(host * self.host_overlaps, floor)[of]
        begin, here, slope, wide = self._in_cells(active, of, cell)
        past = mean[of] + passed - begin
        first = fixed + here + slope * np.minimum(np.maximum(past, 0.0), wide)
        last = fixed + here + slope * np.minimum(np.maximum(past + (count - 1), 0.0), wide)
        low, high = np.minimum(first, last), np.maximum(first, last)
        whole = count * np.where(high <= least, least, (first + last) / 2.0)
        for i in np.flatnonzero((low < least) & (least < high)).tolist():
            growth = float(last[i] - first[i]) / float(count[i] - 1)
            whole[i] = sum_of_steps(float(first[i]), growth, int(count[i]), float(least[i]))
        whole = np.add.reduceat(whole, begins) + host * steps * (not self.host_overlaps)
        return np.asarray(whole / self.given, dtype=np.float64)

    def _cells_of(self, mean: Floats, steps: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Cells of contexts that stretches from ``mean`` on go through: of which, upper end, steps before and in it."""
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
        return of, cell, passed, after - passed

    def _attention_s(self, active: Ints, mean: Floats) -> Floats:
        """Attention of decodes at contexts ``mean``."""
        cell = np.searchsorted(self.contexts, mean)
        begin, here, slope, wide = self._in_cells(active, np.arange(len(active)), cell)
        return np.asarray(here + slope * np.minimum(np.maximum(mean - begin, 0.0), wide), dtype=np.float64)

    def _in_cells(self, active: Ints, of: Ints, cell: Ints) -> tuple[Floats, Floats, Floats, Floats]:
        """Where cells of the contexts begin, attention of ``active[of]`` decodes there and more a token, and width."""
        counts, own = np.unique(active, return_inverse=True)
        above = np.clip(np.searchsorted(self.sequences, counts), 1, len(self.sequences) - 1)
        share = ((counts - self.sequences[above - 1]) / (self.sequences[above] - self.sequences[above - 1]))[:, None]
        rows = self.decode_s[above - 1] * (1 - share) + self.decode_s[above] * share
        begins, wide, slopes = self.contexts[:-1], np.diff(self.contexts), np.diff(rows, axis=1)
        low, kind = np.minimum(np.maximum(cell - 1, 0), len(wide) - 1), own[of]
        return begins[low], rows[kind, low], (slopes / wide)[kind, low], wide[low]

    def mixed_steps_s(self, steps: Ints, chunks: Ints) -> Floats:
        """See ``StepPrices``; ``mixed_step_s`` of all steps at once."""
        active, context, heads, prompts = steps.T
        new, past = chunks.T
        begins = np.cumsum(prompts) - prompts
        checked, beside = active * self.checked, np.flatnonzero(active)
        taken = self._every_prefill[past + new] - self._every_prefill[past]
        gpu = self._fixed_many_s(checked + np.add.reduceat(new, begins), heads + checked - active)
        if self.copies == 1:
            gpu += np.add.reduceat(taken, begins)
        else:
            gpu += self._fullest_copies_s(checked, prompts, new, taken)
        gpu[beside] += self._attention_s(active[beside], context[beside] / active[beside])
        gpu, host = np.maximum(gpu, self.prefill_floor_s), self._host_many_s(active + prompts)
        whole = np.maximum(gpu, host) if self.host_overlaps else gpu + host
        if self.given > 1.0 and len(beside):
            once = self.stretches_s(active[beside], context[beside], np.ones_like(beside))
            whole[beside] -= (self.given - 1.0) * once
        return np.asarray(whole, dtype=np.float64)

    def _fullest_copies_s(self, active: Ints, prompts: Ints, new: Ints, taken: Floats) -> Floats:
        """``_fullest_copy_s`` of steps with so many ``prompts``, each of ``new`` tokens and ``taken`` seconds."""
        copies, steps, table = self.copies, np.arange(len(prompts)), self._every_copy
        step = np.repeat(steps, prompts)
        place = np.arange(len(new)) - (np.cumsum(prompts) - prompts)[step]
        hand, shape = step * copies + place % copies, (len(prompts), copies)
        tokens = np.bincount(hand, new, copies * len(prompts)).astype(np.int64).reshape(shape)
        seconds = np.bincount(hand, taken, copies * len(prompts)).reshape(shape)
        fullest, last = tokens.argmax(axis=1), len(table) - 1
        as_full = table[np.minimum(active + copies * tokens[steps, fullest], last)]
        even = table[np.minimum(active + tokens.sum(axis=1), last)]
        return np.asarray(copies * seconds[steps, fullest] + as_full - even, dtype=np.float64)

    def _fixed_many_s(self, rows: Ints, heads: Ints) -> Floats:
        linear, head = self._every_linear, self._every_head
        fixed = linear[np.minimum(rows, len(linear) - 1)] + head[np.minimum(heads, len(head) - 1)]
        return np.asarray(fixed, dtype=np.float64)

    def _host_many_s(self, sequences: Ints) -> Floats:
        return np.asarray(self.host_s + self.host_s_per_sequence * sequences, dtype=np.float64)
