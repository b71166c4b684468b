"""Does it fit: the plan that needs least memory where none fits, the fewest GPUs, and single changes that make it fit.

Every candidate change is judged by ``feasibility.check_plan`` and nothing else, so what is said to fit does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mapper.deadline import NEVER, TimeUpError
from mapper.model.instance import make_instance
from mapper.objective import Objective
from mapper.price_families import with_memory
from mapper.search.find_plan import find_plan
from mapper.search.incumbent import greedy
from mapper.search.place import build_plan
from profiles.errors import InfeasibleError, InputError, NoBasisError
from simulator.cost.kv_budget import longest_bytes
from simulator.cost.role_layouts import layouts_of
from simulator.feasibility import check_plan
from simulator.plan.plan import TokenBudget
from simulator.play.simulate import simulate
from simulator.pool_memory import pool_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mapper.deadline import Deadline
    from mapper.request import SearchRequest
    from mapper.result import Result
    from simulator.facts import Facts
    from simulator.plan.plan import Plan, RolePlan

BISECTIONS = 6
"""Halvings, in the logarithm, of the factor of two between a memory that holds the job and one that does not: 1 %."""

MOST_MEMORY_BYTES = 2**50
"""A GPU of this size holds anything; a job that does not fit on it has another problem."""

ANY_TIME_S = 1e5
"""A target that every iteration meets: what is left to minimise are the GPUs."""

MOST_COMBINED = 6
"""Changes that are combined at most when none is enough alone."""


@dataclass(frozen=True)
class Remedy:
    """A change of a plan or of its job.

    Parameters
    ----------
    what
        The change, in words.
    plan, facts
        What they are with the change.
    over_bytes
        Per GPU of the pool that lacks most; 0 or less where it fits.
    iteration_s
        With the change; ``None`` while it does not fit.
    """

    what: str
    plan: Plan
    facts: Facts
    over_bytes: float
    iteration_s: float | None

    @property
    def fits(self) -> bool:
        """Whether the plan with this change can run."""
        return self.iteration_s is not None


def leanest_plan(
    request: SearchRequest, progress: Callable[[int, int], None] | None = None, deadline: Deadline = NEVER
) -> tuple[Plan, float] | None:
    """A plan that fits in the least memory per GPU (to 1 %), and that memory in bytes; ``None`` if there is none.

    When ``deadline`` is over the leanest so far is taken, or ``TimeUpError`` raised if there is none.

    Of the modes that ``request`` allows it is one of the first.
    """
    low, high, found = 0.0, float(request.facts.memory_capacity_bytes), None
    steps = 0
    while high <= MOST_MEMORY_BYTES:
        found = _plan_in(request, high, deadline)
        if found is None and deadline.is_over():
            raise TimeUpError
        steps += 1
        _tell(progress, steps, steps + BISECTIONS)
        if found is not None:
            break
        low, high = high, 2 * high
    if found is None:
        return None
    low = low or high / 2
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        plan = _plan_in(request, middle, deadline)
        if deadline.is_over():
            break
        steps += 1
        _tell(progress, steps, max(steps, BISECTIONS))
        low, high, found = (middle, high, found) if plan is None else (low, middle, plan)
    return found, high


def _tell(progress: Callable[[int, int], None] | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)


def _plan_in(request: SearchRequest, memory_bytes: float, deadline: Deadline) -> Plan | None:
    """A plan for GPUs of this much memory; prices stay, so what changes is only what fits."""
    factor = memory_bytes / request.facts.memory_capacity_bytes
    sized = replace(request, facts=with_memory(request.facts, lambda size: int(size * factor)))
    problem = sized.problem(sized.modes[0])
    instance = make_instance(problem, deadline=deadline)
    choice, _ = greedy(instance)
    return None if choice is None else build_plan(instance, choice, problem)


def fewest_gpus_plan(request: SearchRequest) -> Result | None:
    """The fastest plan on the fewest GPUs of the cluster that hold the job; ``None`` if all of them do not."""
    try:
        return find_plan(replace(request, objective=Objective("gpus", (), ANY_TIME_S), hint=None, runners_up=False))
    except InfeasibleError:
        return None


def over_bytes(plan: Plan, facts: Facts) -> float:
    """Bytes per GPU that the fullest pool lacks; negative where room is left."""
    peaks = [pool_memory(plan, pool, facts) for pool in plan.pools]
    return float(max(peak.used_bytes - peak.capacity_bytes for peak in peaks))


def remedies(plan: Plan, facts: Facts) -> tuple[Remedy, ...]:
    """Single changes that bring a plan which is too large nearer to fitting, those that do it fastest first.

    If none is enough alone, the last entry combines the best ones one after another until the plan fits, or as far as
    they go.
    """
    now = over_bytes(plan, facts)
    singles = [r for r in _single(plan, facts) if r.over_bytes < now]
    singles.sort(key=lambda r: (not r.fits, r.iteration_s if r.fits else r.over_bytes))
    if any(r.fits for r in singles) or not singles:
        return tuple(singles)
    return (*singles, _combined(singles[0], plan, facts))


def _combined(start: Remedy, plan: Plan, facts: Facts) -> Remedy:
    """The nearest step after the other; then every step that the fit does not need is taken back."""
    steps, best = [start.what], start
    while len(steps) < MOST_COMBINED and not best.fits:
        nearer = [r for r in _single(best.plan, best.facts) if r.over_bytes < best.over_bytes]
        if not nearer:
            break
        best = min(nearer, key=lambda r: (not r.fits, r.iteration_s if r.fits else r.over_bytes))
        steps.append(best.what)
    for step in tuple(steps):
        fewer = [other for other in steps if other != step]
        if best.fits and (without := _replayed(fewer, plan, facts)) is not None and without.fits:
            steps, best = fewer, without
    return replace(best, what="; ".join(steps))


def _replayed(steps: list[str], plan: Plan, facts: Facts) -> Remedy | None:
    """The same steps from the start; ``None`` if one of them cannot be taken any more."""
    done: Remedy | None = None
    for step in steps:
        done = next((r for r in _single(plan, facts) if r.what == step), None)
        if done is None:
            return None
        plan, facts = done.plan, done.facts
    return done


def _single(plan: Plan, facts: Facts) -> Iterator[Remedy]:
    """Every single change that leaves a plan whose only fault may be memory."""
    for what, changed, there in _changes(plan, facts):
        found = check_plan(changed, there)
        if any(violation.rule != "memory" for violation in found):
            continue
        try:
            time_s = None if found else simulate(changed, there).iteration_s
        except (InputError, NoBasisError):
            continue
        yield Remedy(what, changed, there, over_bytes(changed, there), time_s)


def _changes(plan: Plan, facts: Facts) -> Iterator[tuple[str, Plan, Facts]]:
    for entry in plan.roles:
        for what, changed in _entry_changes(entry, facts):
            roles = tuple(changed if each.role == entry.role else each for each in plan.roles)
            yield f"{entry.role}: {what}", plan.model_copy(update={"roles": roles}), facts
    if facts.implementation.loss_head != "fused":
        fused = replace(facts, implementation=replace(facts.implementation, loss_head="fused"))
        yield "implementation.loss_head: fused", plan, fused


def _entry_changes(entry: RolePlan, facts: Facts) -> Iterator[tuple[str, RolePlan]]:
    """Fewer tokens of a micro-batch, recomputation, higher TP, more ZeRO, offload, a smaller KV cache; one role."""
    train, score, engine = entry.training, entry.inference, entry.generation
    for stage, layout in (("training", train), ("scoring", score)):
        key, longest = "training" if stage == "training" else "inference", facts.workload.padded_length
        if layout is not None and layout.token_budget is not None and layout.token_budget > longest:
            tokens = max(layout.token_budget // 2, longest)
            fewer = layout.model_copy(update={"micro_batch": TokenBudget(tokens=tokens)})
            yield f"{stage} micro-batch of {tokens:,} tokens", _with(entry, {key: fewer})
        elif layout is not None and layout.token_budget is None and layout.micro_samples > 1:
            num = layout.micro_samples // 2
            fewer = layout.model_copy(update={"micro_batch": num})
            yield f"{stage} micro-batch {num} ({num * longest:,} tokens)", _with(entry, {key: fewer})
    if train is not None and train.recompute != "full":
        yield "recompute full", _with(entry, {"training": train.model_copy(update={"recompute": "full"})})
    weights = train or score
    if weights is not None and weights.dp % 2 == 0:
        yield f"tp {weights.tp * 2}", _both(entry, {"tp": weights.tp * 2, "dp": weights.dp // 2})
    if weights is not None:
        for zero in (stage for stage in facts.training.zero_stages if stage > weights.zero_stage):
            yield f"ZeRO stage {zero}", _both(entry, {"zero_stage": zero})
    states = ("optimizer", "parameters") if train is not None else ("parameters",)
    for i in range(len(states)):
        offload = tuple(sorted({*entry.offload, *states[: i + 1]}))
        if offload != tuple(sorted(entry.offload)) and "swap" not in entry.offload:
            yield f"offload {' and '.join(states[: i + 1])}", _with(entry, {"offload": offload})
    if engine is not None and engine.max_num_seqs > 1:
        yield _smaller_cache(entry, facts)


def _smaller_cache(entry: RolePlan, facts: Facts) -> tuple[str, RolePlan]:
    """Half the sequences in flight; the longest still fits, or ``check_plan`` says so."""
    engine = entry.generation
    assert engine is not None, f"{entry.role} generates"
    columns = layouts_of(entry).generation
    assert columns is not None, f"{entry.role} generates"
    longest = float(longest_bytes(facts, facts.roles[entry.role].shape, columns)[0])
    budget = max(math.ceil(longest), engine.kv_cache_bytes // 2)
    update = {"max_num_seqs": engine.max_num_seqs // 2, "kv_cache_bytes": budget}
    return (
        f"generation with {engine.max_num_seqs // 2} sequences in flight",
        _with(entry, {"generation": engine.model_copy(update=update)}),
    )


def _both(entry: RolePlan, update: dict[str, int]) -> RolePlan:
    """A trained role scores in the degrees that it trains in."""
    stages = {"training": entry.training, "inference": entry.inference}
    return _with(entry, {key: x.model_copy(update=update) for key, x in stages.items() if x is not None})


def _with(entry: RolePlan, update: dict[str, object]) -> RolePlan:
    return entry.model_copy(update=update)
