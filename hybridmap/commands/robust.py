"""``hybridmap robust``: what the chosen plan loses when the estimates are off, and which one to measure first."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.options import AllowDownload, JobArgument, Json, ModelConfig, Seed
from hybridmap.console import progress_bar, say, say_json

if TYPE_CHECKING:
    from mapper.analysis.regret import Contender, Draw, Robustness
    from simulator.facts import Facts

MOST_DRAWS = 10_000


def robust(
    job: JobArgument,
    draws: Annotated[int, typer.Option("--draws", min=1, max=MOST_DRAWS, help="Sets of prices to draw.")] = 20,
    error: Annotated[
        float | None,
        typer.Option("--error", min=0.0, max=3.0, help="Relative error of every family (0.15 is 15 %).", metavar="X"),
    ] = None,
    seed: Seed = 0,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=1.0, metavar="SECONDS", help="Longest time for all searches.")
    ] = 120.0,
    model_config: ModelConfig = None,
    allow_download: AllowDownload = False,
    as_json: Json = False,
) -> None:
    """Show how estimate errors move the plan.

    Perturbs the prices by family, plans again under each draw, and says what the plan of the job loses there, which
    plan loses least at worst, and which family is most worth measuring.
    """
    from hybridmap.job.load import load_job
    from mapper.price_families import FAMILIES

    given = load_job(job, model_config=model_config, allow_download=allow_download)
    facts = given.facts()
    errors = None if error is None else dict.fromkeys(FAMILIES, error)
    with progress_bar("searches") as progress:
        from mapper.analysis.robust import robustness

        request = replace(given.request(), seed=seed)
        answer = robustness(request, errors=errors, draws=draws, budget_s=time_limit, progress=progress)
    note = _goal_note(given.request().objective.goal)
    if as_json:
        say_json(_document(answer, note))
        return
    _show(answer, facts, note)


def _goal_note(goal: str) -> list[str]:
    return [] if goal == "time" else [f"the job's objective is {goal}; here plans are compared by time"]


def _show(answer: "Robustness", facts: "Facts", note: list[str]) -> None:
    from hybridmap.text.notation import about, placement_title
    from hybridmap.text.plan import header_lines
    from hybridmap.text.robust import answer_line, measure_lines, regret_lines, show_families

    plan = answer.chosen.plan
    say(answer_line(answer))
    say(f"{placement_title(plan)} on {plan.num_gpus:,} GPUs, about {about(answer.chosen.iteration_s)} s an iteration\n")
    say("\n".join(header_lines(facts, note)))
    say("\n".join(regret_lines(answer, statistics(answer))))
    say()
    if answer.effects:
        show_families(answer)
        say()
        say("\n".join(measure_lines(answer)))
    say(f"tried       {len(answer.draws):,} draws, seed {answer.seed}, {answer.seconds:.1f} s")


def statistics(answer: "Robustness") -> dict[str, float]:
    """Mean, median, 90th percentile and worst of the regrets; empty if the plan fits in no draw."""
    import numpy as np

    regrets = answer.regrets
    if not regrets:
        return {}
    return {
        "mean": float(np.mean(regrets)),
        "p50": float(np.quantile(regrets, 0.5)),
        "p90": float(np.quantile(regrets, 0.9)),
        "worst": max(regrets),
    }


def _document(answer: "Robustness", note: list[str]) -> dict[str, Any]:
    first = answer.measure_first
    return {
        "iteration_s": answer.chosen.iteration_s,
        "plan": answer.chosen.plan.model_dump(mode="json"),
        "seed": answer.seed,
        "errors": dict(answer.errors),
        "asked_draws": answer.asked,
        "regret": statistics(answer) or None,
        "unfit": answer.unfit,
        "draws": [_draw_document(draw) for draw in answer.draws],
        "contenders": [_contender_document(c) for c in answer.contenders],
        "safest": _contender_document(answer.safest),
        "families": [
            {
                "family": e.family,
                "error": e.error,
                "regret": e.regret,
                "swing": e.swing,
                "faster": _draw_document(e.faster),
                "slower": _draw_document(e.slower),
            }
            for e in answer.effects
        ],
        "measure_first": None if first is None else first.family,
        "skipped": list(answer.skipped),
        "notes": note,
    }


def _draw_document(draw: "Draw") -> dict[str, Any]:
    return {
        "factors": dict(draw.factors),
        "best_s": draw.best_s,
        "chosen_s": draw.chosen_s,
        "regret": draw.regret,
        "placement": draw.placement,
        "same_placement": draw.same_placement,
        "same_layouts": draw.same_layouts,
    }


def _contender_document(contender: "Contender") -> dict[str, Any]:
    return {
        "placement": contender.plan.placement,
        "wins": contender.wins,
        "unfit": contender.unfit,
        "mean_regret": contender.mean_regret,
        "worst_regret": contender.worst_regret,
        "plan": contender.plan.model_dump(mode="json"),
    }
