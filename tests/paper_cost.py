"""The cost of a placement as the HybridFlow paper states it: a lower fidelity that the event queue is held against."""

from simulator.facts import Facts
from simulator.plan.dataflow import CONTROLLER
from simulator.plan.plan import Plan
from simulator.play.simulate import price_calls


def paper_cost_s(plan: Plan, facts: Facts) -> float:
    """The paper's cost (Algorithm 1, lines 25 to 34): stages are barriers; sum in a set, maximum over sets.

    It has no transition, no transfer and no controller: only the three stages of Fig 1 count.
    """
    times = {key: float(priced.time.s) for key, priced in price_calls(plan, facts).items()}
    calls = [call for call in facts.dataflow.calls if call.role != CONTROLLER]
    return sum(
        max(sum(times[c.key] for c in calls if c.stage == stage and c.role in pool.roles) for pool in plan.pools)
        for stage in ("generation", "preparation", "training")
    )
