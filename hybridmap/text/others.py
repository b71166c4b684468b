"""What stands beside the best plan: the best plain one, other plans, and what was listed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.console import new_table, say, say_table
from hybridmap.text.frontier import changes
from hybridmap.text.notation import gib, percent, placement_title
from mapper.candidates.listed import listed_values

if TYPE_CHECKING:
    from mapper.result import Result, RunnerUp
    from mapper.search_options import SearchOptions
    from simulator.facts import Facts
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

COLUMNS = ("plan", "iteration", "difference", "memory", "usable", "what differs")


def plain_lines(result: Result) -> list[str]:
    """What the best plain plan costs, or what it cost to take it; nothing where none was looked for."""
    if result.faster is not None:
        gain = 1.0 - result.faster.iteration_s / result.iteration_s
        other = changes(result.plan, result.faster.plan)
        return [
            f"plain       this plan; the fastest takes {result.faster.iteration_s:,.2f} s (-{percent(gain)}): {other}"
        ]
    if result.plain is None:
        return []
    if result.plain.plan == result.plan:
        return ["plain       this plan, and no other is faster"]
    slower = result.plain.iteration_s / result.iteration_s - 1
    return [
        f"plain       {placement_title(result.plain.plan)}  {result.plain.iteration_s:,.2f} s (+{percent(slower)}): "
        f"{changes(result.plan, result.plain.plan)}"
    ]


def listed_line(facts: Facts, options: SearchOptions) -> str:
    """The degrees and values that were listed, in one line."""
    values = listed_values(facts, options)
    return f"listed      {'; '.join(f'{name} {text}' for name, text in values.items())}"


def other_plans(result: Result, most: int) -> list[RunnerUp]:
    """The best ``most`` plans that are known, the best first: each differs from those before it."""
    known = [r for r in (result.faster, result.plain, *result.alternatives, *result.runners_up) if r is not None]
    out: list[RunnerUp] = []
    for rival in sorted(known, key=lambda r: (r.iteration_s, r.placement)):
        if rival.plan != result.plan and rival.plan not in [r.plan for r in out]:
            out.append(rival)
    return out[: most - 1]


def show_top(result: Result, facts: Facts, most: int) -> None:
    """Print the best plans as a table: time, memory of the fullest GPU, and what differs from the first."""
    table = new_table(COLUMNS, right=COLUMNS[:5], prose=COLUMNS[5:])
    table.add_row("1", f"{result.iteration_s:,.2f} s", "", *_memory(result.timeline), "this plan")
    for i, other in enumerate(other_plans(result, most)):
        change = other.iteration_s / result.iteration_s - 1
        difference = f"{'+' if change >= 0 else '-'}{percent(abs(change))}"
        what = what_differs(result.plan, other.plan)
        timeline = other.timeline_on(facts)
        table.add_row(str(i + 2), f"{other.iteration_s:,.2f} s", difference, *_memory(timeline), what)
    say_table(table)
    say("(memory in use, and what is still usable within the headroom: GiB of the fullest GPU)")


def what_differs(best: Plan, other: Plan) -> str:
    """Other pools by name and size, else the degrees that changed."""
    told = changes(best, other)
    if not told.startswith("regrouped"):
        return told
    return f"{placement_title(other)} on {' + '.join(f'{pool.num_gpus:,}' for pool in other.pools)}"


def other_documents(result: Result, facts: Facts, most: int) -> list[dict[str, Any]]:
    """The same for programs, without the best."""
    out = []
    for other in other_plans(result, most):
        timeline = other.timeline_on(facts)
        used, free = _fullest(timeline)
        out.append(
            {
                "placement": other.placement,
                "iteration_s": other.iteration_s,
                "slower": other.iteration_s / result.iteration_s - 1,
                "memory_bytes": used,
                "free_bytes": free,
                "differs": what_differs(result.plan, other.plan),
                "plan": other.plan.model_dump(mode="json"),
            }
        )
    return out


def _memory(timeline: Timeline) -> tuple[str, str]:
    used, free = _fullest(timeline)
    return gib(used), gib(free)


def _fullest(timeline: Timeline) -> tuple[float, float]:
    """Bytes in use on the GPU with the least room, and how many more a plan may use there."""
    free = {name: (m.usable_bytes or m.capacity_bytes) - m.used_bytes for name, m in timeline.memory.items()}
    fullest = min(free, key=lambda name: free[name])
    return timeline.memory[fullest].used_bytes, free[fullest]
