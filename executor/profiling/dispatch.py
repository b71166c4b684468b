"""What an iteration costs besides its calls: the controller, references and batches in motion, metrics read back.

A PPO iteration on engines that take no time (the fake) is nothing but that. Measured in this process, and on Ray with
all models on one rank and each on its own: each rank is one more process that calls and batches go to.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from executor.profiling.plans import ProbeJob, ppo_plan
from executor.profiling.statistics import Summary, summarise
from simulator.plan.dataflow import CONTROLLER, build_dataflow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from executor.profiling.cases import Key
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

SETS = {
    1: (("actor", "critic", "reference", "reward"),),
    4: (("actor",), ("critic",), ("reference",), ("reward",)),
}
"""Roles of each rank, by how many ranks there are."""
WARMUP = 3


def measure_dispatch(launcher: str, samples: int, ranks: int, iterations: int) -> tuple[Summary, int]:
    """Seconds between two calls that follow one another, and the peak memory of a rank that holds no model, bytes.

    ``samples`` is the size of the batch that passes, ``ranks`` one of ``SETS``; ``InputError`` where Ray is asked for
    and missing.
    """
    from executor.engines.fake import FakeSpec
    from executor.run import run
    from executor.run_config import parse_run

    config = parse_run(
        {
            "weights": {"actor": "unused"},
            "launcher": launcher,
            "cpu_ranks": ranks,
            "data": {"task": "sorted-digits", "digits": 5, "alphabet": "0123456789=+"},
        }
    )
    plan = ppo_plan(SETS[ranks], samples)
    engines = {entry.role: FakeSpec(entry.role, {}) for entry in plan.roles}
    with tempfile.TemporaryDirectory() as folder:
        timelines = run(ProbeJob.of("ppo", samples, 4, 3), plan, config, folder, iterations + WARMUP, engines=engines)
    follow = calls_on_path(plan)
    gaps = [(t.iteration_s - _covered_s(t)) / follow for t in timelines[WARMUP:]]
    peak = max(memory.used_bytes for memory in timelines[-1].memory.values())
    return summarise(gaps), peak


def dispatch_keys(launchers: tuple[str, ...], all_samples: tuple[int, ...]) -> Iterator[Key]:
    """Rows of table ``dispatch``; this process has one rank."""
    for launcher in launchers:
        for samples in all_samples:
            for ranks in SETS if launcher == "ray" else (1,):
                yield {"launcher": launcher, "samples": samples, "ranks": ranks}


def calls_on_path(plan: Plan) -> int:
    """How many calls follow one another in an iteration, those of the controller among them."""
    flow = build_dataflow(plan.algorithm, tuple(entry.role for entry in plan.roles))
    pools = {entry.role: entry.pool for entry in plan.roles} | {CONTROLLER: CONTROLLER}
    free: dict[str, int] = {}
    done: dict[str, int] = {}
    for call in flow.calls:
        pool = pools[call.role]
        done[call.key] = free[pool] = 1 + max(free.get(pool, 0), *(done[key] for key in call.inputs), 0)
    return max(done.values())


def _covered_s(timeline: Timeline) -> float:
    """Seconds during which some call ran."""
    total, until = 0.0, 0.0
    for start_s, end_s in sorted((span.start_s, span.end_s) for span in timeline.spans):
        total += max(end_s - max(start_s, until), 0.0)
        until = max(until, end_s)
    return total
