"""``hybridmap watch``: a running job beside its plan, by stage, and whether another plan would pay by now."""

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.calibrate import Asked, Device, JobRun, Log, PlanRun, Script, what_ran
from hybridmap.commands.import_run import Models, Network, Variables
from hybridmap.commands.options import Json
from hybridmap.console import new_table, say, say_json, say_table, working
from profiles.errors import HybridmapError, InputError

if TYPE_CHECKING:
    from hybridmap.calibration.deviation import Switch, Watched
    from hybridmap.commands.calibrate import Ran
    from hybridmap.job.job import Job
    from hybridmap.runlogs.records import RunLog
    from mapper.result import Result

SEARCH_S = 20.0
RESTART_S = 600.0
FEW_STEPS = 10
"""Prices of fewer steps still move; a restart is not decided by them."""


def watch(
    log: Log,
    plan: PlanRun = None,
    job: JobRun = None,
    script: Script = None,
    device: Device = None,
    gbps: Network = None,
    model: Models = None,
    env: Variables = None,
    restart: Annotated[
        float | None,
        typer.Option(
            "--restart",
            min=0,
            metavar="SECONDS",
            help="What going over to another plan costs; else a terminal asks once, and elsewhere it is 600.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[float, typer.Option("--every", min=1, metavar="SECONDS", help="Look at the log so often.")] = 30.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    as_json: Json = False,
) -> None:
    """Set a running job beside its plan.

    Stage by stage what was planned and what is measured, whether lengths or prices explain it, how lengths drift, and
    whether the best plan by now is faster by more than a restart costs. Looks again when the log has grown.
    """
    from hybridmap.runlogs.read import read_log

    asked = Asked(plan, job, script, device, gbps, model or (), env or ())
    for _ in _changes(log, every, once or as_json):
        try:
            steps = read_log(log)
        except InputError as error:
            if once or as_json or not log.exists():
                raise
            say(f"{error}; looking again every {every:,.0f} s")  # a run that begins has no step yet
            continue
        ran, found, switch = _look(steps, asked)
        if restart is None:
            restart = _restart_s(ask=not as_json)
        if as_json:
            say_json(_document(found, switch, restart))
            return
        _show(ran, found, switch, restart)
        say("")


def _restart_s(ask: bool) -> float:
    """What going over to another plan costs: asked on a terminal, else ``RESTART_S``."""
    if not (ask and sys.stdin.isatty() and sys.stderr.isatty()):
        return RESTART_S
    question = "seconds that a restart with another plan costs"
    return max(0.0, float(typer.prompt(question, default=RESTART_S, type=float, err=True)))


def _changes(log: Path, every_s: float, once: bool) -> Iterator[int]:
    """The size of the log now, and each time that it has changed."""
    before = -1
    while True:
        try:
            size = sum(p.stat().st_size for p in log.rglob("*")) if log.is_dir() else log.stat().st_size
        except OSError:
            size = 0  # reading it says what is wrong
        if size != before:
            yield size
            before = size
        if once:
            return
        time.sleep(every_s)


def _look(log: "RunLog", asked: Asked) -> "tuple[Ran, Watched, Switch | None]":
    from hybridmap.calibration.deviation import watched

    ran = what_ran(log, asked)
    found = watched(log, ran.plan, ran.job.facts())
    with working("searching a better plan by what the log says ..."):
        return ran, found, _better(log, ran)


def _better(log: "RunLog", ran: "Ran") -> "Switch | None":
    """The best plan that the system runs, by prices and lengths of the log; ``None`` where none can be found."""
    from hybridmap.calibration.deviation import Switch, facts_by
    from hybridmap.calibration.learn import learn
    from hybridmap.exports.targets import planned
    from hybridmap.text.plan import interval_s
    from mapper.search.find_plan import find_plan
    from simulator.play.simulate import simulate

    learned = learn(log, ran.plan, ran.job.facts())

    def search(job: "Job") -> "Result":
        facts = facts_by(learned, job.facts())
        return find_plan(replace(job.request(), facts=facts, runners_up=False, time_limit_s=SEARCH_S))

    try:
        best, job, _ = planned(ran.job, ran.target, search)
    except HybridmapError:
        return None
    now = simulate(ran.plan, facts_by(learned, ran.job.facts()))
    then = simulate(best.plan, facts_by(learned, job.facts()))
    return Switch(best.plan, now.iteration_s, then.iteration_s, interval_s(then))


def _show(ran: "Ran", found: "Watched", switch: "Switch | None", restart_s: float) -> None:
    now = "" if found.measured_s is None else f"{found.measured_s:,.1f} s an iteration, planned "
    say(f"step {found.last_step:,}: {now}{found.planned_s:,.1f} s ({found.steps:,} steps)\n")
    table = new_table(("stage", "planned", "measured", "off", "because of"), right=("planned", "measured", "off"))
    for stage in found.stages:
        table.add_row(
            " + ".join(stage.calls),
            f"{stage.planned_s:,.1f} s",
            f"{stage.measured_s:,.1f} s",
            f"{100 * stage.off:+.0f} %",
            stage.because,
        )
    say_table(table)
    if found.lengths is not None:
        planned = ran.job.facts().workload.response.mean
        say(
            f"\nresponses {found.lengths.response_mean:,.0f} tokens, {100 * found.lengths.drift:+.0f} % over the run; "
            f"planned {planned:,.0f}"
        )
    if found.headroom_gib is not None:
        say(f"memory    {found.headroom_gib:,.1f} GiB of the fullest GPU were never reserved by the trainer")
    say(_advice(switch, restart_s))
    if found.steps < FEW_STEPS:
        say(f"that is from {found.steps} steps: look again after {FEW_STEPS}")


def _advice(switch: "Switch | None", restart_s: float) -> str:
    if switch is None:
        return "another plan could not be found for what the log says"
    after = switch.pays_after(restart_s)
    if math.isinf(after) or switch.then_s > 0.98 * switch.now_s:
        return f"by what the log says this plan is within 2 % of the best ({switch.then_s:,.1f} s): stay"
    low_s, high_s = switch.between_s
    slowly = switch.pays_after(restart_s, high_s)
    at_worst = "may never pay" if math.isinf(slowly) else f"at the slow end after {math.ceil(slowly):,}"
    then = f"{switch.then_s:,.1f} s ({low_s:,.1f} to {high_s:,.1f} s in 9 of 10 runs)"
    return (
        f"by what the log says {switch.plan.placement} would take {then}, this plan {switch.now_s:,.1f} s:\n"
        f"a restart of {restart_s:,.0f} s pays after {math.ceil(after):,} iterations, {at_worst}"
    )


def _document(found: "Watched", switch: "Switch | None", restart_s: float) -> dict[str, Any]:
    better = None
    if switch is not None:
        after = switch.pays_after(restart_s)
        better = {
            "iteration_s": switch.then_s,
            "interval_s": list(switch.between_s),
            "this_plan_s": switch.now_s,
            "pays_after_iterations": None if math.isinf(after) else math.ceil(after),
            "plan": switch.plan.model_dump(mode="json"),
        }
    return {
        "steps": found.steps,
        "last_step": found.last_step,
        "measured_s": found.measured_s,
        "planned_s": found.planned_s,
        "stages": [
            {
                "calls": list(stage.calls),
                "planned_s": stage.planned_s,
                "planned_at_these_lengths_s": stage.at_lengths_s,
                "measured_s": stage.measured_s,
                "off": stage.off,
                "because_of": stage.because or None,
            }
            for stage in found.stages
        ],
        "lengths": found.lengths.model_dump(mode="json") if found.lengths else None,
        "headroom_gib": found.headroom_gib,
        "restart_s": restart_s,
        "better": better,
    }
