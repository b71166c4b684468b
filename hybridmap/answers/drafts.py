"""What drafted tokens are worth to a plan: the same plan without them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import Plan


def draft_notes(plan: Plan, facts: Facts) -> list[str]:
    """How long the plan's iteration and its generation take with the job's drafts and without; nothing without any."""
    from simulator.play.simulate import simulate

    facts = facts.drafting(plan.draft_tokens)
    if facts.speculation is None:
        return []
    without_any = plan.model_copy(update={"draft_tokens": None}), replace(facts, speculation=None)
    drafted, plain = (simulate(*known) for known in ((plan, facts), without_any))
    less = plain.iteration_s - drafted.iteration_s
    stage = plain.stages.get("generation", 0.0)
    does, advice = ("save", "") if less >= 0.0 else ("cost", "; leave speculation out")
    without = f"without them this plan generates for {stage:.3g} s"
    return [f"drafts {does} {abs(less):.3g} s an iteration: {without}{advice}"]
