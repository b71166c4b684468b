"""What drafts were priced to keep, and what they kept in the run: the acceptance that a price rests on, measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.plan.plan import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.facts import Facts
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline


class Kept(Record):
    """Share of steps that keep the drafted token at a position, from 1, as ``speculation.acceptance`` has it."""

    position: int
    priced: float
    measured: float


def kept_drafts(plan: Plan, facts: Facts, measured: Sequence[Timeline]) -> tuple[Kept, ...]:
    """The shares of each position over all measured iterations; none where nobody drafts, or no draft was checked."""
    drafts = facts.drafting(plan.draft_tokens).speculation
    counts = [
        span.counts for timeline in measured for span in timeline.spans if span.counts and span.counts.draft_steps
    ]
    if drafts is None or not counts:
        return ()
    steps = sum(each.draft_steps for each in counts)
    kept = [sum(position) for position in zip(*(each.drafts_kept for each in counts), strict=True)]
    shares = zip(drafts.accepted, kept, strict=True)
    return tuple(Kept(position=i, priced=share, measured=n / steps) for i, (share, n) in enumerate(shares, start=1))
