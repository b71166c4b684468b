"""``hybridmap robust``: what the chosen plan loses when the estimates are off, and which one to measure first."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.options import JobArgument, Json, Seed
from hybridmap.console import new_table, progress_bar, say, say_json, say_table

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
    as_json: Json = False,
) -> None:
    """Show how estimate errors move the plan.

    Perturbs the prices by family, plans again under each draw, and says what the plan of the job loses there, which
    plan loses least at worst, and which family is most worth measuring.
    """
    from hybridmap.job.load import load_job
    from mapper.price_families import FAMILIES

    given = load_job(job)
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
    from hybridmap.text.notation import placement_title
    from hybridmap.text.plan import header_lines

    say("\n".join(header_lines(facts, note)))
    plan = answer.chosen.plan
    say(f"plan        {placement_title(plan)}  {answer.chosen.iteration_s:,.2f} s as estimated")
    say("\n".join(_regret_lines(answer)))
    say()
    if answer.effects:
        _show_families(answer)
        say("\n".join(_measure_lines(answer)))
    say(f"seed {answer.seed}, {answer.seconds:.1f} s")


def _regret_lines(answer: "Robustness") -> list[str]:
    from hybridmap.text.notation import percent

    done, n = len(answer.draws), _draws_text(len(answer.draws))
    stats = statistics(answer)
    lines = []
    if stats:
        names = {"mean": "mean", "p50": "median", "p90": "p90", "worst": "worst"}
        parts = ", ".join(f"{text} {percent(stats[key])}" for key, text in names.items())
        lines.append(f"regret      {parts} over {_draws_text(len(answer.regrets))} (time over the best of the draw)")
    if answer.unfit:
        lines.append(f"memory      the plan does not fit in {answer.unfit} of {n}")
    other = sum(not d.same_placement for d in answer.draws)
    moved = sum(not d.same_layouts for d in answer.draws)
    lines.append(f"best plan   has another placement in {other} of {n}, other pools or layouts in {moved}")
    if done < answer.asked:
        lines.append(f"time        was up after {done} of {answer.asked} draws; a longer --time-limit does them all")
    return [*lines, _safest_line(answer)]


def _draws_text(count: int) -> str:
    return f"{count:,} draw{'' if count == 1 else 's'}"


def _safest_line(answer: "Robustness") -> str:
    from hybridmap.text.notation import percent, placement_title
    from mapper.search.replay import layout_key

    safest = answer.safest
    regret = f"worst regret {percent(safest.worst_regret)}, mean {percent(safest.mean_regret)}"
    unfit = f", does not fit in {safest.unfit}" if safest.unfit else ""
    if layout_key(safest.plan) == layout_key(answer.chosen.plan):
        return f"safest      the plan itself of {len(answer.contenders)} that won a draw: {regret}{unfit}"
    return f"safest      {placement_title(safest.plan)}, {_layouts(safest)}: {regret}{unfit}"


def _layouts(contender: "Contender") -> str:
    from hybridmap.text.notation import generation_text, training_text

    parts = []
    for entry in contender.plan.roles:
        texts = [t for t in (training_text(entry.training), generation_text(entry.generation)) if t != "-"]
        parts += [f"{entry.role} {' / '.join(texts)}"] if texts else []
    return ", ".join(parts)


def _show_families(answer: "Robustness") -> None:
    from hybridmap.text.notation import percent
    from mapper.price_families import MEANING

    numbers = ("error", "regret if faster", "regret if slower", "iteration moves")
    table = new_table(("family alone", *numbers, "what it is"), right=numbers)
    for effect in answer.effects:
        table.add_row(
            effect.family,
            percent(effect.error),
            *(_regret(end) for end in (effect.faster, effect.slower)),
            percent(effect.swing),
            MEANING[effect.family],
        )
    say_table(table)


def _regret(draw: "Draw") -> str:
    from hybridmap.text.notation import percent

    return "does not fit" if draw.regret is None else percent(draw.regret)


def _measure_lines(answer: "Robustness") -> list[str]:
    from hybridmap.text.notation import percent

    first, lines = answer.measure_first, []
    if first is not None and first.regret >= 5e-5:
        lines.append(f"measure     {first.family} first: not knowing it costs {percent(first.regret)} on average")
    elif first is not None:
        lines.append(
            f"measure     nothing for the plan's sake: no family alone costs anything; {first.family} moves the time "
            "most"
        )
    if answer.skipped:
        lines.append(f"not tried   {', '.join(answer.skipped)}: time was up")
    return lines


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
