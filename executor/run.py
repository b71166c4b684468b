"""Run a plan: start its pools, load its models, loop its algorithm's script, record what happened."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.batch import largest_batch_bytes
from executor.checkpoint.files import prepare
from executor.controller.pools import (
    require_devices,
    require_kinds,
    resource_pools,
)
from executor.engines.support import require_adapters_run, require_models_run
from executor.launch.choice import choose_launcher
from executor.recovery.load import candidates, require_free
from executor.recovery.run_identity import identity_of
from executor.recovery.run_saving import Saving, folder_of, where_to_begin
from executor.run_settings import (
    adapters_of,
    hyperparameters,
    require_groups,
    require_processes,
    require_runnable,
    require_turns,
)
from simulator.plan.dataflow import build_dataflow
from simulator.plan.seal import fingerprint, sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from executor.checkpoint.manifest import Checkpoint
    from executor.controller.actor_group import PromptStream
    from executor.controller.controller import Controller
    from executor.controller.deadlines import Deadlines
    from executor.controller.models import Models
    from executor.engines.interfaces import EngineChoice
    from executor.launch.launcher import Launcher
    from executor.recorder import MetricsLog
    from executor.records import CallRecord, Recovery
    from executor.recovery.supervisor import Replan, Start, Supervisor
    from executor.rl.algorithm import Step
    from executor.run_config import RunConfig
    from executor.run_settings import JobFacts
    from simulator.plan.dataflow import Dataflow
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

    Watcher = Callable[[int, dict[str, float]], None]
    RecordsTaker = Callable[[int, Sequence[CallRecord]], None]


def run(
    job_facts: JobFacts,
    plan: Plan,
    run_config: RunConfig,
    out_dir: str | Path,
    iterations: int | None = None,
    *,
    watch: Watcher | None = None,
    engines: Mapping[str, EngineChoice] | None = None,
    on_records: RecordsTaker | None = None,
    resume: str | Path | bool = False,
    replan: Replan | None = None,
    on_recovery: Callable[[Recovery], None] | None = None,
    on_damaged: Callable[[str], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    watch_kernels_in: int | None = None,
) -> list[Timeline]:
    """Run ``iterations`` (the run section's, unless given) of a plan; one measured timeline each.

    ``resume`` is a checkpoint, or a folder of them whose newest one is meant (``True``: the run's own): the run resumes
    where it was saved, until it has made ``iterations`` in all, by the plan that saved it or another.

    Writes ``metrics.jsonl`` after every iteration, ``timeline.json`` (the last one) and ``timeline-ranks.json`` (the
    same with a span per rank) into ``out_dir``. ``watch`` is called with each iteration's metrics, ``on_records``
    with what every rank reported of its calls; again for iterations that are made again after a failure.

    What happens after a failure is the run section's ``on_failure``; ``replan`` gives the best plan on the devices
    that are left, ``on_recovery`` is called with every failure that was survived (also in ``failures.jsonl``). A
    damaged checkpoint is skipped where an older one is whole; ``on_damaged`` is called, else it is a Python warning.
    ``on_note`` is called with how columns travel between nodes.
    Records of the iteration ``watch_kernels_in`` say which kernels ran; its times are those of a profiled run.

    Raises
    ------
    InputError
        The plan cannot run here, or a worker says that its input cannot work; nothing is started in the first case.
    RankFailedError
        A rank failed; the message has its traceback. Every process is ended before it is raised.
    """
    from executor.recovery.supervisor import Policy, Start, Supervisor

    require_runnable(plan, run_config.engines)
    if engines is None:
        require_models_run(plan, run_config)
    require_groups(job_facts, plan, run_config.learning)
    if run_config.environment is not None:
        require_turns(job_facts, plan, run_config)
    if adapters_of(job_facts, run_config) is not None:
        require_adapters_run(plan, run_config.engines)
    out, count = Path(out_dir), iterations if iterations is not None else run_config.iterations
    identity = identity_of(job_facts, plan, run_config, hyperparameters(job_facts, run_config, plan))
    on_skipped = on_damaged or _warned
    begin = where_to_begin(run_config, out, resume, identity, count, on_skipped)
    require_processes(plan, run_config)
    if run_config.checkpoint is not None:
        prepare(folder_of(run_config, out))
    launcher = choose_launcher(plan, run_config, largest_batch_bytes(job_facts.workload))
    policy = Policy(run_config.on_failure, run_config.max_restarts)

    def saved() -> tuple[Checkpoint, ...]:
        return candidates(folder_of(run_config, out), on_skipped)

    supervisor = Supervisor(launcher, policy, saved, out, replan=replan, on_recovery=on_recovery)
    timelines: dict[int, Timeline] = {}
    seen = (watch, on_records, on_skipped, on_note, timelines, watch_kernels_in)
    given = _Given(job_facts, run_config, out, count, identity, engines, *seen)
    try:
        supervisor.run(Start(0, plan, begin), lambda start: _attempt(launcher, supervisor, start, given))
    finally:
        launcher.stop()
    return [timelines[iteration] for iteration in sorted(timelines)]


def _warned(text: str) -> None:
    warnings.warn(text, stacklevel=2)


@dataclass(frozen=True)
class _Given:
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


def _attempt(launcher: Launcher, supervisor: Supervisor, start: Start, given: _Given) -> None:
    """Start the ranks of a plan, load, and run to the end."""
    from executor.controller.controller import Controller
    from executor.controller.models import build_models
    from executor.recovery.load import load

    plan, config = start.plan, given.config
    require_runnable(plan, config.engines)
    require_devices(plan, launcher.num_devices)
    require_kinds(plan, launcher.kinds, launcher.num_nodes)
    faults = tuple(fault for fault in config.faults if fault.attempt == start.attempt)
    controller = Controller(launcher, deadlines(config), faults)
    controller.start(resource_pools(plan))
    if controller.transport_note is not None and given.on_note is not None:
        given.on_note(controller.transport_note)
    hyper, adapters = hyperparameters(given.job_facts, config, plan), adapters_of(given.job_facts, config)
    models = build_models(controller, plan, config, hyper, given.engines, adapters)
    models.init()
    start = start.loaded(lambda checkpoint: load(models, controller, checkpoint), given.on_skipped)
    if config.checkpoint is not None and start.damaged:
        require_free(folder_of(config, given.out_dir), start.iteration, start.damaged)
    supervisor.ready(start)
    with Saving(
        models,
        controller,
        config,
        given.out_dir,
        identity=given.identity,
        layout=plan.placement,
        last=given.count,
        damaged=start.damaged,
    ) as saving:
        _loop(controller, models, plan, range(start.iteration, given.count), saving, supervisor, given)


def deadlines(config: RunConfig) -> Deadlines:
    """How long the controller waits for a call."""
    from executor.controller.deadlines import CallLimits, Deadlines

    given = config.timeouts
    return Deadlines(CallLimits(given.call_least_s, given.call_factor, given.first_call_s))


def _loop(
    controller: Controller,
    models: Models,
    plan: Plan,
    spread: range,
    saving: Saving,
    supervisor: Supervisor,
    given: _Given,
) -> None:
    from executor.controller.held_out import HeldOut
    from executor.recorder import MetricsLog
    from executor.rl.algorithms import RUNNABLE
    from profiles.atomic_write import write_atomically

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
            measured = (records, flow, start_s, end_s, metrics["tokens"], plan.num_gpus)
            given.timelines[iteration] = timeline = _timeline(*measured, per_rank=False)
            ranks = _timeline(*measured, per_rank=True)
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
    of = fingerprint(plan.model_dump(mode="json"), given.identity)
    for name, found in (("timeline.json", timeline), ("timeline-ranks.json", ranks)):
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


def _timeline(
    records: list[Any], flow: Dataflow, start_s: float, end_s: float, tokens: float, num_gpus: int, *, per_rank: bool
) -> Timeline:
    from executor.recorder import timeline_of

    return timeline_of(records, flow, start_s, end_s, tokens=tokens, num_gpus=num_gpus, per_rank=per_rank)


def _seconds(timeline: Timeline) -> dict[str, float]:
    stages = {f"seconds/{stage}": seconds for stage, seconds in timeline.stages.items()}
    return {"iteration_s": timeline.iteration_s, "tokens_per_s": timeline.tokens_per_s, **stages}


def _note(log: MetricsLog, iteration: int, metrics: dict[str, float], watch: Watcher | None) -> None:
    log.write(iteration, metrics)
    if watch is not None:
        watch(iteration, metrics)
