"""An imported run on screen: what it takes, what it could take, and what to change for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.console import new_table, say, say_table
from hybridmap.exports.doubt import least_share
from hybridmap.exports.values import override_text
from hybridmap.text.advice import answer_lines
from hybridmap.text.plan import header_lines, show_plan

if TYPE_CHECKING:
    from hybridmap.exports.advice import Advice
    from hybridmap.exports.imported import Imported
    from simulator.plan.timeline import Timeline


def show_import(imported: Imported, now: Timeline | None, why: list[str], advice: Advice, system: str) -> None:
    """The run as it is, the best plan for its job, and the steps from one to the other."""
    say("\n".join(answer_lines(now, advice, system)) + "\n")
    say("\n".join(header_lines(imported.job.facts(), imported.notes)))
    _show_run(imported, now, why)
    say()
    say(f"the best plan for the same job{'' if advice.reason else f' that {system} can run'}:")
    show_plan(advice.best.plan, advice.best.timeline)
    say()
    you = (
        "your run does not fit"
        if now is None
        else f"you run at {now.iteration_s:,.2f} s an iteration{', if it fits' if why else ''}"
    )
    if advice.reason:
        say(f"{you}; of plans that {system} can run none was found: {advice.reason}")
        return
    if not advice.steps:
        best = advice.best.iteration_s if advice.iteration_s is None else advice.iteration_s
        say(f"{you}; what you have is within 2 % of the best that was found, {best:,.2f} s: leave it")
        return
    show_steps(advice, you)


def _show_run(imported: Imported, now: Timeline | None, why: list[str]) -> None:
    """The run as it is; one that is counted over the memory there is, by no more than the count is off, as in doubt."""
    off = f"{100 * (1.0 - least_share(imported.job.facts())):.0f} %"
    if now is None:
        say(f"your run needs more memory than there is, by more than this count is off ({off}, nine times in ten):")
    elif why:
        say("your run, which may not fit; if you have seen it run, this count is too high:")
    for line in why:
        say(f"  {line}")
    if now is None:
        return
    if why:
        say(
            f"  published peaks were up to {off} below the count, nine times in ten; so it is priced as a run that fits"
        )
    else:
        say("your run:")
    show_plan(imported.plan, now)


def show_steps(advice: Advice, you: str) -> None:
    """What to change, in order; each step priced by reading the changed run again."""
    assert advice.iteration_s is not None, "there are steps"
    keys = "this key" if len(advice.changes) == 1 else f"these {len(advice.changes)} keys"
    say(f"{you}; with {keys} changed it takes {advice.iteration_s:,.2f} s, by reading the changed run again:")
    table = new_table(("step", "key", "now", "change to", "alone", "then"))
    for number, step in enumerate(advice.steps, start=1):
        for i, (key, old, new) in enumerate(step.changes):
            first = i == 0
            table.add_row(
                f"{number} {step.name}" if first else "",
                key.lstrip("+"),
                "-" if old is None else override_text(old),
                "-" if new is None else override_text(new),
                _seconds(step.alone_s) if first else "",
                _seconds(step.after_s) if first else "",
            )
    say_table(table)


def _seconds(time_s: float | None) -> str:
    return "does not fit" if time_s is None else f"{time_s:,.2f} s"
