"""What a search found, as lines for people: how good it is, among what, and what to type next."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hybridmap.text.notation import difference_text, percent, placement_title
from hybridmap.text.objective import bound_text, objective_lines
from hybridmap.text.others import listed_line, plain_lines

if TYPE_CHECKING:
    from pathlib import Path

    from mapper.result import Result
    from mapper.search_options import SearchOptions
    from simulator.facts import Facts

MAY_CLOSE = "a longer --time-limit may close the gap, unless degrees that are not listed keep it open"


def best_line(result: Result) -> str:
    """What is best under this model, of how many, and how surely."""
    plan = f"{placement_title(result.plan)} on {result.plan.num_gpus:,} GPUs"
    among = f"of {result.num_priced:,} priced configurations under this model"
    if result.status == "optimal":
        within = ", proven" if result.faster is None else f" within {100 * result.tolerance:g} %, proven"
        return f"{plan}: the best {among}{within}"
    return f"{plan}: the best found {among}; no plan beats {bound_text(result)} (gap {percent(result.gap)})"


def result_lines(result: Result, facts: Facts, options: SearchOptions) -> list[str]:
    """How good the plan is and among what, what was left unused, and what plain plans and other placements cost."""
    found = f"found in {result.seconds:.1f} s (seed {result.seed})"
    bound = f"{bound_text(result)}, gap {percent(result.gap)}, {found}"
    if result.status == "optimal":
        proof = f"proof       optimal: no plan beats {bound}"
    else:
        proof = f"proof       open: no plan beats {bound}; {'; '.join(result.open_because) or MAY_CLOSE}"
    return [
        *objective_lines(result),
        proof,
        listed_line(facts, options),
        *_unused_lines(result, facts),
        "",
        *plain_lines(result),
        *_runner_up_lines(result, facts),
    ]


def _unused_lines(result: Result, facts: Facts) -> list[str]:
    """How many GPUs stay idle, and why."""
    idle = facts.num_gpus - result.plan.num_gpus
    if not idle:
        return []
    better = "faster" if result.objective.goal == "time" else "better by the objective"
    none = "no plan is" if result.status == "optimal" else "no plan that was found is"
    return [f"unused      {idle:,} of {facts.num_gpus:,} GPUs: {none} {better} with them"]


def _runner_up_lines(result: Result, facts: Facts) -> list[str]:
    best, lines = result.timeline.stages, []
    for i, other in enumerate(result.runners_up):
        slower = other.iteration_s / result.iteration_s - 1
        differences = difference_text(other.timeline_on(facts).stages, best)
        why = f": {differences}" if differences else ""
        head = "runner-up " if i == 0 else " " * 10
        change = f"{'-' if slower < -1e-9 else '+'}{percent(abs(slower))}"  # equal plans differ in the last bit
        if other.bound_s is not None and (least := percent(max(other.bound_s / result.iteration_s - 1, 0.0))):
            change += f", its best at least +{least}" if f"+{least}" != change else ""
        lines.append(f"{head}  {placement_title(other.plan)}  {other.iteration_s:,.2f} s ({change}){why}")
    return [*lines, ""] if lines else []


def next_lines(job: str, written: list[Path], target: str | None) -> list[str]:
    """What is on disk now, and what one would type next.

    ``job`` is as it was typed, with the options that make it this job; an export goes to the ``target`` that was
    planned for.
    """
    plan = shlex.quote(str(written[0]))
    to = "--to verl" if target in (None, "hybridmap") else "--out launch"
    return [
        f"wrote       {', '.join(str(path) for path in written)}",
        f"next        hybridmap report {plan}",
        f"            hybridmap export {plan} {to}",
        f"            hybridmap compare {job}",
    ]
