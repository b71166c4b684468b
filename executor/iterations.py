"""The iterations of a run: the algorithm's script step by step, and what is written down of each."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulator.plan.dataflow import build_dataflow
from simulator.plan.seal import fingerprint, sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from executor.controller.actor_group import PromptStream
    from executor.controller.controller import Controller
    from executor.controller.models import Models
    from executor.engines.interfaces import EngineChoice
    from executor.recorder import MetricsLog
    from executor.records import CallRecord
    from executor.recovery.run_saving import Saving
    from executor.recovery.supervisor import Supervisor
    from executor.rl.algorithm import Step
    from executor.run_config import RunConfig
    from executor.run_settings import JobFacts
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

    Watcher = Callable[[int, dict[str, float]], None]
    RecordsTaker = Callable[[int, Sequence[CallRecord]], None]


@dataclass(frozen=True)
class Given:
    """What all starts of a run share; ``timelines`` collects them by iteration."""

    job_facts: JobFacts
    config: RunConfig
    out_dir: Path
    count: int
    identity: dict[str, Any]
    engines: Mapping[str, EngineChoice] | None
    watch: Watcher | None
    on_records: RecordsTaker | None
    on_skipped: Callable[[str], None]
    on_note: Callable[[str], None] | None
    timelines: dict[int, Timeline]
    watch_kernels_in: int | None


# Long by what an iteration leaves behind, in its order.
def iterate(
    controller: Controller,
    models: Models,
    plan: Plan,
    spread: range,
    saving: Saving,
    supervisor: Supervisor,
    given: Given,
) -> None:
    """Run the iterations of ``spread``; write ``metrics.jsonl`` after each and the last one's timelines at the end."""
    from executor.controller.held_out import HeldOut
    from executor.launch.choice import runs_here
    from executor.recorder import MetricsLog, timeline_of
    from executor.rl.algorithms import RUNNABLE

    out_dir, config = given.out_dir, given.config
    flow = build_dataflow(plan.algorithm, tuple(role.role for role in plan.roles), models.recomputes_log_probs)
    models.actor.prompts = batches = _prompts(controller, given.job_facts, config, spread, models.actor.num_drawn)
    held_out = HeldOut.of(config, given.job_facts.workload.prompt_length, controller)
    for name in ("timeline.json", "timeline-ranks.json"):
        (out_dir / name).unlink(missing_ok=True)  # of an earlier run: whoever stops this one finds none
    log, ranks = MetricsLog(out_dir, spread.start), None
    script: Iterator[Step] = RUNNABLE[plan.algorithm].script(models, batches)
    try:
        for iteration in spread:
            scored = held_out.scores(models, iteration) if held_out is not None else {}
            controller.watches_kernels = iteration == given.watch_kernels_in
            first, start_s = len(controller.records), time.time()
            step = next(script)
            metrics = _finish(controller, models, step) | scored
            records, end_s = controller.records[first:], time.time()
            measured = functools.partial(
                timeline_of,
                records,
                flow,
                start_s,
                end_s,
                tokens=metrics["tokens"],
                num_gpus=plan.num_gpus,
                in_turn=runs_here(plan, config),
            )
            given.timelines[iteration] = timeline = measured()
            ranks = measured(per_rank=True)
            if given.on_records is not None:
                given.on_records(iteration, records)
            metrics |= _seconds(timeline) | _checked(models, config, iteration + 1, saving)
            metrics |= saving.after(iteration + 1)
            _note(log, iteration, metrics, given.watch)
            supervisor.finished(iteration + 1)
            saving.publish(log)
        saving.finish()
    finally:
        log.close()
    _write(out_dir, {"timeline.json": timeline, "timeline-ranks.json": ranks}, plan, given.identity)


def _write(out_dir: Path, timelines: Mapping[str, Timeline | None], plan: Plan, identity: dict[str, Any]) -> None:
    """Files of an iteration's timelines by name, sealed with what ran."""
    from profiles.atomic_write import write_atomically

    of = fingerprint(plan.model_dump(mode="json"), identity)
    for name, found in timelines.items():
        if found is not None:
            write_atomically(out_dir / name, sealed(found, of).model_dump_json(indent=1) + "\n")


def _checked(models: Models, config: RunConfig, iteration: int, saving: Saving) -> dict[str, float]:
    """Compare copies of weights where that is due, and before they are saved; the seconds it took."""
    every = config.checks.replicas_every
    if not every or (iteration % every and not saving.is_due(iteration)):
        return {}
    start_s = time.perf_counter()
    models.check_replicas()
    return {"checks/replicas_s": time.perf_counter() - start_s}


def _prompts(
    controller: Controller, job_facts: JobFacts, config: RunConfig, spread: range, num_drawn: int
) -> PromptStream:
    """A batch per iteration; the source is made at once, so that the first iteration does not pay for it."""
    from executor.controller.actor_group import PromptStream
    from executor.rl.data import PromptSource

    work = job_facts.workload
    source = PromptSource(config.data, work.prompts, work.samples_per_prompt, work.prompt_length, config.seed)
    return PromptStream(lambda number: controller.put(source.batch(number)), spread.stop, spread.start, num_drawn)


def _finish(controller: Controller, models: Models, step: Step) -> dict[str, float]:
    """Wait for an iteration and read its metrics: the only values that the controller fetches."""
    metrics: dict[str, float] = {}
    for role, update in step.updates.items():
        metrics |= {f"{role}/{name}": value for name, value in update.first().items()}
    controller.wait_all()
    # not during the updates: where ranks are CPU processes, the controller's would take its share of their cores
    whole: dict[str, float] = models.controller.summarise(step.batch).first()
    controller.wait_all()
    return whole | metrics


def _seconds(timeline: Timeline) -> dict[str, float]:
    stages = {f"seconds/{stage}": seconds for stage, seconds in timeline.stages.items()}
    return {"iteration_s": timeline.iteration_s, "tokens_per_s": timeline.tokens_per_s, **stages}


def _note(log: MetricsLog, iteration: int, metrics: dict[str, float], watch: Watcher | None) -> None:
    log.write(iteration, metrics)
    if watch is not None:
        watch(iteration, metrics)
