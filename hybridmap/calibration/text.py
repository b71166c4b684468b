"""What was learned from a log, as lines and a table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hybridmap.console import new_table, say_table
from hybridmap.text.notation import percent
from profiles.calibration import UNMOVED
from simulator.plan.dataflow import CONTROLLER
from simulator.uncertainty import NINETY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridmap.calibration.learn import Learned
    from hybridmap.runlogs.records import RunLog
    from profiles.calibration import CalibrationFile, LearnedLengths, Stage
    from simulator.facts import Facts

SHOWN_S = 0.05
NAMES = {"generation_host": "generation, host", "training_host": "training, host"}


def learned_lines(
    log: RunLog, learned: Learned, facts: Facts, notes: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Lines above the table of stages, and below it."""
    out = [f"{reason} {', '.join(map(str, steps))}" for reason, steps in learned.file.left_out.items()]
    left = f" (left out: {'; '.join(out)})" if out else ""
    devices = f"{facts.num_gpus:,} x {facts.group.device}"
    above = [
        _answer(learned.file.stages, learned.file.steps),
        f"{log.system}: {learned.file.steps:,} of {len(log.steps):,} steps{left}, {devices}",
        *(f"note: {note}" for note in notes),
        *([f"note: {log.damaged:,} lines could not be read to their end"] if log.damaged else []),
        "",
    ]
    below = ["", *_factor_lines(learned), *_length_lines(learned.lengths)]
    below += _second_lines(learned.file, facts)
    if learned.file.dispatch != UNMOVED:
        below.append(f"between   what lies between calls x {learned.file.dispatch:.2f}")
    below += _memory_lines(learned.file)
    below += [f"not in the log: {text}" for text in learned.lacks]
    return above, below


def _answer(stages: Sequence[Stage], steps: int) -> str:
    """How far prices are off, by the seconds of each stage, with what was learned and without."""
    whole = sum(stage.measured_s for stage in stages)
    if not whole:
        return "no step was left to hold the prices against"
    before = sum(abs(stage.error_before) * stage.measured_s for stage in stages) / whole
    after = sum(abs(stage.error_after) * stage.measured_s for stage in stages) / whole
    on = "steps that nothing was learned from" if steps > 1 else "the one step; none is left to check it on"
    return f"stages are priced {percent(after)} off on {on} ({percent(before)} before)"


def show_stages(stages: Sequence[Stage]) -> None:
    """Measured seconds, and errors before and after on steps that no factor was taken from."""
    table = new_table(("stage", "measured", "price before", "price after"), right=("measured",))
    for stage in stages:
        table.add_row(
            " + ".join(stage.calls),
            f"{stage.measured_s:,.1f} s",
            f"{100 * stage.error_before:+.0f} %",
            f"{100 * stage.error_after:+.0f} %",
        )
    say_table(table)


def _factor_lines(learned: Learned) -> list[str]:
    shown: list[str] = []
    for name in learned.belief.learned:
        factor, left = learned.belief.factors[name], learned.belief.deviations[name]
        low, high = factor * math.exp(-NINETY * left), factor * math.exp(NINETY * left)
        what = "learned" if not shown else ""
        shown.append(f"{what:<10}{NAMES.get(name, name):<18} x {factor:.2f} ({low:.2f} to {high:.2f})")
    return shown or ["the log moves no price by more than is uncertain anyway"]


def _second_lines(file: CalibrationFile, facts: Facts) -> list[str]:
    """What comes beside prices and factors: between calls, and in a call at any length."""
    waiting = {call.key for call in facts.dataflow.calls if call.role == CONTROLLER}
    seconds = {key: s * facts.workload.num_samples for key, s in file.seconds_per_sample.items()}
    between_s = sum(s for key, s in seconds.items() if key in waiting)
    open_s = NINETY * math.hypot(*file.seconds_deviations.values()) * facts.workload.num_samples
    span = f"({max(0.0, between_s - open_s):,.2f} to {between_s + open_s:,.2f})"
    out = [f"between calls {between_s:,.2f} s {span} an iteration"] if between_s else []
    fixed = [f"{key} {s:,.1f} s" for key, s in seconds.items() if key not in waiting and s >= SHOWN_S]
    return out + ([f"at any length {', '.join(fixed)}"] if fixed else [])


def _memory_lines(file: CalibrationFile) -> list[str]:
    if file.peak is None:
        return []
    peak = (
        f"memory    {file.peak.allocated_gib:,.1f} GiB in use at the trainer's peak, priced {file.peak.priced_gib:,.1f}"
    )
    return [peak + (f": passes are taken to need x {file.peak.factor:.2f}" if file.peak.factor > 1 else "")]


def _length_lines(lengths: LearnedLengths | None) -> list[str]:
    if lengths is None:
        return []
    parts = [f"mean {lengths.response_mean:,.0f} tokens"]
    if lengths.response_p99 is not None:
        cut = lengths.response_max is not None and lengths.response_p99 > lengths.response_max
        parts.append(f"p99 {lengths.response_p99:,.0f}{' if none were cut' if cut else ''}")
    if lengths.clipped is not None:
        parts.append(f"{percent(lengths.clipped)} at the limit")
    if lengths.prompt_mean is not None:
        parts.append(f"prompts {lengths.prompt_mean:,.0f}")
    if abs(lengths.drift) >= 0.02:
        parts.append(f"{100 * lengths.drift:+.0f} % over these steps")
    return [f"responses {', '.join(parts)}"]
