"""The schedule that verl runs of a plan's: in its main program, or in one whose loop it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.exports.follow import keeps_samples
from hybridmap.exports.verl.places import home, own_pools
from hybridmap.exports.verl.programs import FULLY_ASYNC, MAIN, program_for
from profiles.errors import InputError
from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from hybridmap.exports.export import Points, Source


def scheduled(source: Source, out: Points) -> Source:
    """The plan in a schedule that verl runs; ``InputError`` for a reward model that finds no GPUs."""
    plan = source.plan
    if plan.resharding != "hybridflow":
        out.cannot("resharding", f"the plan reshards as {plan.resharding}; verl has one way, tensor by tensor")
        source = source.with_plan(resharding="hybridflow")
    if not source.actor.separate_generation:
        if len(plan.pools) > 1 and not own_pools(source):
            out.cannot("schedule", "verl's step is serial: calls of different pools do not run at the same time")
        return source
    if source.has("reward") and plan.pool_of("reward") == home(source):
        raise InputError(
            "verl asks for GPUs of its own for a reward model where generation has its own; pin: {share: {forbid: "
            "[[actor, reward]]}}"
        )
    return _apart(source, out)


def _apart(source: Source, out: Points) -> Source:
    plan = source.plan
    why = _refuses(source)
    if program_for(plan) is not MAIN and why is None:
        if plan.schedule == "one-step-off" and plan.in_flight_updates:
            out.cannot("schedule", "verl's one-step-off program updates weights between batches, not in flight")
            return source.with_plan(in_flight_updates=False)
        return source
    if plan.schedule != "async" or not plan.in_flight_updates:
        program = "" if why is None else f"; {program_for(plan).module} {why}"
        out.cannot(
            "schedule",
            f"the plan is {plan.schedule}; verl with its own rollout GPUs never stops generating and always trains on "
            f"samples of an earlier iteration{program}",
        )
    steps = plan.steps_in_flight if plan.schedule == "async" else 1
    return source.with_plan(schedule="async", steps_in_flight=steps, in_flight_updates=True)


def _refuses(source: Source) -> str | None:
    """What the program of a plan's schedule lacks for the rest of it; ``None`` where it runs it."""
    program, work = program_for(source.plan), source.facts.workload
    if source.has("reward"):  # experimental/separation/utils.py:86 has no worker for one
        return "serves no reward model"
    if own_pools(source):
        return "has one pool for actor, critic and reference"
    if ALGORITHMS[source.facts.algorithm].greedy_baseline:  # one_step_off_policy/ray_trainer.py:206 generates none
        return "generates no greedy baseline"
    training = source.actor.training
    if program is FULLY_ASYNC:
        if training is not None and keeps_samples(source) and source.tokens_of(training) is None:
            return "takes micro-batches of tokens alone (verl/workers/config/actor.py:225)"
        if source.minibatch_prompts * work.minibatches != work.prompts:
            return "takes equal mini-batches"
    return None
