"""What an iteration costs besides its calls: the controller, references and batches in motion, metrics read back.

Two parts: what lies between two calls that follow one another, and what comes before the first call of an iteration
and after its last. On engines that take no time (the fake) a PPO iteration is nothing but that; so it is measured in
this process, and on Ray for ranks that compute on GPUs of their own. Ranks of a CPU take their host's cores from the
controller, so there it is read off runs of the real engine (``host_contention``).
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from executor.profiling.plans import ProbeJob, ppo_plan
from executor.profiling.statistics import Summary, summarise
from profiles.tables.write import AROUND, BETWEEN, FAKE
from simulator.plan.dataflow import CONTROLLER, build_dataflow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from executor.profiling.cases import Key
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

ROWS = "dispatch"
SETS = {
    1: (("actor", "critic", "reference", "reward"),),
    4: (("actor",), ("critic",), ("reference",), ("reward",)),
}
"""Roles of each pool, by how many pools there are."""
BEHIND_A_CONTROLLER = ((1, 1), (4, 4), (2, 1))
"""Ranks and pools, those first without which there is no price."""
WARMUP = 3


def measure_dispatch(key: Key, iterations: int) -> tuple[dict[str, Summary], int]:
    """Seconds of each part of the table, and the peak memory of a rank that holds no model, bytes.

    ``key`` is one of ``dispatch_keys``; ``InputError`` where Ray is asked for and missing.
    """
    from executor.engines.fake import FakeSpec
    from executor.run import run
    from executor.run_config import parse_run

    samples, ranks, pools = int(key["samples"]), int(key["ranks"]), int(key["pools"])
    config = parse_run(
        {
            "weights": {"actor": "unused"},
            "launcher": key["launcher"],
            "cpu_ranks": ranks,
            "pin_cores": True,
            "data": {"task": "sorted-digits", "digits": 5, "alphabet": "0123456789=+"},
        }
    )
    plan = ppo_plan(SETS[pools], samples, ranks=ranks // pools)
    engines = {entry.role: FakeSpec(entry.role, {}) for entry in plan.roles}
    with tempfile.TemporaryDirectory() as folder:
        timelines = run(ProbeJob.of("ppo", samples, 4, 3), plan, config, folder, iterations + WARMUP, engines=engines)
    peak = max(memory.used_bytes for memory in timelines[-1].memory.values())
    return gaps(timelines[WARMUP:], plan), peak


def dispatch_keys(launchers: Sequence[str], all_samples: Sequence[int], *, cores_are_shared: bool) -> Iterator[Key]:
    """What fakes are measured for; this process has one rank, and of ranks that share cores real runs tell."""
    for launcher in launchers:
        alone = launcher != "ray" or cores_are_shared
        for samples in all_samples:
            for ranks, pools in BEHIND_A_CONTROLLER[:1] if alone else BEHIND_A_CONTROLLER:
                yield dispatch_key(launcher, samples, ranks, pools)


def dispatch_key(launcher: str, samples: int, ranks: int, pools: int, engine: str = FAKE) -> Key:
    """A row of table ``dispatch``, less its part."""
    return {"launcher": launcher, "engine": engine, "samples": samples, "ranks": ranks, "pools": pools}


def gaps(timelines: Sequence[Timeline], plan: Plan) -> dict[str, Summary]:
    """Seconds of each part of table ``dispatch`` in measured iterations of a plan whose calls all have a span."""
    follow = calls_on_path(plan)
    around = [_around_s(timeline) for timeline in timelines]
    rest = [timeline.between_s - s for timeline, s in zip(timelines, around, strict=True)]
    return {BETWEEN: summarise([max(s, 0.0) / (follow - 1) for s in rest]), AROUND: summarise(around)}


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


def _around_s(timeline: Timeline) -> float:
    """Seconds before the first call and after the last one."""
    return timeline.iteration_s - max(s.end_s for s in timeline.spans) + min(s.start_s for s in timeline.spans)
