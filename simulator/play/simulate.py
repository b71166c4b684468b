"""simulate(plan, facts) -> Timeline: price every call of one plan and play them through the event queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiles.errors import InputError
from profiles.records import Priced
from simulator.cost.pricing import controller_cost, is_controller, role_costs
from simulator.feasibility import layouts_of, require_feasible
from simulator.full_length import peak_memory
from simulator.plan.dataflow import CONTROLLER, STAGES, Dataflow, overlapped_calls
from simulator.plan.timeline import MOST_S, Span, Timeline
from simulator.play.event_queue import Scheduled, Task, critical_path, run_events
from simulator.play.host_contention import settle, shared_host
from simulator.play.left_open import left_open
from simulator.play.other_releases import other_releases
from simulator.uncertainty import by_rule_share, cluster_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from simulator.cost.call_cost import Cost
    from simulator.facts import Facts
    from simulator.plan.dataflow import Call
    from simulator.plan.plan import Plan


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


def play(
    flow: Dataflow,
    durations: Mapping[str, float],
    pool_of: Mapping[str, str],
    generation_pool: str | None = None,
    overlapped: bool = False,
    in_flight: bool = False,
) -> tuple[Scheduled, ...]:
    """Run the calls of a dataflow on the pools of their roles.

    With a generation pool the actor generates there and the weight transfer occupies both ends. ``overlapped`` is the
    steady state of a schedule that trains on samples of an earlier iteration: nothing waits for this iteration's
    generation, everything for the transfer that opens the iteration, and the next transfer waits for the slower side.
    So the period is the transfer plus the longer of generation and the rest. With ``in_flight`` updates generation goes
    on beside the transfer, and the period is the longer of generation and of transfer and rest.

    Parameters
    ----------
    flow
        The calls and what they wait for.
    durations
        Seconds by call key.
    pool_of
        Pool of each role, and of the controller.
    generation_pool
        Where the actor generates, if not on its own pool.
    overlapped
        Whether generation is one iteration ahead.
    in_flight
        Whether weights arrive while engines generate.

    Returns
    -------
    tuple[Scheduled, ...]
        One record per call, in call order.
    """
    index = {call.key: i for i, call in enumerate(flow.calls)}
    tasks = []
    for call in overlapped_calls(flow.calls, overlapped, in_flight):
        own = generation_pool if generation_pool and call.kind == "generate" else pool_of[call.role]
        also = generation_pool if call.kind == "transition" and not in_flight else None
        tasks.append(Task(call.key, own, durations[call.key], tuple(index[key] for key in call.inputs), also))
    return run_events(tasks)


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
    pools, engine = _pools_of(plan)
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
        spans=_spans(flow, records, calls, path, lambda call: _runs_on(call, pools, engine)),
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


def scheduled(plan: Plan, facts: Facts, alone_s: Mapping[str, float]) -> tuple[Scheduled, ...]:
    """When each call of a plan runs, given the seconds that it takes by itself.

    Calls are longer beside others where ranks share a host's cores.

    Parameters
    ----------
    plan
        What runs where.
    facts
        What is known of job, device and engines.
    alone_s
        Seconds by call key.

    Returns
    -------
    tuple[Scheduled, ...]
        One record per call, in call order.
    """
    pools, engine = _pools_of(plan)
    host = shared_host(facts)

    def played(durations: Mapping[str, float]) -> tuple[Scheduled, ...]:
        return play(facts.dataflow, durations, pools, engine, plan.schedule != "sync", plan.in_flight_updates)

    if host is None or plan.num_gpus < 2:
        return played(alone_s)
    sizes = {pool.name: pool.num_gpus for pool in plan.pools}
    calls = facts.dataflow.calls
    ranks = {call.key: 0 if is_controller(call) else sizes[_runs_on(call, pools, engine)] for call in calls}
    in_order = {call.key: alone_s[call.key] for call in calls}
    return played(settle(host, in_order, ranks, played, plan.num_gpus))


def _seconds(calls: Mapping[str, PricedCall]) -> dict[str, float]:
    return {key: float(call.time.s) for key, call in calls.items()}


def _end_s(records: Sequence[Scheduled]) -> float:
    return max(record.end_s for record in records)


def _pools_of(plan: Plan) -> tuple[dict[str, str], str | None]:
    """The pool of each role and of the controller, and that of the engines where it is a dedicated one."""
    pools = {entry.role: entry.pool for entry in plan.roles} | {CONTROLLER: CONTROLLER}
    return pools, next((entry.generation_pool for entry in plan.roles if entry.separate_generation), None)


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


def _runs_on(call: Call, pools: Mapping[str, str], engine: str | None) -> str:
    return engine if engine and call.kind == "generate" else pools[call.role]


def _scalar(cost: Cost) -> PricedCall:
    return PricedCall(cost.time, float(cost.compute.s), float(cost.comm.s))
