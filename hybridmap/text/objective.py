"""An objective that is not plain time, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mapper.objective import Goal, Objective
    from mapper.result import Result

UNITS: dict[Goal, str] = {
    "time": "s",
    "throughput_per_gpu": "GPU-s per iteration",
    "cost": "currency per iteration",
    "gpus": "GPUs",
}
"""Of ``Result.value``."""


def objective_lines(result: Result) -> list[str]:
    """What was asked for and what it comes to; nothing for plain time."""
    objective = result.objective
    if objective.goal == "time":
        return []
    wanted = {
        "throughput_per_gpu": "the most tokens/s per GPU",
        "cost": f"the least cost at {_prices(objective)} per GPU-hour",
        "gpus": f"the fewest GPUs with an iteration of at most {objective.target_iteration_s or 0:,g} s",
    }[objective.goal]
    return [f"objective   {wanted}: {value_text(result, result.value)}"]


def _prices(objective: Objective) -> str:
    if len(objective.prices) == 1:
        return f"{objective.prices[0][1]:g}"
    return " and ".join(f"{price:g} ({kind})" for kind, price in objective.prices)


def bound_text(result: Result) -> str:
    """What no plan beats, in the objective's unit."""
    if result.objective.goal == "time":
        return f"{result.bound_s:,.2f} s"
    on = f" and {result.bound_s:,.2f} s on {result.plan.num_gpus:,}" if result.objective.goal == "gpus" else ""
    return value_text(result, result.value_bound) + on


def value_text(result: Result, value: float) -> str:
    """A value of the objective as people read it."""
    if result.objective.goal == "throughput_per_gpu":
        tokens = result.timeline.tokens_per_s * result.iteration_s
        return f"{tokens / value:,.0f} tokens/s per GPU" if value else "unknown"
    if result.objective.goal == "gpus":
        return f"{value:,.0f} GPU{'s' if value != 1 else ''}"
    return f"{value:,.4f} per iteration"


def objective_document(result: Result) -> dict[str, Any]:
    """The objective with its value and bound, both in ``unit``."""
    objective = result.objective
    given = {"price_per_gpu_hour": dict(objective.prices), "target_iteration_s": objective.target_iteration_s}
    return {
        "goal": objective.goal,
        **{key: value for key, value in given.items() if value},
        "value": result.value,
        "bound": result.value_bound,
        "unit": UNITS[objective.goal],
    }
