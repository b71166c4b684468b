"""Layouts of one call priced, and the copies of a trained role's weights that it may score on.

A copy has a layout of its own, in replicas no wider than training's and on no more GPUs. Copies are listed once for all
spreads that the role may train in: their price and memory depend on nothing else, and gathering one takes what the
spread says. So what no other copy beats on as many GPUs, in replicas as narrow, is all that a spread has to look at.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates.pareto import non_dominated, non_dominated_by_group
from simulator.cost import memory, pricing
from simulator.cost.role_layouts import RoleLayouts, head_of
from simulator.cost.role_memory import role_memory
from simulator.cost.scoring_copy import apart, copy_bytes
from simulator.cost.token_quantiles import RARE, TYPICAL
from simulator.plan.layouts import Layouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiles.records import Floats, Ints
    from simulator.facts import Facts
    from simulator.plan.dataflow import Call

NUM_ZERO_STAGES = 4


def _nothing() -> Floats:
    return np.zeros(1)


@dataclass(frozen=True, eq=False)
class PricedCandidates:
    """Layouts of one call, what each costs, and which spread of the weights it belongs to; all ``[C]``.

    ``gain_s``: seconds that a copy could gain at most in the data-parallel degrees that its spread stands for.
    """

    layouts: Layouts
    spread: Ints
    seconds: Floats
    need_bytes: Floats
    gain_s: Floats = field(default_factory=_nothing)

    def __post_init__(self) -> None:
        if len(self.gain_s) != len(self.seconds):  # one value for all rows
            object.__setattr__(self, "gain_s", np.broadcast_to(self.gain_s, self.seconds.shape))

    def take(self, index: Ints) -> PricedCandidates:
        """The rows at ``index``."""
        return PricedCandidates(
            self.layouts.take(index),
            self.spread[index],
            self.seconds[index],
            self.need_bytes[index],
            self.gain_s[index],
        )

    @staticmethod
    def joined(first: PricedCandidates, second: PricedCandidates) -> PricedCandidates:
        """Two lists of rows after each other."""
        columns = ("spread", "seconds", "need_bytes", "gain_s")
        return PricedCandidates(
            Layouts.joined([first.layouts, second.layouts]),
            *(np.concatenate([getattr(first, name), getattr(second, name)]) for name in columns),
        )


@dataclass(frozen=True, eq=False)
class Spreads:
    """What a role may train in: each spread's number, its layout, and the last degree that it stands for, ``[S]``."""

    number: Ints
    layouts: Layouts
    last_dp: Ints

    @staticmethod
    def of(degrees: Sequence[tuple[int, int, int, int, int]], number: Ints, last_dp: Ints) -> Spreads:
        """The spreads of these numbers: ``NUM_ZERO_STAGES`` for each of ``degrees``, whose last ones are given."""
        at = number // NUM_ZERO_STAGES
        dp, tp, pp, cp, ep = np.asarray(degrees, dtype=np.int64).reshape(-1, 5)[at].T
        one = np.ones_like(dp)
        return Spreads(number, Layouts(dp, tp, pp, cp, ep, number % NUM_ZERO_STAGES, one, 0 * one), last_dp[at])


def priced(facts: Facts, call: Call, layouts: Layouts, owner: Ints) -> PricedCandidates:
    """Price a call in every layout that fits; keep per spread what no other row beats in time and memory."""
    shape, logits = facts.roles[call.role].shape, head_of(call.role) == "lm"
    need = memory.planned_bytes(facts, shape, layouts, logits, training=call.kind == "train")
    fits = np.flatnonzero(need <= facts.memory_room_bytes)
    layouts, need = layouts.take(fits), need[fits]
    given = RoleLayouts(training=layouts) if call.kind == "train" else RoleLayouts(inference=layouts)
    seconds = pricing.call_cost(facts, call, given).time.s
    rows = PricedCandidates(layouts, owner[fits] * NUM_ZERO_STAGES + layouts.zero_stage, seconds, need)
    key = rows.spread * 2 + (layouts.vpp > 1)  # a plain plan has no chunks
    return rows.take(non_dominated_by_group(key, np.stack([seconds, need], axis=1)))


def priced_copies(facts: Facts, call: Call, listed: Layouts, owner: Ints) -> PricedCandidates:
    """Layouts that a copy may score in, without what comes before the call: that depends on the weights' GPUs."""
    copies = priced(facts, call, listed, owner)
    engine = facts.training
    rank_s = engine.call_rank_s * facts.correction(call.api, call.role) + engine.dispatch_pool_rank_s
    started = rank_s * (copies.layouts.num_gpus - 1.0)
    return replace(copies, seconds=copies.seconds - started)  # GPUs of the copy have no say in when a call starts


def with_copies(
    facts: Facts, call: Call, forward: PricedCandidates, trained_in: Spreads, copies: PricedCandidates
) -> PricedCandidates:
    """The rows of a forward pass in the spreads of training, and on ``copies`` (``priced_copies``) for each spread.

    Copies stay beside what they lose to: in degrees that are not listed they may gain (``gain_s``).
    """
    left, right, gain_s = _worth_gathering(facts, call.role, copies, trained_in)
    training, chosen = trained_in.layouts.take(left), copies.layouts.take(right)
    given = RoleLayouts(training=training, inference=chosen)
    needs = (memory.total(role_memory(facts, call.role, given, level=x).transient[call.key]) for x in (TYPICAL, RARE))
    need = memory.beyond_headroom(facts, *needs)
    rows = PricedCandidates(chosen, trained_in.number[left], pricing.call_cost(facts, call, given).time.s, need, gain_s)
    room = facts.memory_room_bytes
    both = PricedCandidates.joined(forward, rows.take(np.flatnonzero(rows.need_bytes <= room)))
    copied = np.arange(len(both.spread)) >= len(forward.spread)
    key = both.spread * 2 + copied  # a plain plan has no copies
    return both.take(non_dominated_by_group(key, np.stack([both.seconds, both.need_bytes], axis=1)))


def _worth_gathering(
    facts: Facts, role: str, copies: PricedCandidates, trained_in: Spreads
) -> tuple[Ints, Ints, Floats]:
    """Positions ``(spread, copy)`` of the pairs worth pricing, and each one's gain in degrees that are not listed.

    A gain is against the fastest copy of all that the last of those degrees has GPUs for.
    """
    x = trained_in.layouts
    gpus, width = copies.layouts.num_gpus, copies.layouts.num_gpus // copies.layouts.dp
    shape, head = facts.roles[role].shape, head_of(role)
    held = copy_bytes(facts, shape, head, copies.layouts, {"working": copies.need_bytes})
    values = np.stack([gpus.astype(np.float64), copies.seconds, copies.need_bytes + memory.total(held)], axis=1)
    left, right, gains = [], [], []
    front = np.zeros(0, dtype=np.int64)
    seen = 0
    spread_width = x.num_gpus // x.dp
    for wide in np.unique(spread_width).tolist():
        joining = np.flatnonzero((width > seen) & (width <= wide))
        front, seen = np.concatenate([front, joining]), wide
        front = front[non_dominated(values[front])]
        for i in np.flatnonzero(spread_width == wide).tolist():
            few = front[gpus[front] <= x.num_gpus[i]]
            few = few[non_dominated(values[few, 1:])]
            few = few[apart(x.take(np.full(len(few), i)), copies.layouts.take(few))]
            most = front[gpus[front] <= trained_in.last_dp[i] * wide]
            left.append(np.full(len(few), i))
            right.append(few)
            gains.append(copies.seconds[few] - copies.seconds[most].min(initial=np.inf))
    if not left:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    stood_for = np.concatenate(gains)
    at = np.concatenate(left)
    alone = trained_in.last_dp[at] == x.dp[at]
    return at, np.concatenate(right), np.where(alone, 0.0, np.maximum(stood_for, 0.0))
