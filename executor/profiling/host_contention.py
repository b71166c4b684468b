"""Calls of a rank alone on its host, and with a rank of another pool on it: host contention.

Both are runs of PPO behind a controller, with all models on one rank, and with actor and reference on one and critic
and reward on another. In the second, inference and training of the two pools go on at the same time, beside whatever
else a run needs of the host. Times are those of a run's recorder. Both runs are made twice, in turns.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from executor.profiling.plans import ProbeJob, ppo_plan, run_section
from executor.profiling.statistics import Summary, least_disturbed, summarise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from executor.profiling.cases import Key
    from executor.profiling.engine_step import Probe

ROWS = "neighbour_step"
CALLS = ("compute_values", "compute_ref_log_prob", "update_critic", "update_actor")
"""Those that run while a call of the other pool does."""
GENERATE = "generate_sequences"
WARMUP = 5
ROUNDS = 2
SETS = ((("actor", "critic", "reference", "reward"),), (("actor", "reference"), ("critic", "reward")))
"""Roles of each pool, with no neighbour and with one."""


def measure_host_contention(probe: Probe, dtype: str, iterations: int) -> Iterator[tuple[Key, Summary]]:
    """Yield each call's key and times, with 0 and with 1 ``neighbours``; ``InputError`` without Ray."""
    from executor.run import run

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(probe.config))
        config = run_section(path, dtype, 2, "sorted-digits", "per-character")
        job = ProbeJob.of("ppo", probe.samples, probe.prompt, probe.response, minibatches=probe.minibatches)
        found: dict[tuple[int, str], list[Summary]] = {}
        for neighbours, sets in [*enumerate(SETS)] * ROUNDS:
            timelines = run(job, ppo_plan(sets, probe.samples, probe.micro_batch), config, folder, iterations + WARMUP)
            for call in calls_with(neighbours):
                times = [s.duration_s for t in timelines[WARMUP:] for s in t.spans if s.call == call]
                found.setdefault((neighbours, call), []).append(summarise(times))
    for (neighbours, call), rounds in found.items():
        yield {**probe.key(dtype, call), "neighbours": neighbours}, least_disturbed(rounds)


def calls_with(neighbours: int) -> tuple[str, ...]:
    """Calls that a run is measured for: generation never has a neighbour."""
    return CALLS if neighbours else (GENERATE, *CALLS)
