"""What to change of a run of another system: a plan that the system itself follows, in steps that are priced again."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import Source
from hybridmap.exports.follow import all_in_tokens
from hybridmap.exports.targets import plan_for
from hybridmap.job.load import job_from_document
from profiles.errors import InfeasibleError, InputError
from simulator.play.simulate import simulate
from simulator.systems.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hybridmap.exports.imported import Imported
    from hybridmap.exports.reader import Change, Reader
    from hybridmap.job.job import Job
    from mapper.result import Result

GOOD_ENOUGH = 0.02
"""A run this near to the best plan is left alone: prices are less sure than that."""
LEAST_GAIN = 0.005
"""A step that gains less is left out, unless others need it."""
KINDS = (
    ("who recomputes", re.compile(r"recompute|checkpointing")),
    ("offload", re.compile(r"offload|enable_sleep")),
    ("rollout engines", re.compile(r"\.rollout\.(?!log_prob|n$)|vllm|sglang|generation|rollout-num-gpus-per-engine")),
    (
        "micro-batches",
        re.compile(r"micro_batch|micro-batch|token_len|tokens|dynamic|logprob_batch|packing|balance-data"),
    ),
    ("the trainer's layout", re.compile(r"parallel|ulysses|zero|reshard|ring_attn|strategy|stage|optimizer|divisible")),
    ("placement and schedule", re.compile(r"")),
)
"""Changes that belong together, by what their keys are about; the first that fits."""


@dataclass(frozen=True)
class Step:
    """Changes that are made together.

    Parameters
    ----------
    name
        What they are about.
    changes
        The keys.
    alone_s
        Seconds of an iteration with this step alone; ``None`` where that does not fit or is no run.
    after_s
        Seconds of an iteration after this step and those before it.
    """

    name: str
    changes: tuple[Change, ...]
    alone_s: float | None
    after_s: float | None


@dataclass(frozen=True)
class Advice:
    """What would be faster.

    Parameters
    ----------
    best
        The best plan found, as the system runs it; where there is a ``reason``, of any that the cluster allows. Where
        changes that gain nothing were left out, the plan of the run without them.
    changes
        Every key in which the run and that plan differ.
    steps
        The same, the largest gain first; none where the run is good enough.
    iteration_s
        The time of the run with all keys changed, read again; ``None`` where that does not fit.
    reason
        Why no plan was found that the system runs.
    """

    best: Result
    changes: tuple[Change, ...]
    steps: tuple[Step, ...]
    iteration_s: float | None
    reason: str = ""

    def is_enough(self, now_s: float | None) -> bool:
        """Whether a run of ``now_s`` seconds is as good as the best, as far as prices can tell."""
        if now_s is None or self.reason:
            return False
        return self.iteration_s is None or self.iteration_s >= (1.0 - GOOD_ENOUGH) * now_s


def advise(reader: Reader[Any], imported: Imported, config: Any, search: Callable[[Job], Result]) -> Advice:
    """Search what the system runs, and say what to change; ``search`` finds the best plan of a job."""
    target = TARGETS[reader.target(imported)]
    try:
        found = plan_for(_offloading(imported), target, search)
    except InputError as error:
        return Advice(search(imported.job), (), (), None, str(error))
    ours = _counted_alike(Source(found.result.plan, found.job), imported)
    changes = reader.changes(imported, config, ours)

    def time_of(some: tuple[Change, ...]) -> float | None:
        try:
            return reader.as_read(reader.changed(config, some), imported.source).iteration_s()
        except InfeasibleError:
            return None
        except InputError:  # some of the changes alone are no run
            return None

    after = time_of(changes)
    advice = Advice(replace(found.result, plan=ours.plan), changes, (), after)
    now = time_of(())
    if advice.is_enough(now):
        return advice
    kept, after = worthwhile(changes, in_order(changes, time_of), now, time_of)
    if kept != changes:
        run = reader.as_read(reader.changed(config, kept), imported.source)
        timeline = simulate(run.plan, run.job.facts())
        advice = replace(advice, best=replace(advice.best, plan=run.plan, timeline=timeline))
    return replace(advice, changes=kept, steps=joined(in_order(kept, time_of), now, time_of), iteration_s=after)


def worthwhile(
    changes: tuple[Change, ...],
    steps: tuple[Step, ...],
    now_s: float | None,
    time_of: Callable[[tuple[Change, ...]], float | None],
) -> tuple[tuple[Change, ...], float | None]:
    """The changes of the steps that gain something or that others need, with the time of the run that has them.

    A step without a gain stays where the run without it does not fit, or is not as fast.
    """
    kept, kept_s = list(steps), time_of(changes)
    if kept_s is None:
        return changes, None
    times = [now_s, *(step.after_s for step in steps)]
    for step, (before, after) in reversed(list(zip(steps, pairwise(times), strict=True))):
        if _gains(before, after):
            continue
        rest = [each for each in kept if each is not step]
        rest_s = time_of(_changes(rest))
        if rest_s is not None and rest_s <= (1.0 + LEAST_GAIN) * kept_s:
            kept, kept_s = rest, min(rest_s, kept_s)
    every = _changes(kept)
    return (changes, kept_s) if len(every) == len(changes) else (every, time_of(every))


def _changes(steps: Iterable[Step]) -> tuple[Change, ...]:
    return tuple(change for step in steps for change in step.changes)


def _gains(before_s: float | None, after_s: float | None) -> bool:
    return before_s is None or after_s is None or after_s < (1.0 - LEAST_GAIN) * before_s


def joined(
    steps: tuple[Step, ...], now_s: float | None, time_of: Callable[[tuple[Change, ...]], float | None]
) -> tuple[Step, ...]:
    """Steps that each gain something: one that gains nothing is made together with the next that does."""
    out: list[Step] = []
    waiting: list[Step] = []
    before_s = now_s
    for step in steps:
        waiting.append(step)
        if not _gains(before_s, step.after_s) and step is not steps[-1]:
            continue
        changes = _changes(waiting)
        name = ", ".join(each.name for each in waiting)
        out.append(step if len(waiting) == 1 else Step(name, changes, time_of(changes), step.after_s))
        waiting, before_s = [], step.after_s
    return tuple(out)


def in_order(changes: tuple[Change, ...], time_of: Callable[[tuple[Change, ...]], float | None]) -> tuple[Step, ...]:
    """Changes in steps, always the one next that gains most; those that only fit together are one, the last.

    ``time_of`` prices the run with some changes made, ``None`` where they do not fit or are no run.
    """
    groups: dict[str, tuple[Change, ...]] = {}
    for change in changes:
        name = next(name for name, pattern in KINDS if pattern.search(change[0]))
        groups[name] = (*groups.get(name, ()), change)
    alone = {name: time_of(group) for name, group in groups.items()}
    steps: list[Step] = []
    done: tuple[Change, ...] = ()
    while groups:
        priced = {name: time_of((*done, *group)) for name, group in groups.items()}
        possible = {name: time for name, time in priced.items() if time is not None}
        if not possible:
            rest = tuple(change for group in groups.values() for change in group)
            return (*steps, Step(" and ".join(groups), rest, time_of(rest), time_of((*done, *rest))))
        name = min(possible, key=lambda each: possible[each])
        group = groups.pop(name)
        done = (*done, *group)
        steps.append(Step(name, group, alone[name], possible[name]))
    return tuple(steps)


def _counted_alike(source: Source, imported: Imported) -> Source:
    """The plan with its micro-batches in tokens where the run has them so: at equal lengths samples say the same."""
    training = imported.source.actor.training
    if training is None or training.token_budget is None:
        return source
    scored = ((entry.role, entry.inference) for entry in imported.plan.roles if entry.training is None)
    return all_in_tokens(source, [role for role, layout in scored if layout and layout.token_budget is None])


def _offloading(imported: Imported) -> Job:
    """The job, in which states may wait in host memory where they do so now."""
    document = imported.job.document
    offload = any(entry.offload for entry in imported.plan.roles)
    return job_from_document({**document, "search": {**document["search"], "offload": offload}})
