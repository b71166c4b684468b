"""What the HybridFlow paper observes about placements, asked of one job: each finding carries the numbers it rests on.

Generation in a smaller tensor-parallel degree than training (Fig 15), data-parallel traffic that grows with the GPUs
of a fixed batch (Fig 12), what sharing all GPUs saves and what separate pools overlap (Figs 12, 13), and which model
gets how many GPUs. A finding is left out where the job has nothing to show for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates.layouts import generation_layouts
from simulator.cost import pricing
from simulator.cost.role_layouts import RoleLayouts, layouts_of
from simulator.cost.role_memory import role_memory
from simulator.plan.layouts import Layouts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mapper.result import RunnerUp
    from profiles.records import Floats, Ints
    from simulator.facts import Facts
    from simulator.plan.plan import Plan, RolePlan
    from simulator.plan.timeline import Timeline

GROWTH = (1, 2, 4)
"""How many times the data-parallel degree is looked at; the global batch stays."""


@dataclass(frozen=True)
class Finding:
    """One observation: a sentence, and its numbers by name (seconds, fractions or GPUs)."""

    topic: str
    sentence: str
    numbers: Mapping[str, float]


def findings(facts: Facts, plan: Plan, timeline: Timeline, runners_up: Sequence[RunnerUp]) -> Iterator[Finding]:
    """Every finding that the job has numbers for."""
    actor = next((entry for entry in plan.roles if entry.generation is not None), None)
    if actor is not None and not actor.separate_generation:
        yield from _generation_degree(facts, plan, actor)
    yield from _data_parallel_traffic(facts, plan, timeline)
    yield from _other_placements(facts, plan, timeline, runners_up)
    if actor is not None:
        yield from _actor_gpus(plan, actor, runners_up)


def _generation_degree(facts: Facts, plan: Plan, actor: RolePlan) -> Iterator[Finding]:
    """Generation and transition in every tensor-parallel degree that fits, the training layout and pool as planned."""
    assert actor.generation is not None, "the actor generates"
    shape = facts.roles[actor.role].shape
    engines = generation_layouts(facts, shape, actor.generation.num_gpus)
    engines = engines.take(np.flatnonzero(engines.pp == actor.generation.pp))
    planned, num = layouts_of(actor), len(engines)
    weights = RoleLayouts(_repeated(planned.training, num), _repeated(planned.inference, num), engines)
    costs = pricing.role_costs(facts, actor.role, weights)
    kinds = {call.key: call.kind for call in facts.dataflow.calls_of(actor.role)}
    seconds: Floats = np.sum([c.time.s for k, c in costs.items() if kinds[k] in ("generate", "transition")], axis=0)
    fits = _fits_beside(facts, plan, actor.role, weights)
    best = {int(t): float(seconds[fits & (engines.tp == t)].min()) for t in np.unique(engines.tp[fits])}
    own, train = actor.generation.tp, actor.training.tp if actor.training is not None else 0
    if own not in best or len(best) < 2:
        return
    others = ", ".join(f"{s:,.1f} s on t{t}" for t, s in best.items() if t != own)
    missing = [int(t) for t in np.unique(engines.tp) if int(t) not in best]
    tail = f"; t{', t'.join(map(str, missing))} {'does' if len(missing) == 1 else 'do'} not fit" if missing else ""
    versus = "the tensor parallelism of training" if own == train else f"training has t{train}"
    sentence = f"generation with its transition takes {best[own]:,.1f} s on t{own} ({versus}), {others}{tail}"
    yield Finding("generation degree", sentence, {f"t{t}_s": s for t, s in best.items()} | {"planned": own})


def _repeated(layouts: Layouts | None, num: int) -> Layouts | None:
    return None if layouts is None else layouts.take(np.zeros(num, dtype=np.int64))


def _fits_beside(facts: Facts, plan: Plan, role: str, weights: RoleLayouts) -> Ints:
    """Whether each row fits on the role's pool beside the other roles as planned."""
    mine = role_memory(facts, role, weights)
    others = [
        role_memory(facts, other, layouts_of(plan.role(other), plan))
        for other in plan.pool_of(role).roles
        if other != role
    ]
    kept = sum(float(o.resident_bytes[0]) for o in others)
    beside = max((float(o.transient_bytes[0]) for o in others), default=0.0)
    whole = mine.resident_bytes + np.maximum(mine.transient_bytes, beside) + kept
    return np.asarray(whole <= facts.memory_room_bytes)


def _data_parallel_traffic(facts: Facts, plan: Plan, timeline: Timeline) -> Iterator[Finding]:
    """Share of the longest update that no compute hides, as the same batch is dealt over more data-parallel ranks."""
    updates = [span for span in timeline.spans if span.stage == "training" and span.role in facts.roles]
    if not updates:
        return
    span = max(updates, key=lambda s: s.duration_s)
    layout = plan.role(span.role).training
    assert layout is not None, "an updated role trains"
    degrees = [layout.dp * n for n in GROWTH if layout.dp * n <= facts.workload.minibatch_samples]
    if len(degrees) < 2:
        return
    call = facts.dataflow.calls[facts.dataflow.index(span.call)]
    rows = Layouts.of([layout.model_copy(update={"dp": dp}) for dp in degrees])
    cost = pricing.call_cost(facts, call, RoleLayouts(training=rows))
    shares, seconds = cost.exposed.s / cost.time.s, cost.time.s
    each = ", ".join(f"{100 * s:.0f} % of {t:,.1f} s on d{d}" for d, s, t in zip(degrees, shares, seconds, strict=True))
    sentence = f"communication that nothing hides in {span.call}, the batch fixed: {each}"
    numbers = {f"d{d}": float(s) for d, s in zip(degrees, shares, strict=True)}
    yield Finding("data-parallel traffic", sentence, numbers)


def _other_placements(
    facts: Facts, plan: Plan, timeline: Timeline, runners_up: Sequence[RunnerUp]
) -> Iterator[Finding]:
    """GPU time without work in the plan and in the best plan of each other placement, and where the time goes."""
    mine = _busy_share(plan, timeline)
    for other in runners_up:
        theirs = other.timeline_on(facts)
        slower = theirs.iteration_s - timeline.iteration_s
        busy = _busy_share(other.plan, theirs)
        change = {s: theirs.stages[s] - timeline.stages[s] for s in theirs.stages}
        worst = max(change, key=lambda s: change[s])
        gains = [f"{-v:,.1f} s less {s}" for s, v in change.items() if v < -0.05]
        sentence = (
            f"{other.placement} is {abs(slower):,.1f} s {'slower' if slower >= 0 else 'faster'}: its GPUs work "
            f"{100 * busy:.0f} % of the iteration, against {100 * mine:.0f} %; {change[worst]:+,.1f} s of {worst}"
            + (f", but {', '.join(gains)}" if gains else "")
        )
        numbers = {"slower_s": slower, "busy": busy, "planned_busy": mine}
        yield Finding("placement", sentence, numbers | {f"{s}_s": v for s, v in change.items()})


def _busy_share(plan: Plan, timeline: Timeline) -> float:
    """GPU-seconds with a call on the pool over GPU-seconds of the iteration, for the GPUs of the plan."""
    sizes = {pool.name: pool.num_gpus for pool in plan.pools}
    busy = sum(span.duration_s * sizes[span.pool] for span in timeline.spans if span.pool in sizes)
    return busy / (timeline.iteration_s * plan.num_gpus)


def _actor_gpus(plan: Plan, actor: RolePlan, runners_up: Sequence[RunnerUp]) -> Iterator[Finding]:
    """The actor's pool in the first plan that has more than one: the paper's actor gets the most."""
    for title, one in (("the plan", plan), *((f"the best {r.placement}", r.plan) for r in runners_up)):
        own = one.pool_of(actor.role)
        rest = {" ".join(one.members(pool)): pool.num_gpus for pool in one.pools if pool.name != own.name}
        if not rest:
            continue
        others = ", ".join(f"{n} to {roles.replace(' ', ', ')}" for roles, n in rest.items())
        sentence = f"{title} gives {own.num_gpus} GPUs to {', '.join(one.members(own))}, {others}"
        yield Finding("actor's GPUs", sentence, {"actor": own.num_gpus} | {k: float(v) for k, v in rest.items()})
        return
