"""How many tokens engines draft in a step, as part of the plan: one search a length, the best of all, one bound.

A length changes the price of every layout of an engine and nothing of a trainer's, so searches of different lengths
share no plan, and the least of their bounds holds for all of them together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mapper.result import best_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mapper.result import Result, RunnerUp
    from simulator.facts import Facts


def draft_lengths(facts: Facts) -> tuple[int | None, ...]:
    """Tokens of a draft to choose among, fewest first; ``None`` alone for a job without drafts."""
    drafts = facts.speculation
    return (None,) if drafts is None else drafts.lengths or (drafts.drafted,)


def with_drafts(result: Result, tokens: int | None) -> Result:
    """The result of a search with so many drafted tokens, whose plans say so."""
    if tokens is None:
        return result

    def saying(other: RunnerUp) -> RunnerUp:
        return replace(other, plan=other.plan.model_copy(update={"draft_tokens": tokens}))

    return replace(
        result,
        plan=result.plan.model_copy(update={"draft_tokens": tokens}),
        runners_up=tuple(map(saying, result.runners_up)),
        alternatives=tuple(map(saying, result.alternatives)),
        plain=None if result.plain is None else saying(result.plain),
    )


def best_length(results: Sequence[Result]) -> Result:
    """The best of searches by draft length and mode, with what is proven of all together, and what each length gives.

    Runners-up are the best plan's own: other placements with as many drafted tokens.
    """
    lengths = dict.fromkeys(result.plan.draft_tokens for result in results)
    of_length = {n: best_of(tuple(r for r in results if r.plan.draft_tokens == n)) for n in lengths}
    if len(of_length) == 1:
        return next(iter(of_length.values()))
    best = best_of(tuple(of_length.values()))
    own = of_length[best.plan.draft_tokens]
    each = ", ".join(f"{n}: {found.iteration_s:,.4g} s" for n, found in of_length.items())
    note = f"drafts of {best.plan.draft_tokens} tokens a step are the best of those listed; the best plan with {each}"
    return replace(best, runners_up=own.runners_up, alternatives=own.alternatives, notes=(*best.notes, note))
