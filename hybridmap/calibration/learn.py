"""A log and what it ran, turned into cases, observations and a layer."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hybridmap.calibration.between import before_calls, between
from hybridmap.calibration.lengths import learn_lengths, with_lengths
from hybridmap.calibration.memory import learn_memory
from hybridmap.runlogs.steady import Steady, far_off, steady, usual
from profiles.calibration import UNMOVED, CalibrationFile, LearnedLengths, Stage
from profiles.errors import InputError
from simulator.calibration.factors import uncalibrated, without_dispatch
from simulator.calibration.fit import Case, Prices, fit
from simulator.calibration.posterior import SINGLE_STEP_ERROR, WHOLE, Observation
from simulator.plan.dataflow import CONTROLLER
from simulator.plan.seal import fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hybridmap.runlogs.records import LoggedStep, RunLog
    from profiles.records import Floats
    from simulator.calibration.factors import Belief
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

MOST_BINS, LEAST_PER_BIN = 6, 5
"""Steps of like length are one case each."""
LEAST_S = 1e-3


@dataclass(frozen=True)
class Learned:
    """What a log says: the layer's file, its belief, and the steps that it rests on."""

    file: CalibrationFile
    belief: Belief
    kept: Steady
    lengths: LearnedLengths | None
    lacks: tuple[str, ...]


# Long by what a calibration file says: a line for each.
def learn(log: RunLog, plan: Plan, facts: Facts) -> Learned:
    """Calibrate.

    Parameters
    ----------
    log
        The run.
    plan
        What ran.
    facts
        The job's, with its lengths; a calibration of its own is put aside.

    Raises
    ------
    InputError
        No step of the log says how long any call of the job took.
    """
    facts = uncalibrated(facts)
    kept = steady(log, plan.schedule == "sync")
    if kept.contradictory and not kept.steps:
        raise InputError(
            f"{log.source}: every step takes less time than one of its calls, so they overlap; the plan that ran is "
            "taken to be synchronous: give the one that ran"
        )
    dispatch = before_calls(kept.steps, plan, facts)
    if dispatch is not None:
        facts = without_dispatch(facts)
    lengths = learn_lengths(kept.steps, facts.workload.response.maximum)
    groups = timed_together(kept.steps, facts, plan)
    if not groups:
        raise InputError(f"{log.source}: no step says how long a call of {facts.algorithm} took, or the whole step")
    belief, seconds = _belief(kept.steps, plan, facts, lengths, groups)
    file = CalibrationFile(
        device=facts.group.device,
        training=facts.training.name,
        generation=facts.generation.name,
        system=log.system,
        source=log.source,
        date=datetime.date.today().isoformat(),
        steps=len(kept.steps),
        left_out=kept.left_out,
        log_factors=tuple(belief.log_factors.tolist()),
        covariance=tuple(tuple(row) for row in belief.covariance.tolist()),
        of_calls=None if belief.of_calls is None else tuple(tuple(row) for row in belief.of_calls.tolist()),
        prior_scale=belief.scale,
        seconds_per_sample=seconds,
        seconds_deviations=dict(between(kept.steps, plan, facts).deviations),
        dispatch=UNMOVED if dispatch is None else dispatch,
        stages=_stages(kept.steps, plan, facts, lengths, groups),
        lengths=lengths,
        memory_gib=max((s.memory_gib for s in kept.steps if s.memory_gib is not None), default=None),
        peak=learn_memory(kept.steps, plan, facts),
        computed_from=fingerprint(repr(log.steps), plan.model_dump(mode="json"), facts.facts_hash),
    )
    return Learned(file, belief, kept, lengths, lacks(kept.steps, facts, plan))


def timed_together(steps: Sequence[LoggedStep], facts: Facts, plan: Plan) -> list[tuple[str, ...]]:
    """The calls of the dataflow that a log times, alone or together; what usually takes next to nothing is none.

    Where generation runs beside training, a log has how long the trainer waits for it; the whole step says more, unless
    the log has when each call began and ended.
    """
    models = {call.key for call in facts.dataflow.calls if call.role != CONTROLLER}
    named = {name for step in steps for name in step.calls}
    logged = {n for n in named if np.median([step.calls[n] for step in steps if n in step.calls]) >= LEAST_S}
    overlapped = plan.schedule != "sync" and all(step.between_s is None for step in steps)
    groups: list[tuple[str, ...]] = []
    for name in sorted(logged):
        keys = tuple(key for key in name.split("+") if key in models)
        waits = overlapped and any(key.startswith("generate_sequences") for key in keys)
        if keys and not waits:
            groups.append(keys)
    if not groups or overlapped:
        groups += [(WHOLE,)] * any(step.iteration_s is not None for step in steps)
    return groups


def lacks(steps: Sequence[LoggedStep], facts: Facts, plan: Plan) -> tuple[str, ...]:
    """What the log does not say, and what that costs."""
    known = {key for group in timed_together(steps, facts, plan) for key in group}
    missing = [c.key for c in facts.dataflow.calls if c.role != CONTROLLER and c.key not in known]
    limit = facts.workload.response.maximum
    out = []
    if missing:
        out.append(f"no time of {', '.join(missing)}: their prices stay as they were, and as uncertain")
    if all(step.lengths.response_mean is None for step in steps):
        out.append("no response lengths: those of the job are taken, and errors of theirs go into the factors")
    elif all((step.lengths.response_mean or limit + 1) > limit for step in steps):
        out.append(f"responses within the job's limit of {limit:,} tokens: another job ran")
    elif all(step.lengths.clipped is None for step in steps):
        out.append("no share of responses at the limit: the tail of the lengths stays as the job has it")
    if all(step.iteration_s is None for step in steps):
        out.append("no time of whole steps: what happens between calls stays unknown")
    elif plan.schedule == "sync" and all(step.unnamed_s is None for step in steps):
        out.append("a step is the sum of its stages: what happens between calls stays unknown")
    if all(step.memory_gib is None and step.allocated_gib is None for step in steps):
        out.append("no peak of memory: estimates of memory are not checked")
    return tuple(out)


def cases_of(
    steps: Sequence[LoggedStep], plan: Plan, facts: Facts, lengths: LearnedLengths | None
) -> list[tuple[Case, list[LoggedStep]]]:
    """Steps of like length together, each with the facts of their own lengths."""
    limit = facts.workload.response.maximum
    said = [step for step in steps if step.lengths.response_mean]
    known = [step for step in said if (step.lengths.response_mean or 0.0) <= limit] or said
    if lengths is None or not known:
        return [(Case(plan, facts), list(steps))]
    known.sort(key=lambda step: step.lengths.response_mean or 0.0)
    num = max(1, min(MOST_BINS, len(known) // LEAST_PER_BIN))
    bins = [list(part) for part in np.array_split(np.asarray(known, dtype=object), num)]
    return [(Case(plan, _at_lengths(facts, part, lengths)), part) for part in bins]


def _at_lengths(facts: Facts, steps: Sequence[LoggedStep], lengths: LearnedLengths) -> Facts:
    work = facts.workload
    mean = float(np.mean([s.lengths.response_mean for s in steps]))
    tail = None if lengths.response_p99 is None else lengths.response_p99 * mean / lengths.response_mean
    prompts = [s.lengths.prompt_mean for s in steps if s.lengths.prompt_mean]
    prompt = min(float(np.mean(prompts)), float(work.prompt_length)) if prompts else work.prompt_tokens
    response = with_lengths(work.response, min(mean, float(work.response.maximum)), tail)
    return replace(facts, workload=replace(work, response=response, prompt_tokens=prompt))


def observed(cases: Sequence[tuple[Case, list[LoggedStep]]], groups: Sequence[tuple[str, ...]]) -> list[Observation]:
    """Seconds of each group of calls in each case, with their error.

    They are the mean of the steps of usual length: a step in which the machine did something else says nothing of the
    next ones, and the mean of ten with two of those is as far off as what is to be learned.
    """
    out = []
    for i, (_, steps) in enumerate(cases):
        for group in groups:
            every, middle = _seconds(steps, group), _seconds(usual(steps), group)
            if not len(every):
                continue
            mean = float(np.mean(middle if len(middle) else every))
            out.append(Observation(i, group, mean, _error(every, mean)))
    return out


def _seconds(steps: Sequence[LoggedStep], group: tuple[str, ...]) -> Floats:
    """What each step says of calls that were timed together, without times that are no part of the run."""
    every = np.asarray([s for step in steps if (s := seconds_of(step, group)) is not None])
    return every[~far_off(every)]


def _error(seconds: Floats, mean: float) -> float:
    return float(np.std(seconds, ddof=1)) / mean / len(seconds) ** 0.5 if len(seconds) > 1 else SINGLE_STEP_ERROR


def seconds_of(step: LoggedStep, group: tuple[str, ...]) -> float | None:
    """What a step says of calls that were timed together."""
    if group == (WHOLE,):
        return step.iteration_s
    of_group = (s for name, s in step.calls.items() if set(group) <= set(name.split("+")))  # others are no calls here
    seconds = step.calls.get("+".join(group), next(of_group, None))
    return seconds if seconds is not None and seconds >= LEAST_S else None


def _belief(
    steps: Sequence[LoggedStep],
    plan: Plan,
    facts: Facts,
    lengths: LearnedLengths | None,
    groups: Sequence[tuple[str, ...]],
) -> tuple[Belief, dict[str, float]]:
    cases = cases_of(steps, plan, facts, lengths)
    seconds = between(steps, plan, facts).seconds
    return fit([case for case, _ in cases], observed(cases, groups), seconds)


def _stages(
    steps: Sequence[LoggedStep],
    plan: Plan,
    facts: Facts,
    lengths: LearnedLengths | None,
    groups: Sequence[tuple[str, ...]],
) -> tuple[Stage, ...]:
    """Errors of every second step by factors from the others, beside those without any factor."""
    used, held = list(steps[::2]), list(steps[1::2]) or list(steps)
    belief, seconds = _belief(used, plan, facts, lengths, groups)
    cases = cases_of(held, plan, facts, lengths)
    plain = Prices([case for case, _ in cases], {})
    after = Prices([case for case, _ in cases], seconds)
    out = []
    for group in groups:
        of_group = [o for o in observed(cases, [group])]
        if not of_group:
            continue
        weight = [len(cases[o.case][1]) for o in of_group]
        measured = float(np.average([o.seconds for o in of_group], weights=weight))
        errors = [
            float(np.average([p.seconds(o, at) for o in of_group], weights=weight)) / measured - 1.0
            for p, at in ((plain, np.zeros_like(belief.log_factors)), (after, belief.log_factors))
        ]
        out.append(
            Stage(calls=group, measured_s=measured, error_before=errors[0], error_after=errors[1], steps=sum(weight))
        )
    return tuple(out)


def predicted(log_steps: Sequence[LoggedStep], learned: Learned, plan: Plan, facts: Facts) -> Mapping[str, Floats]:
    """Seconds of each group of calls for each bin of other steps, by what was learned: measured and predicted."""
    groups = timed_together(log_steps, facts, plan)
    cases = cases_of(log_steps, plan, uncalibrated(facts), learned.lengths)
    prices = Prices([case for case, _ in cases], learned.file.seconds_per_sample)
    out: dict[str, Floats] = {}
    for group in groups:
        found = observed(cases, [group])
        pairs = [(o.seconds, prices.seconds(o, learned.belief.log_factors), len(cases[o.case][1])) for o in found]
        out["+".join(group)] = np.asarray(pairs)
    return out
