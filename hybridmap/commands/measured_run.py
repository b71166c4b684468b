"""The run of ``hybridmap validate``: a plan for some iterations, at the pace of the profile's cores where there is one.

A door to torch and Ray, like ``run``: they are imported while it measures.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from hybridmap.console import EXIT_INTERRUPTED, warn
from hybridmap.validation.measured import Measured

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from executor.run_config import RunConfig
    from executor.run_settings import JobFacts
    from simulator.plan.plan import Plan

WATCHED_ITERATION = 1


@dataclass
class _Counts:
    """What ranks counted: ``taken`` in the last iteration, bytes by call; ``kernels`` of the watched one."""

    last: int
    taken: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, iteration: int, records: Sequence[Any]) -> None:
        for record in records:
            if iteration == WATCHED_ITERATION:
                found = self.kernels.setdefault(record.key, {})
                found |= {name: max(s, found.get(name, 0.0)) for name, s in record.kernels.items()}
            if iteration == self.last:
                self.taken[record.key] = self.taken.get(record.key, 0) + record.bytes_in


# Long by what a run may be told; the steps are few.
def measure(
    facts: JobFacts, plan: Plan, config: RunConfig, out: Path, iterations: int, profile: Path | None, *, quiet: bool
) -> Measured:
    """Run a plan for some iterations after warm-up, as the profile's runs were made; an interruption ends the program.

    Where a profile says how fast cores were, iterations are brought to that pace.
    """
    from executor.profiling.core_pace import CorePace, pace_of
    from executor.profiling.environment import describe, pick_device, use_threads
    from executor.profiling.visits import WARMUP, PaceWatch
    from executor.run import run
    from hybridmap.text.run import RunView

    threads = 1 if profile is None else _threads(profile)
    use_threads(threads)
    # measured without what no plan predicts, on cores as the profile's
    pinned = plan.num_gpus > 1
    config = config.model_copy(update={"checkpoint": None, "pin_cores": pinned})
    counts, before = _Counts(iterations + WARMUP - 1), os.getloadavg()[0]
    pace_s = None if profile is None else pace_of(profile)
    view = RunView(iterations + WARMUP, quiet=quiet)
    try:
        with CorePace(plan.num_gpus if pinned else os.cpu_count() or 1) if pace_s else nullcontext() as cores, view:
            pools = [pool.num_gpus for pool in plan.pools] if pinned else []
            looks = PaceWatch(lambda: cores.measure_s(pools)) if cores else None

            def watch(iteration: int, metrics: dict[str, float]) -> None:
                view.show(iteration, metrics)
                if looks:
                    looks(iteration, metrics)

            timelines = run(
                facts,
                plan,
                config,
                out / "run",
                iterations + WARMUP,
                watch=watch,
                on_records=counts.add,
                watch_kernels_in=WATCHED_ITERATION,
            )
    except KeyboardInterrupt:
        warn(f"stopped after {len(view.rows)} iterations; nothing was compared")
        raise SystemExit(EXIT_INTERRUPTED) from None
    device = str(describe(pick_device("auto"), threads)["device_string"])
    ran = counts.taken, counts.kernels, before, os.getloadavg()[0], device
    if not looks or not pace_s:
        return Measured(tuple(timelines[WARMUP:]), *ran)
    made = looks.made(timelines)
    slowness = median(made.of_each_s) / pace_s
    return Measured(tuple(made.at(pace_s)), *ran, slowness)


def _threads(profile: Path) -> int:
    """Threads of a rank when the profile was measured."""
    from profiles.yaml_text import read_yaml_file

    found = read_yaml_file(profile / "gemm.yaml")
    return int(found.get("threads_per_rank", 1)) if isinstance(found, dict) else 1
