"""What a call costs and what a role needs in memory: the one place, asked by the mapper and by ``simulate``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Floats, Priced
from profiles.units import DTYPE_BYTES
from simulator.cost import generate, memory, reshard, score, scoring_copy, train
from simulator.cost.call_cost import Cost
from simulator.plan.dataflow import CONTROLLER, Call
from simulator.plan.layouts import GenerationLayouts, Layouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiles.models.shape import Head
    from profiles.records import Ints
    from simulator.facts import Facts
    from simulator.plan.plan import Offload, Resharding

BYTES_PER_TOKEN_MOVED = 40.0
"""Fields of a sample that pass between models: token ids and mask (8 + 8), log-probs of policy and reference,
values, rewards, advantages and returns (4 each)."""


@dataclass(frozen=True, eq=False)
class RoleLayouts:
    """Candidate layouts of one role, by column; each present one has the same length ``C``.

    ``training`` is there for a trained role, ``inference`` for one that scores, ``generation`` for the actor.
    ``separate_generation``: it generates on a pool of its own; ``steady_steps`` iterations of samples are in its
    engines at any time, or ``None`` where each generation ends before the next begins; ``offload``: what waits in
    host memory while another call has the GPUs.
    """

    training: Layouts | None = None
    inference: Layouts | None = None
    generation: GenerationLayouts | None = None
    separate_generation: bool = False
    steady_steps: int | None = None
    offload: tuple[Offload, ...] = ()

    def take(self, index: Ints) -> RoleLayouts:
        """The candidates at ``index``, in that order.

        Parameters
        ----------
        index
            Positions, ``[K]``.

        Returns
        -------
        RoleLayouts
            The candidates there, ``[K]``.
        """
        return replace(
            self,
            training=None if self.training is None else self.training.take(index),
            inference=None if self.inference is None else self.inference.take(index),
            generation=None if self.generation is None else self.generation.take(index),
        )

    @staticmethod
    def joined(parts: Sequence[RoleLayouts]) -> RoleLayouts:
        """Several candidate lists of one role after each other.

        Parameters
        ----------
        parts
            Lists of candidates of one role, all with the same stages and the same of the rest.

        Returns
        -------
        RoleLayouts
            One list.
        """
        first = parts[0]
        return replace(
            first,
            training=None
            if first.training is None
            else Layouts.joined([p.training for p in parts if p.training is not None]),
            inference=None
            if first.inference is None
            else Layouts.joined([p.inference for p in parts if p.inference is not None]),
            generation=None
            if first.generation is None
            else GenerationLayouts.joined([p.generation for p in parts if p.generation is not None]),
        )

    @property
    def weights(self) -> Layouts:
        """The layout that the role's weights rest in."""
        layouts = self.training if self.training is not None else self.inference
        assert layouts is not None, "every role trains or scores"
        return layouts


@dataclass(frozen=True, eq=False)
class RoleMemory:
    """Bytes per GPU by class: ``resident`` always, ``transient`` per call key while it runs; each array ``[C]``."""

    resident: dict[str, Floats]
    transient: dict[str, dict[str, Floats]]

    @property
    def resident_bytes(self) -> Floats:
        return memory.total(self.resident)

    @property
    def transient_bytes(self) -> Floats:
        """The largest transient need over the role's calls."""
        return np.asarray(np.max([memory.total(c) for c in self.transient.values()], axis=0), dtype=np.float64)


def head_of(role: str) -> Head:
    """Actor and reference end in the vocabulary head, the other models in one scalar per token.

    Parameters
    ----------
    role
        Name in the dataflow.

    Returns
    -------
    Head
        ``lm`` or ``scalar``.
    """
    return "lm" if role in ("actor", "reference") else "scalar"


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
    facts
        What is known of job, device and engines.
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

    Parameters
    ----------
    facts
        What is known of job, device and engines.
    call
        Of the dataflow.
    cost
        Of its work alone, ``[C]``.
    num_gpus
        That it runs on, ``[C]`` or one number.

    Returns
    -------
    Cost
        Seconds with dispatch, times the calibration's factor, ``[C]``.
    """
    others = num_gpus - 1.0  # ranks start one after the other
    dispatch = Cost.of_compute(facts.training.priced(dispatch_s=1.0, start_skew_s=others))
    return (cost + dispatch) * facts.correction(call.api)


def call_of_kind(facts: Facts, kind: str) -> Call:
    """The first call of a kind; calls of one kind and role have one price.

    Parameters
    ----------
    facts
        What is known of job, device and engines.
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
        cost = score.inference_cost(facts, spec.shape, head, layouts.inference, spec.precision)
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
        return reshard.weight_sync_cost(facts, spec.shape, senders, engine, spec.precision, there)
    return reshard.transition_cost(facts, spec.shape, layouts.weights, engine, spec.precision, method)


def host_traffic(facts: Facts, call: Call, layouts: RoleLayouts) -> Cost:
    """Copies of offloaded states between GPU and host memory, charged to the call that needs the room or the states.

    A role that generates on the same GPUs makes room for its engine and comes back after it: everything goes out
    and in again once, in the transition. Any other role fetches its parameters for a forward pass, and parameters
    and optimizer for training, and puts the trained ones back. Nothing overlaps; gradients are not kept.

    Parameters
    ----------
    facts
        What is known of job, device and engines.
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
    Bytes over the engine's offload rate, which is fitted; trainers that copy beside compute are faster.
    """
    if not layouts.offload:
        return Cost.of_compute(Priced.zero((len(layouts.weights),)))
    spec, trained = facts.roles[call.role], facts.dataflow.is_trained(call.role)
    states = memory.resident_bytes(facts, spec.shape, head_of(call.role), layouts.weights, trained)
    swaps_for_engine = facts.dataflow.generates(call.role) and not layouts.separate_generation
    if swaps_for_engine:
        times = {"transition": {"parameters": 2, "optimizer": 2}}
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

    ``compute_advantage`` carries the passing of every sample's fields through the network once. A function reward
    takes its stated time per sample on one CPU worker per GPU, since a job does not state its CPU workers.

    Parameters
    ----------
    facts
        What is known of job, device and engines.
    call
        One that the controller runs itself.

    Returns
    -------
    Cost
        Seconds, a scalar.
    """
    work = facts.workload
    dispatch = Cost.of_compute(facts.training.priced(dispatch_s=1.0))
    if call.key == "compute_reward":
        workers = facts.num_gpus if facts.device.spec.kind == "gpu" else 1
        seconds = work.reward_s_per_sample * work.num_samples / workers
        return Cost.of_compute(Priced.of(seconds, Basis.ASSUMED)) + dispatch
    groups = (facts.group, *(kind.group for kind in facts.others))
    rate = sum(group.inter_node_bytes_per_s * group.nodes for group in groups)
    moved = work.tokens * BYTES_PER_TOKEN_MOVED / rate
    return Cost.serial(Priced.zero(), Priced.of(moved, Basis.ANALYTIC)) + dispatch


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
    facts
        What is known of job, device and engines.
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
    for call in _calls_of(facts, role, layouts):
        kind = (call.api, call.kind)
        if kind not in by_api:
            by_api[kind] = call_cost(facts, call, layouts, resharding_method, engine_facts)
        costs[call.key] = by_api[kind]
    return costs


def role_memory(
    facts: Facts, role: str, layouts: RoleLayouts, resharding_method: Resharding = "hybridflow"
) -> RoleMemory:
    """Resident and transient memory of a role for every candidate.

    Parameters
    ----------
    facts
        What is known of job, device and engines.
    role
        Name in the dataflow.
    layouts
        Of the role, ``[C]``.
    resharding_method
        How a transition gathers.

    Returns
    -------
    RoleMemory
        Bytes by class, ``[C]`` each.
    """
    spec, head, flow = facts.roles[role], head_of(role), facts.dataflow
    resident = memory.resident_bytes(facts, spec.shape, head, layouts.weights, flow.is_trained(role))
    transient: dict[str, dict[str, Floats]] = {}
    for call in _calls_of(facts, role, layouts):
        if call.kind == "train":
            assert layouts.training is not None, f"{call.key} needs a training layout"
            transient[call.key] = memory.training_bytes(facts, spec.shape, layouts.training, head == "lm")
        elif call.kind == "forward":
            assert layouts.inference is not None, f"{call.key} needs an inference layout"
            transient[call.key] = memory.inference_bytes(facts, spec.shape, layouts.inference, head == "lm")
            if layouts.training is not None and np.any(own := scoring_copy.apart(layouts.training, layouts.inference)):
                copy = scoring_copy.copy_bytes(facts, spec.shape, head, layouts.inference, transient[call.key])
                transient[call.key] |= {name: np.where(own, size, 0.0) for name, size in copy.items()}
        elif call.kind == "generate":
            transient[call.key] = _generation_memory(facts, role, layouts)
        elif resharding_method == "hybridflow":
            transient[call.key] = _conversion_memory(facts, role, layouts)
        else:  # Table 2: these gather the whole model on each GPU
            whole: float | Floats = reshard.transition_peak_bytes(
                resharding_method, spec.shape.num_params * DTYPE_BYTES[spec.precision], 1, 1
            )
            if facts.generation.gather_s_per_layer_per_gpu:  # layer by layer: the shard so far and one whole layer
                whole = whole / spec.shape.num_layers + _shard_bytes(facts, role, layouts)
            transient[call.key] = {"gathered weights": whole + np.zeros(len(layouts.weights))}
    calls = _calls_of(facts, role, layouts)
    return _with_offload(calls, RoleMemory(resident, transient), layouts, flow.is_trained(role))


def _calls_of(facts: Facts, role: str, layouts: RoleLayouts) -> tuple[Call, ...]:
    """The calls of a role that run in these layouts: without a generation layout, all but generation and transition."""
    calls = facts.dataflow.calls_of(role)
    engine = ("generate", "transition")
    return calls if layouts.generation is not None else tuple(c for c in calls if c.kind not in engine)


def _conversion_memory(facts: Facts, role: str, layouts: RoleLayouts) -> dict[str, Floats]:
    """The transition: both shards and the conversion bucket, before there is a KV cache."""
    assert layouts.generation is not None, f"{role} generates"
    spec, engine, apart = facts.roles[role], layouts.generation, layouts.separate_generation
    weights = _shard_bytes(facts, role, layouts)
    if apart:
        bucket = reshard.receiving_bucket_bytes(spec.shape, engine, spec.precision)
        return {"generation weights": weights, "conversion bucket": bucket}
    bucket = reshard.conversion_bucket_bytes(facts, spec.shape, layouts.weights, engine, spec.precision)
    shared = reshard.shares_weights(facts, layouts.weights, engine)
    return {"generation weights": np.where(shared, 0.0, weights), "conversion bucket": bucket}


def _shard_bytes(facts: Facts, role: str, layouts: RoleLayouts) -> Floats:
    """Bytes of the generation weights on one GPU."""
    assert layouts.generation is not None, f"{role} generates"
    spec = facts.roles[role]
    return memory.generation_weight_bytes(spec.shape, layouts.generation, DTYPE_BYTES[spec.precision])


def _with_offload(calls: tuple[Call, ...], needs: RoleMemory, layouts: RoleLayouts, trained: bool) -> RoleMemory:
    """Offloaded states are on the GPU only while a call that uses them runs; gradients only in training.

    A frozen role that swaps takes the place of states that are counted already.
    """
    if not layouts.offload:
        return needs
    if "swap" in layouts.offload and not trained:
        return RoleMemory({}, needs.transient)
    moved = {name for name in (*layouts.offload, "gradients") if name in needs.resident}
    used = {"train": moved, "forward": moved & {"parameters"}, "generate": set(), "transition": moved & {"parameters"}}
    transient = {
        call.key: needs.transient.get(call.key, {}) | {name: needs.resident[name] for name in used[call.kind]}
        for call in calls
    }
    kept = {name: size for name, size in needs.resident.items() if name not in moved}
    return RoleMemory(kept, {key: classes for key, classes in transient.items() if classes})


def _generation_memory(facts: Facts, role: str, layouts: RoleLayouts) -> dict[str, Floats]:
    """Engine memory; the weights need no second copy where the engine runs from the training buffers."""
    spec, layout = facts.roles[role], layouts.generation
    assert layout is not None, f"{role} generates"
    classes = generate.generation_bytes(facts, spec.shape, layout, spec.precision, layouts.steady_steps)
    away = layouts.separate_generation or "parameters" in layouts.offload
    shared = reshard.shares_weights(facts, layouts.weights, layout) & (not away)
    classes["generation weights"] = np.where(shared, 0.0, classes["generation weights"])
    return classes


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
