"""What a call costs and what a role needs in memory: the one place, asked by the mapper and by ``simulate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Priced
from simulator.cost import generate, memory, reshard, score, scoring_copy, train
from simulator.cost.call_cost import Cost
from simulator.cost.role_layouts import RoleLayouts, calls_of, head_of
from simulator.cost.weight_sync import weight_sync_cost
from simulator.plan.dataflow import CONTROLLER, Call

if TYPE_CHECKING:
    from profiles.records import Ints
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts
    from simulator.plan.plan import Resharding

BYTES_PER_TOKEN_MOVED = 40.0
"""Fields of a sample that pass between models: token ids and mask (8 + 8), log-probs of policy and reference,
values, rewards, advantages and returns (4 each)."""


def call_cost(
    facts: Facts,
    call: Call,
    layouts: RoleLayouts,
    resharding_method: Resharding = "hybridflow",
    engine_facts: Facts | None = None,
) -> Cost:
    """Cost of one call for every candidate.

    Parameters
    ----------
    call
        Of the dataflow.
    layouts
        Of the call's role, ``[C]``.
    resharding_method
        How a transition gathers.
    engine_facts
        As in ``role_costs``.

    Returns
    -------
    Cost
        Seconds, ``[C]``.

    Raises
    ------
    NoBasisError
        The device has no table of an operator.
    """
    cost = _engine_cost(facts, call, layouts, resharding_method, engine_facts)
    runs = layouts.generation if call.kind == "generate" else layouts.weights
    assert runs is not None, f"{call.key} needs a generation layout"
    return as_called(facts, call, cost, runs.num_gpus)


def as_called(facts: Facts, call: Call, cost: Cost, num_gpus: Ints | int) -> Cost:
    """``cost`` of a call with what comes before it on so many GPUs, as runs on this machine were calibrated.

    The controller's dispatch is no part of a call's measured span, so no factor learned from spans applies to it.

    Parameters
    ----------
    call
        Of the dataflow.
    cost
        Of its work alone, ``[C]``.
    num_gpus
        That it runs on, ``[C]`` or one number.

    Returns
    -------
    Cost
        Seconds times the calibration's factor, what it says each sample takes beside, and dispatch, ``[C]``.
    """
    others = num_gpus - 1.0
    runs = facts.generation if call.kind == "generate" else facts.training
    further = Cost.of_compute(runs.priced(call_rank_s=others))
    beside_s = facts.calibration.seconds_per_sample.get(call.api, 0.0) * facts.workload.num_samples
    dispatch = Cost.of_compute(facts.training.priced(dispatch_s=1.0, dispatch_pool_rank_s=others))
    whole = (cost + further) * facts.correction(call.api, call.role) + dispatch
    return whole + Cost.of_compute(Priced.of(beside_s, Basis.MEASURED)) if beside_s else whole


def call_of_kind(facts: Facts, kind: str) -> Call:
    """The first call of a kind; calls of one kind and role have one price.

    Parameters
    ----------
    kind
        ``generate``, ``transition``, ``forward`` or ``train``.

    Returns
    -------
    Call
        A call.
    """
    return next(call for call in facts.dataflow.calls if call.kind == kind)


def _engine_cost(
    facts: Facts, call: Call, layouts: RoleLayouts, resharding_method: Resharding, engine_facts: Facts | None
) -> Cost:
    there = engine_facts or facts
    spec = facts.roles[call.role]
    head = head_of(call.role)
    if spec.function_s_per_sample is not None and call.kind == "forward":
        samples = np.ceil(facts.workload.num_samples / layouts.weights.dp)
        return Cost.of_compute(Priced.of(samples * spec.function_s_per_sample, Basis.MEASURED))
    if call.kind == "train":
        assert layouts.training is not None, f"{call.key} needs a training layout"
        rows = 2 if call.role == "actor" and facts.workload.pretrain_update else 1
        cost = train.training_cost(facts, spec.shape, head, layouts.training, rows)
    elif call.kind == "forward":
        assert layouts.inference is not None, f"{call.key} needs an inference layout"
        # A role that is trained scores with the trainer's weights; the number format is that of its engine.
        dtype = spec.precision if layouts.training is None else facts.implementation.training_dtype
        cost = score.inference_cost(facts, spec.shape, head, layouts.inference, dtype)
        if layouts.training is not None:
            gathered = scoring_copy.gather_time(facts, spec.shape, layouts.training, layouts.inference)
            cost = cost + Cost.serial(Priced.zero(gathered.shape), gathered)
    else:
        assert layouts.generation is not None, f"{call.key} needs a generation layout"
        if call.kind == "transition":
            cost = _transition(facts, there, call.role, layouts, layouts.generation, resharding_method)
        elif layouts.steady_steps is None:
            return generate.generation_cost(there, spec.shape, layouts.generation, spec.precision)
        else:
            steps = layouts.steady_steps
            return generate.steady_generation_cost(there, spec.shape, layouts.generation, spec.precision, steps)
    return cost + host_traffic(facts, call, layouts)


def _transition(
    facts: Facts, there: Facts, role: str, layouts: RoleLayouts, engine: GenerationLayouts, method: Resharding
) -> Cost:
    """New weights to the engine: resharding on the same GPUs, or a transfer to the generation pool."""
    spec = facts.roles[role]
    if layouts.separate_generation:
        senders = layouts.weights.num_gpus
        return weight_sync_cost(facts, spec.shape, senders, engine, spec.precision, there)
    return reshard.transition_cost(facts, spec.shape, layouts.weights, engine, spec.precision, method)


def host_traffic(facts: Facts, call: Call, layouts: RoleLayouts) -> Cost:
    """Copies of offloaded states between GPU and host memory, charged to the call that needs the room or the states.

    A role that generates on the same GPUs makes room for its engine and comes back after it: everything goes out in
    the transition and comes in again for training. Any other role fetches its parameters for a forward pass, and
    parameters and optimizer for training, and puts the trained ones back. Nothing overlaps; gradients are not kept.

    Parameters
    ----------
    call
        Of the dataflow.
    layouts
        Of the call's role, ``[C]``.

    Returns
    -------
    Cost
        Seconds, ``[C]``.

    Notes
    -----
    Bytes over the engine's offload rate, which is assumed; trainers that copy beside compute are faster.
    """
    if not layouts.offload:
        return Cost.of_compute(Priced.zero((len(layouts.weights),)))
    spec, trained = facts.roles[call.role], facts.dataflow.is_trained(call.role)
    states = memory.resident_bytes(facts, spec.shape, head_of(call.role), layouts.weights, trained)
    swaps_for_engine = facts.dataflow.generates(call.role) and not layouts.separate_generation
    if swaps_for_engine:
        times = {"transition": {"parameters": 1, "optimizer": 1}, "train": {"parameters": 1, "optimizer": 1}}
    else:
        fetched = 2 if "swap" in layouts.offload else 1  # what made room comes back
        times = {"forward": {"parameters": fetched}, "train": {"parameters": 2, "optimizer": 2}}
    away = ("parameters", *layouts.offload) if "swap" in layouts.offload else layouts.offload
    moved = [states[c] * n for c, n in times.get(call.kind, {}).items() if c in away and c in states]
    total = np.asarray(sum(moved, np.zeros(len(layouts.weights))), dtype=np.float64)
    seconds = total / facts.training.offload_bytes_per_s
    return Cost.serial(Priced.zero(total.shape), Priced.of(seconds, facts.training.basis("offload_bytes_per_s")))


def controller_cost(facts: Facts, call: Call) -> Cost:
    """Cost of what the controller does itself, a scalar: it does not depend on the placement.

    ``compute_advantage`` carries the passing of every sample's fields through the network once, what the controller
    does with them, and what lies before the first call of an iteration and after its last. A function reward takes
    its stated time per sample on one CPU worker per GPU, since a job does not state its CPU workers. Where a
    calibration has measured them, those seconds hold, in proportion to the samples.

    Parameters
    ----------
    call
        One that the controller runs itself.

    Returns
    -------
    Cost
        Seconds, a scalar.
    """
    work = facts.workload
    dispatch = Cost.of_compute(facts.training.priced(dispatch_s=1.0))
    measured_s = facts.calibration.seconds_per_sample.get(call.key)
    if measured_s is not None:
        return Cost.of_compute(Priced.of(measured_s * work.num_samples, Basis.MEASURED))
    if call.api == "compute_reward":
        workers = facts.num_gpus if facts.device.spec.kind == "gpu" else 1
        seconds = work.reward_s_per_sample * work.num_samples / workers
        return Cost.of_compute(Priced.of(seconds, Basis.ASSUMED)) + dispatch
    groups = (facts.group, *(other.group for other in facts.others))
    rate = sum(group.inter_node_bytes_per_s * group.nodes for group in groups)
    moved = work.tokens * BYTES_PER_TOKEN_MOVED / rate
    engine = facts.training
    handled_s = engine.controller_s_per_token * work.tokens
    handled = Cost.of_compute(Priced.of(handled_s, engine.basis("controller_s_per_token")))
    around = Cost.of_compute(
        engine.priced(dispatch_iteration_s=1.0, dispatch_iteration_s_per_sample=float(work.num_samples))
    )
    return Cost.serial(Priced.zero(), Priced.of(moved, Basis.ANALYTIC)) + handled + dispatch + around


def role_costs(
    facts: Facts,
    role: str,
    layouts: RoleLayouts,
    resharding_method: Resharding = "hybridflow",
    engine_facts: Facts | None = None,
) -> dict[str, Cost]:
    """Cost of each call of a role by call key; a call made twice (ReMax) is priced once.

    Parameters
    ----------
    role
        Name in the dataflow.
    layouts
        Of the role, ``[C]``.
    resharding_method
        How a transition gathers.
    engine_facts
        The job seen from the GPUs that generate, where those are of another type.

    Returns
    -------
    dict[str, Cost]
        Seconds by call key, ``[C]`` each.

    Raises
    ------
    NoBasisError
        The device has no table of an operator.
    """
    costs: dict[str, Cost] = {}
    by_api: dict[tuple[str, str], Cost] = {}
    for call in calls_of(facts, role, layouts):
        kind = (call.api, call.kind)
        if kind not in by_api:
            by_api[kind] = call_cost(facts, call, layouts, resharding_method, engine_facts)
        costs[call.key] = by_api[kind]
    return costs


def is_controller(call: Call) -> bool:
    """Whether the controller runs the call itself, on no pool.

    Parameters
    ----------
    call
        Of the dataflow.

    Returns
    -------
    bool
        Whether its role is the controller.
    """
    return call.role == CONTROLLER
