"""When each call of an iteration runs: on its pool, after its inputs, beside what else its host computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.cost.pricing import is_controller
from simulator.plan.dataflow import CONTROLLER, overlapped_calls
from simulator.play.event_queue import Task, run_events
from simulator.play.host_contention import settle, shared_host
from simulator.play.stragglers import with_stragglers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simulator.facts import Facts
    from simulator.plan.dataflow import Call, Dataflow
    from simulator.plan.plan import Plan
    from simulator.play.event_queue import Scheduled


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
    return run_events(_tasks(flow, durations, pool_of, generation_pool, overlapped, in_flight))


def scheduled(plan: Plan, facts: Facts, alone_s: Mapping[str, float]) -> tuple[Scheduled, ...]:
    """When each call of a plan runs, given the seconds that it takes by itself.

    Where ranks share a host's cores, calls are longer beside others, and of several that a call waits for the last is
    longer than it is on average.

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
    return in_company(plan, facts, beside_others(plan, facts, alone_s))


def in_company(plan: Plan, facts: Facts, durations: Mapping[str, float]) -> tuple[Scheduled, ...]:
    """When each call of a plan runs, given the seconds that it takes among the calls that it meets.

    Parameters
    ----------
    plan
        What runs where.
    facts
        What is known of job, device and engines.
    durations
        Seconds by call key, on average.

    Returns
    -------
    tuple[Scheduled, ...]
        One record per call, in call order.
    """
    tasks, host = _tasks_of(plan, facts, durations), shared_host(facts)
    if host is not None:
        ranks = _ranks(plan, facts)
        tasks = with_stragglers(tasks, [host.spread if ranks[task.name] else 0.0 for task in tasks])
    return run_events(tasks)


def beside_others(plan: Plan, facts: Facts, alone_s: Mapping[str, float]) -> Mapping[str, float]:
    """Seconds of every call on average, among the calls that it meets.

    What further ranks of the host add lies between two calls, so none of it before those that begin an iteration.

    Parameters
    ----------
    plan
        What runs where.
    facts
        What is known of job, device and engines.
    alone_s
        Seconds by call key, of each call by itself.

    Returns
    -------
    Mapping[str, float]
        Seconds by call key.
    """
    host = shared_host(facts)
    if host is None or plan.num_gpus < 2:
        return alone_s
    in_order = {call.key: alone_s[call.key] for call in facts.dataflow.calls}
    found = settle(host, in_order, _ranks(plan, facts), lambda s: run_events(_tasks_of(plan, facts, s)))
    more_s = host.further_rank_s * (plan.num_gpus - 1)
    return {call.key: found[call.key] + (more_s if call.inputs else 0.0) for call in facts.dataflow.calls}


def pools_of(plan: Plan) -> tuple[dict[str, str], str | None]:
    """Which pool each role has.

    Parameters
    ----------
    plan
        What runs where.

    Returns
    -------
    tuple[dict[str, str], str | None]
        The pool of each role and of the controller, and that of the engines where it is a dedicated one.
    """
    pools = {entry.role: entry.pool for entry in plan.roles} | {CONTROLLER: CONTROLLER}
    return pools, next((entry.generation_pool for entry in plan.roles if entry.separate_generation), None)


def runs_on(call: Call, pools: Mapping[str, str], engine: str | None) -> str:
    """The pool of a call.

    Parameters
    ----------
    call
        Of the dataflow.
    pools, engine
        As of ``pools_of``.

    Returns
    -------
    str
        Its name.
    """
    return engine if engine and call.kind == "generate" else pools[call.role]


def _ranks(plan: Plan, facts: Facts) -> dict[str, int]:
    """On how many ranks each call runs; the controller's on none."""
    sizes, (pools, engine) = {pool.name: pool.num_gpus for pool in plan.pools}, pools_of(plan)
    return {
        call.key: 0 if is_controller(call) else sizes[runs_on(call, pools, engine)] for call in facts.dataflow.calls
    }


def _tasks_of(plan: Plan, facts: Facts, durations: Mapping[str, float]) -> list[Task]:
    pools, engine = pools_of(plan)
    return _tasks(facts.dataflow, durations, pools, engine, plan.schedule != "sync", plan.in_flight_updates)


def _tasks(
    flow: Dataflow,
    durations: Mapping[str, float],
    pool_of: Mapping[str, str],
    generation_pool: str | None,
    overlapped: bool,
    in_flight: bool,
) -> list[Task]:
    index = {call.key: i for i, call in enumerate(flow.calls)}
    tasks = []
    for call in overlapped_calls(flow.calls, overlapped, in_flight):
        own = runs_on(call, pool_of, generation_pool)
        also = generation_pool if call.kind == "transition" and not in_flight else None
        tasks.append(Task(call.key, own, durations[call.key], tuple(index[key] for key in call.inputs), also))
    return tasks
