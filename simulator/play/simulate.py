"""simulate(plan, facts) -> Timeline: price every call of one plan and play them through the event queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiles.errors import InputError
from profiles.records import Priced
from simulator.cost.pricing import controller_cost, is_controller, role_costs
from simulator.cost.role_layouts import layouts_of
from simulator.feasibility import require_feasible
from simulator.full_length import peak_memory
from simulator.plan.dataflow import STAGES
from simulator.plan.timeline import MOST_S, Span, Timeline
from simulator.play.event_queue import critical_path
from simulator.play.left_open import left_open
from simulator.play.other_releases import other_releases
from simulator.play.schedule import pools_of, runs_on, scheduled
from simulator.uncertainty import by_rule_share, cluster_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from simulator.cost.call_cost import Cost
    from simulator.facts import Facts
    from simulator.plan.dataflow import Call, Dataflow
    from simulator.plan.plan import Plan
    from simulator.play.event_queue import Scheduled


@dataclass(frozen=True, eq=False)
class PricedCall:
    """Scalar cost of one call of one plan."""

    time: Priced
    compute_s: float
    comm_s: float


def simulate(plan: Plan, facts: Facts) -> Timeline:
    """Predict one iteration of a plan.

    Parameters
    ----------
    plan
        What runs where.
    facts
        What is known of job, devices and engines.

    Returns
    -------
    Timeline
        Spans, stage times along the critical path, memory and provenance.

    Raises
    ------
    InfeasibleError
        ``check_plan`` finds a violation.
    NoBasisError
        A device lacks a measurement.
    """
    require_feasible(plan, facts)
    return build_timeline(plan, facts, price_calls(plan, facts))


def price_calls(plan: Plan, facts: Facts) -> dict[str, PricedCall]:
    """Cost of every call of the iteration.

    Parameters
    ----------
    plan
        What runs where.
    facts
        What is known of job, device and engines.

    Returns
    -------
    dict[str, PricedCall]
        Scalar costs by call key.

    Raises
    ------
    NoBasisError
        A device lacks a measurement.
    """
    facts = facts.drafting(plan.draft_tokens)
    out = {call.key: _scalar(controller_cost(facts, call)) for call in facts.dataflow.calls if is_controller(call)}
    for entry in plan.roles:
        home = facts.on(plan.pool_of(entry.role).device)
        engine = facts.on(plan.generation_pool_of(entry.role).device)
        for key, cost in role_costs(home, entry.role, layouts_of(entry, plan), plan.resharding, engine).items():
            out[key] = _scalar(cost[0])
    return out


# Long by what a timeline says: a line for each.
def build_timeline(plan: Plan, facts: Facts, calls: Mapping[str, PricedCall]) -> Timeline:
    """Play the priced calls and collect spans, stage times along the critical path, memory and provenance.

    Parameters
    ----------
    plan
        What runs where.
    facts
        What is known of job, device and engines.
    calls
        Priced, by call key.

    Returns
    -------
    Timeline
        The iteration.

    Raises
    ------
    InputError
        The iteration would take longer than any number of a file may say.
    """
    flow = facts.dataflow
    pools, engine = pools_of(plan)
    alone_s = _seconds(calls)
    records = scheduled(plan, facts, alone_s)
    longest_s = _end_s(records)
    if not longest_s <= MOST_S:
        raise InputError(f"an iteration would take {longest_s:g} s; look at the rates of the devices and the network")
    path = critical_path(records)
    stages = dict.fromkeys(STAGES, 0.0)
    basis = Priced.zero()
    for i in path:
        stages[flow.calls[i].stage] += records[i].end_s - records[i].start_s
        basis = basis + calls[flow.calls[i].key].time
    return Timeline(
        source="simulated",
        iteration_s=longest_s,
        stages=stages,
        spans=_spans(flow, records, calls, path, lambda call: runs_on(call, pools, engine)),
        memory={pool.name: peak_memory(plan, pool, facts) for pool in plan.pools},
        basis=basis.share(),
        tokens=facts.workload.tokens,
        num_gpus=plan.num_gpus,
        cluster=cluster_of(facts, plan.schedule),
        by_rule=by_rule_share(facts),
        log_deviation=left_open(
            facts,
            alone_s,
            lambda moved_s: _end_s(scheduled(plan, facts, moved_s)),
            lambda moved: _seconds(price_calls(plan, moved)),
        ),
        releases={
            name: _end_s(scheduled(plan, other, _seconds(price_calls(plan, other))))
            for name, other in other_releases(facts).items()
        },
    )


def _seconds(calls: Mapping[str, PricedCall]) -> dict[str, float]:
    return {key: float(call.time.s) for key, call in calls.items()}


def _end_s(records: Sequence[Scheduled]) -> float:
    return max(record.end_s for record in records)


def _spans(
    flow: Dataflow,
    records: Sequence[Scheduled],
    calls: Mapping[str, PricedCall],
    path: Sequence[int],
    pool_of: Callable[[Call], str],
) -> tuple[Span, ...]:
    return tuple(
        Span(
            call=call.key,
            api=call.api,
            role=call.role,
            pool=pool_of(call),
            stage=call.stage,
            start_s=record.start_s,
            end_s=record.end_s,
            compute_s=calls[call.key].compute_s,
            comm_s=calls[call.key].comm_s,
            basis=calls[call.key].time.share(),
            critical=i in path,
        )
        for i, (call, record) in enumerate(zip(flow.calls, records, strict=True))
    )


def _scalar(cost: Cost) -> PricedCall:
    return PricedCall(cost.time, float(cost.compute.s), float(cost.comm.s))
