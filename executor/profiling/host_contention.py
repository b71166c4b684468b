"""Calls of a rank alone on its host, and with a rank of another pool on it: host contention.

These are runs of PPO behind a controller: all models on one rank; actor and reference on one and critic and reward on
another; all models on two ranks of one pool. In the second, inference and training of the two pools go on at the same
time, beside whatever else a run needs of the host. What lies between the calls of the three is read off them, too.
Times are those of a run's recorder. All are made twice, in turns.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from executor.profiling.dispatch import ROWS as BETWEEN_CALLS
from executor.profiling.dispatch import dispatch_key, gaps
from executor.profiling.plans import ProbeJob, ppo_plan, run_section
from executor.profiling.statistics import Summary, least_disturbed, summarise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from executor.profiling.cases import Key
    from executor.profiling.engine_step import Probe
    from simulator.plan.plan import Plan

ROWS = "neighbour_step"
CALLS = ("compute_values", "compute_ref_log_prob", "update_critic", "update_actor")
"""Those that run while a call of the other pool does."""
GENERATE = "generate_sequences"
WARMUP = 5
ROUNDS = 2
SETS = ((("actor", "critic", "reference", "reward"),), (("actor", "reference"), ("critic", "reward")))
"""Roles of each pool, with no neighbour and with one."""
ENGINE = "torch-native"


def measure_host_contention(probe: Probe, dtype: str, iterations: int) -> Iterator[tuple[str, Key, Summary]]:
    """Yield tables, keys and times: of each call with 0 and with 1 ``neighbours``, and of what lies between calls.

    ``InputError`` without Ray.
    """
    from executor.run import run

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(probe.config))
        config = run_section(path, dtype, 2, "sorted-digits", "per-character")
        job = ProbeJob.of("ppo", probe.samples, probe.prompt, probe.response, minibatches=probe.minibatches)
        calls: dict[tuple[int, str], list[Summary]] = {}
        between: dict[tuple[int, int, str], list[Summary]] = {}
        for plan in plans_of(probe) * ROUNDS:
            timelines = run(job, plan, config, folder, iterations + WARMUP)[WARMUP:]
            pools = len(plan.pools)
            for part, summary in gaps(timelines, plan).items():
                between.setdefault((plan.num_gpus, pools, part), []).append(summary)
            for call in calls_with(pools - 1) if plan.num_gpus == pools else ():
                times = [s.duration_s for t in timelines for s in t.spans if s.call == call]
                calls.setdefault((pools - 1, call), []).append(summarise(times))
    for (neighbours, call), rounds in calls.items():
        yield ROWS, {**probe.key(dtype, call), "neighbours": neighbours}, least_disturbed(rounds)
    for (ranks, pools, part), rounds in between.items():
        key = {**dispatch_key("ray", probe.samples, ranks, pools, ENGINE), "part": part}
        yield BETWEEN_CALLS, key, least_disturbed(rounds)


def plans_of(probe: Probe) -> list[Plan]:
    """One rank, two pools of a rank, one pool of two ranks."""
    size = probe.samples, probe.micro_batch
    return [*(ppo_plan(sets, *size) for sets in SETS), ppo_plan(SETS[0], *size, ranks=2)]


def calls_with(neighbours: int) -> tuple[str, ...]:
    """Calls that a run is measured for: generation never has a neighbour."""
    return CALLS if neighbours else (GENERATE, *CALLS)
