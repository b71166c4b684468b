"""What a plan loses when the estimates are off, in sentences a person says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.console import new_table, say_table
from hybridmap.text.notation import generation_text, percent, placement_title, training_text
from mapper.price_families import MEANING
from mapper.search.replay import layout_key

if TYPE_CHECKING:
    from mapper.analysis.regret import Contender, Draw, FamilyEffect, Robustness

NOTHING = 5e-5
"""Regrets below it show as 0.00 %."""


def answer_line(answer: Robustness) -> str:
    """Whether the plan holds, and what it loses at worst."""
    draws = f"{len(answer.draws):,} set{'' if len(answer.draws) == 1 else 's'} of prices drawn within their errors"
    if answer.unfit:
        return f"the plan does not fit under {answer.unfit:,} of {draws}"
    worst = max(answer.regrets, default=0.0)
    if worst < NOTHING:
        return f"the plan holds: it stays the best under all of {draws}"
    return f"the plan holds: under {draws} it loses at most {percent(worst)} against the best plan of each"


def regret_lines(answer: Robustness, statistics: dict[str, float]) -> list[str]:
    """How much is lost on average and at worst, how often another plan is best, and the safest one."""
    n, lines = len(answer.draws), []
    if statistics and statistics["worst"] >= NOTHING:
        parts = ", ".join(f"{percent(statistics[key])} {name}" for key, name in _STATISTICS.items())
        lines.append(f"lost        {parts}")
    other = sum(not d.same_placement for d in answer.draws)
    moved = sum(not d.same_layouts for d in answer.draws)
    lines.append(f"best plan   {_best_text(n, other, moved)}")
    if n < answer.asked:
        lines.append(f"time        was up after {n} of {answer.asked} draws; a longer --time-limit does them all")
    return [*lines, _safest_line(answer)]


_STATISTICS = {"mean": "on average", "p50": "in the middle draw", "p90": "in nine of ten draws", "worst": "at worst"}


def _best_text(draws: int, other: int, moved: int) -> str:
    if not moved:
        return f"the same in all {draws:,} draws"
    shares = "never shares GPUs otherwise" if not other else f"shares GPUs otherwise in {other:,}"
    return f"another one in {moved:,} of {draws:,} draws; it {shares}"


def _safest_line(answer: Robustness) -> str:
    safest = answer.safest
    if layout_key(safest.plan) == layout_key(answer.chosen.plan):
        return "safest      this plan: no other plan that won a draw loses less at worst"
    unfit = f", does not fit in {safest.unfit}" if safest.unfit else ""
    return (
        f"safest      {placement_title(safest.plan)}, {_layouts(safest)}: it loses at most "
        f"{percent(safest.worst_regret)}, {percent(safest.mean_regret)} on average{unfit}"
    )


def _layouts(contender: Contender) -> str:
    parts = []
    for entry in contender.plan.roles:
        texts = [t for t in (training_text(entry.training), generation_text(entry.generation)) if t != "-"]
        parts += [f"{entry.role} {' / '.join(texts)}"] if texts else []
    return ", ".join(parts)


def show_families(answer: Robustness) -> None:
    """Print what each family of prices does alone; regrets of nothing are left out, and so are families of nothing."""
    numbers = ("off by", "time moves", "lost if faster", "lost if slower")
    table = new_table(("prices of", *numbers), right=numbers)
    for effect in answer.effects:
        if not _moves(effect):
            continue
        lost = (_lost(end) for end in (effect.faster, effect.slower))
        table.add_row(MEANING[effect.family], percent(effect.error), percent(effect.swing), *lost)
    say_table(table)


def _moves(effect: FamilyEffect) -> bool:
    """Whether a family moves the time, or loses anything, as far as two digits show."""
    ends = (effect.faster, effect.slower)
    return effect.swing >= NOTHING or any(end.regret is None or end.regret >= NOTHING for end in ends)


def _lost(draw: Draw) -> str:
    if draw.regret is None:
        return "does not fit"
    return percent(draw.regret) if draw.regret >= NOTHING else ""


def measure_lines(answer: Robustness) -> list[str]:
    """What is worth measuring first."""
    first, lines = answer.measure_first, []
    still = [MEANING[effect.family] for effect in answer.effects if not _moves(effect)]
    if still:
        lines.append(f"unmoved     by {', '.join(still)}: the time stays as it is")
    if first is not None and first.regret >= NOTHING:
        lines.append(
            f"measure     {MEANING[first.family]} first: not knowing it better costs {percent(first.regret)} on average"
        )
    elif first is not None:
        lines.append(
            f"measure     nothing for the plan's sake; to know the time better, {MEANING[first.family]}: it moves the "
            f"time most, by {percent(first.swing)}"
        )
    if answer.skipped:
        lines.append(f"not tried   {', '.join(answer.skipped)}: time was up")
    return lines
