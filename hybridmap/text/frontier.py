"""What changes from one plan to a larger one, and what of a frontier is proven, in a few words."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from hybridmap.text.notation import about
from mapper.result import OPTIMAL_GAP
from simulator.plan.plan import TokenBudget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mapper.analysis.frontier import FrontierPoint
    from simulator.facts import Facts
    from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, RolePlan

LETTERS = {
    "tp": "t",
    "pp": "p",
    "cp": "c",
    "ep": "e",
    "attention_dp": "a",
    "zero_stage": "z",
    "micro_batch": "mb",
    "recompute": "recompute ",
    "max_num_seqs": "seqs ",
}
"""Degrees whose change is told; the data-parallel one follows from the GPUs."""

MOST_CHANGES = 4

MOST_PLOT = 100
"""Columns of a plot in a terminal."""


def changes(before: Plan, after: Plan) -> str:
    """``actor 8 -> 16 GPUs; actor training t2 -> t1``: pools first, then layouts; the first few."""
    found = [*_pools(before, after), *chain.from_iterable(_layouts(before, after, e.role) for e in after.roles)]
    more = [f"and {len(found) - MOST_CHANGES} more"] if len(found) > MOST_CHANGES else []
    return "; ".join([*found[:MOST_CHANGES], *more])


def budget_notes(facts: Facts) -> list[str]:
    """What does not shrink with the GPUs of a plan, though it would with the cluster."""
    work = facts.workload
    if "reward" in facts.roles or not work.reward_s_per_sample:
        return []
    return [f"on fewer GPUs too, the reward function is priced on the CPU workers of all {facts.num_gpus:,}"]


def _pools(before: Plan, after: Plan) -> list[str]:
    sizes, now = (
        {(frozenset(plan.members(pool)), pool.device): pool.num_gpus for pool in plan.pools} for plan in (before, after)
    )
    if set(sizes) != set(now):
        return ["regrouped"]
    if len(now) == 1:
        return []  # its size is the number of GPUs
    return [
        f"{', '.join(after.members(pool))} {sizes[key]:,} -> {pool.num_gpus:,} GPUs"
        for pool in after.pools
        if sizes[key := (frozenset(after.members(pool)), pool.device)] != pool.num_gpus
    ]


def _layouts(before: Plan, after: Plan, role: str) -> list[str]:
    old, new = before.role(role), after.role(role)
    out = []
    for stage, name in (("training", "training"), ("generation", "generation"), ("inference", "scoring")):
        told = _degrees(_layout(old, stage), _layout(new, stage))
        if told:
            out.append(f"{role} {name} {', '.join(told)}")
    return out


def _layout(entry: RolePlan, stage: str) -> ParallelLayout | GenerationLayout | None:
    layout: ParallelLayout | GenerationLayout | None = getattr(entry, stage)
    return layout


def _degrees(old: ParallelLayout | GenerationLayout | None, new: ParallelLayout | GenerationLayout | None) -> list[str]:
    if old is None or new is None:
        return []
    pairs = {key: (getattr(old, key, None), getattr(new, key, None)) for key in LETTERS}
    return [f"{LETTERS[key]}{_value(a)} -> {_value(b)}" for key, (a, b) in pairs.items() if a != b]


def _value(value: object) -> str:
    return f"{value.tokens}tok" if isinstance(value, TokenBudget) else str(value)


def answer_line(points: Sequence[FrontierPoint]) -> str:
    """From the fewest GPUs to the fastest plan, and what the added GPUs are worth."""
    first, last = points[0], points[-1]
    if len(points) == 1:
        return f"{_gpus(first.num_gpus)} hold the job: about {about(first.iteration_s)} s; more make nothing faster"
    speedup, more = first.iteration_s / last.iteration_s, last.num_gpus / first.num_gpus
    return (
        f"from {_gpus(first.num_gpus)} (about {about(first.iteration_s)} s) to {last.num_gpus:,} (about "
        f"{about(last.iteration_s)} s): {speedup:.1f} times faster on {more:.1f} times the GPUs"
    )


def _gpus(count: int) -> str:
    return f"{count:,} GPU{'' if count == 1 else 's'}"


def plot_lines(points: Sequence[FrontierPoint], width: int) -> list[str]:
    """Iteration time by GPUs as bars; a mark where the fewest GPUs' plan, scaled perfectly, would end."""
    first, names = points[0], [f"{point.num_gpus:,}" for point in points]
    times = [f"{about(point.iteration_s)} s" for point in points]
    left, right = max(map(len, [*names, "GPUs"])), max(map(len, times))
    room = min(width, MOST_PLOT) - left - right - 4
    longest = max(point.iteration_s for point in points)
    out = [f"{'GPUs':>{left}}  seconds of an iteration, | with perfect scaling"]
    for name, told, point in zip(names, times, points, strict=True):
        length = max(1, round(room * point.iteration_s / longest))
        ideal = round(room * first.iteration_s * first.num_gpus / point.num_gpus / longest)
        bar = "█" * length
        if point is not first and 0 < ideal < length:
            bar = f"{bar[: ideal - 1]}|{bar[ideal:]}"
        out.append(f"{name:>{left}}  {bar} {told}")
    return out


def proof_lines(points: Sequence[FrontierPoint]) -> list[str]:
    """What the table claims, and where it is not proven."""
    last = points[-1].up_to_gpus
    if all(point.proven for point in points):
        return [
            f"each the fastest on at most so many GPUs, proven; between points, and up to {last:,}, no pool size helps"
        ]
    lines = [_open_line(point) for point in points if point.gap > OPTIMAL_GAP]
    if not points[0].proven and points[0].gap <= OPTIMAL_GAP:
        lines.append(f"not proven  that fewer than {points[0].num_gpus:,} GPUs do not hold the job")
    if all(_left_out(point) for point in points if point.gap > OPTIMAL_GAP):
        return lines
    return [*lines, "time was up; a longer --time-limit may find better plans there"]


def _open_line(point: FrontierPoint) -> str:
    where = f"{point.num_gpus:,} GPUs: on up to {point.up_to_gpus:,} no plan beats {point.bound_s:,.2f} s"
    if _left_out(point):
        return f"left out    {where}, and none in the degrees that are searched this one; one between them may"
    return f"not proven  {where}"


def _left_out(point: FrontierPoint) -> bool:
    """Whether only degrees that are not listed keep the gap open."""
    return (point.iteration_s - point.listed_bound_s) / point.iteration_s <= OPTIMAL_GAP
