"""Run a plan: start its pools, load its models, loop its algorithm's script, record what happened."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from executor.batch import largest_batch_bytes
from executor.checkpoint.files import prepare
from executor.controller.pools import require_devices, require_kinds, resource_pools
from executor.engines.support import require_adapters_run, require_models_run
from executor.iterations import Given, iterate
from executor.launch.choice import choose_launcher
from executor.recovery.load import candidates, require_free
from executor.recovery.run_identity import identity_of
from executor.recovery.run_saving import Saving, folder_of, where_to_begin
from executor.run_settings import (
    adapters_of,
    draft_of,
    hyperparameters,
    require_groups,
    require_processes,
    require_runnable,
    require_turns,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from executor.checkpoint.manifest import Checkpoint
    from executor.controller.deadlines import Deadlines
    from executor.engines.interfaces import EngineChoice
    from executor.iterations import RecordsTaker, Watcher
    from executor.launch.launcher import Launcher
    from executor.records import Recovery
    from executor.recovery.supervisor import Replan, Start, Supervisor
    from executor.run_config import RunConfig
    from executor.run_settings import JobFacts
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline


# Long by what a caller may watch and by what it is told of files and errors; the body is as long as others.
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

    _require(job_facts, plan, run_config, engines)
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
    given = Given(job_facts, run_config, out, count, identity, engines, *seen)
    try:
        supervisor.run(Start(0, plan, begin), lambda start: _attempt(launcher, supervisor, start, given))
    finally:
        launcher.stop()
    return [timelines[iteration] for iteration in sorted(timelines)]


def _require(
    job_facts: JobFacts, plan: Plan, run_config: RunConfig, engines: Mapping[str, EngineChoice] | None
) -> None:
    """Refuse what cannot run, before anything starts or is written; engines handed in answer for themselves."""
    require_runnable(plan, run_config.engines)
    if engines is None:
        require_models_run(plan, run_config)
    require_groups(job_facts, plan, run_config.learning)
    if run_config.environment is not None:
        require_turns(job_facts, plan, run_config)
    if adapters_of(job_facts, run_config) is not None:
        require_adapters_run(plan, run_config.engines)
    draft_of(job_facts, plan, run_config)


def _warned(text: str) -> None:
    warnings.warn(text, stacklevel=2)


# Long by the steps of a start, in their order.
def _attempt(launcher: Launcher, supervisor: Supervisor, start: Start, given: Given) -> None:
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
    draft = draft_of(given.job_facts, plan, config)
    models = build_models(controller, plan, config, hyper, given.engines, adapters, draft)
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
        iterate(controller, models, plan, range(start.iteration, given.count), saving, supervisor, given)


def deadlines(config: RunConfig) -> Deadlines:
    """How long the controller waits for a call."""
    from executor.controller.deadlines import CallLimits, Deadlines

    given = config.timeouts
    return Deadlines(CallLimits(given.call_least_s, given.call_factor, given.first_call_s))
